"""Sessions as the main process uses them; `Main` (tests/support/tiny_learner.py) records the published versions."""

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from subprocess import PIPE, Popen

import msgspec
import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file

from echo2.coordinator.learner.batches.batch_groups import BadBatch
from echo2.coordinator.learner.checkpoints import export as exporting
from echo2.coordinator.learner.checkpoints.checkpoint import CheckpointError
from echo2.coordinator.learner.messages import Export, Hyper
from echo2.coordinator.learner.optimiser import BadTensors
from echo2.coordinator.learner.session import WrongOrder, check_hyper
from echo2.p2p.swarm import manifest
from echo2.weights.diff import apply
from echo2.weights.snapshot import Snapshot
from tests.support.cuts import cuts
from tests.support.learner_lives import Life
from tests.support.quick_disk import quick_folder
from tests.support.tiny_learner import GROUPS, Main, ask, batch, make_model

HYPER = Hyper(warmup_steps=2, minibatches=2, microbatch_tokens=40, learning_rate=1e-3)

JOURNAL_ALONE = 1e-9
EVERY = pytest.mark.parametrize(
    "every", [pytest.param(5, id="at each fifth moment"), pytest.param(1, id="at each", marks=pytest.mark.slow)]
)
"""How many of the moments at which a learner may be killed are tried: all of them take a minute."""
"""A share of the time for checkpoints that leaves all but the first export to the journal."""


@pytest.fixture
def main(tmp_path: Path, model_folder: Path) -> Main:
    return Main(tmp_path, model_folder, HYPER)


@pytest.fixture
def ample_room_for_payloads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model's steps change most weights: its payloads back are nearly as large as the weights."""
    monkeypatch.setattr(exporting, "BACK_SHARE", 100.0)


def contents(main: Main) -> dict[int, bytes]:
    return {export.version: export.root for export in main.published}


def newest_tensors(main: Main) -> dict[str, torch.Tensor]:
    return load_file(max((main.folder / "checkpoints").iterdir()) / "tensors.safetensors")


def follow(main: Main, folder: Path) -> bytes:
    """Reach the last version as a node does: apply each payload to the version before."""
    snapshot: Snapshot | None = None
    for export in main.published:
        (edge,) = [edge for edge in export.edges if edge.base_root == (snapshot.root if snapshot else None)]
        snapshot = apply(snapshot, Path(edge.payload), folder / f"{export.version}.safetensors", export.root)
    return snapshot.root


def test_the_base_is_the_first_export_with_a_full_edge(main: Main) -> None:
    session = main.open()
    (base,) = main.published
    assert (base.version, [edge.base for edge in base.edges]) == (0, [None])
    assert session.answer_open().step == 0


def test_a_version_has_the_number_of_its_step_and_diffs_lead_to_it(main: Main, tmp_path: Path) -> None:
    main.keep = 10
    session = main.open()
    for number in (1, 2, 3):
        stepped = main.step(session, number)
        assert stepped.export.version == stepped.step == number
    (tmp_path / "node").mkdir()
    assert follow(main, tmp_path / "node") == main.published[-1].root


@pytest.mark.parametrize("kind", ["float32", "8bit"])
def test_a_run_restarted_in_the_middle_is_bit_for_bit_equal_to_one_that_is_not(
    tmp_path: Path, model_folder: Path, kind: str
) -> None:
    hyper = structs.replace(HYPER, optimiser_state=kind)
    whole, broken = Main(tmp_path / "whole", model_folder, hyper), Main(tmp_path / "broken", model_folder, hyper)
    session = whole.open()
    for number in range(1, 7):
        whole.step(session, number)
    session = broken.open()
    for number in range(1, 7):
        broken.step(session, number)
        if number in (1, 3, 4):
            torch.manual_seed(99)
            session = broken.open()
            assert session.answer_open().step == number
    assert contents(broken) == contents(whole)
    ours, theirs = newest_tensors(broken), newest_tensors(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux lists the files that a process maps")
@pytest.mark.parametrize("kind", ["float32", "host", "8bit"])
def test_an_opened_learner_keeps_no_file_of_its_checkpoint_from_being_removed(
    tmp_path: Path, model_folder: Path, kind: str
) -> None:
    main = Main(tmp_path, model_folder, structs.replace(HYPER, optimiser_state=kind))
    main.step(main.open(), 1)
    session = main.open()
    assert session.answer_open().step == 1
    mapped = Path("/proc/self/maps").read_text()
    assert str(main.folder / "checkpoints") not in mapped


def test_opening_returns_every_drawn_group(main: Main) -> None:
    session = main.open()
    for number in (1, 2):
        main.step(session, number)
    assert main.open().answer_open().drawn == [group.id for number in (1, 2) for group in batch(number).groups]


def test_an_unpublished_export_is_returned_again_with_the_same_bytes(main: Main) -> None:
    session = main.open()
    main.step(session, 1)
    exported = main.step(session, 2, publish=False).export
    assert exported is not None
    paths = [Path(exported.snapshot), *(Path(edge.payload) for edge in exported.edges)]
    before = [(path.stat().st_mtime_ns, path.read_bytes()) for path in paths]
    again = main.open(publish=False).answer_open().export
    # The hashes of files are no part of a checkpoint: after a crash the files are read again.
    assert again == structs.replace(exported, edges=[structs.replace(edge, hashed=None) for edge in exported.edges])
    assert [(path.stat().st_mtime_ns, path.read_bytes()) for path in paths] == before


@pytest.mark.parametrize("share", [1.0, JOURNAL_ALONE])
def test_a_run_whose_folder_was_moved_publishes_its_pending_export_from_there(
    share: float, tmp_path: Path, model_folder: Path
) -> None:
    main = Main(tmp_path / "before", model_folder, HYPER)
    main.checkpoint_share = share
    session = main.open()
    main.step(session, 1)
    exported = main.step(session, 2, publish=False).export
    assert exported is not None
    main.folder = main.folder.rename(tmp_path / "elsewhere")
    main.published = [
        structs.replace(one, snapshot=str(main.folder / "exports" / Path(one.snapshot).name)) for one in main.published
    ]
    again = main.open(publish=False).answer_open().export
    assert (again.version, again.root) == (exported.version, exported.root)
    files = [Path(again.snapshot), *(Path(edge.payload) for edge in again.edges)]
    assert all(path.is_file() and main.folder in path.parents for path in files)


def test_without_the_files_of_its_pending_export_a_learner_does_not_open(main: Main) -> None:
    session = main.open()
    main.step(session, 1)
    exported = main.step(session, 2, publish=False).export
    Path(exported.edges[0].payload).unlink()
    with pytest.raises(CheckpointError, match="is gone, with which version 2 is to be published"):
        main.open(publish=False)


def test_an_export_has_the_hashes_of_its_payloads(main: Main) -> None:
    session = main.open()
    for number in (1, 2, 3, 4):
        exported = main.step(session, number).export
        assert exported is not None
        assert [edge.base for edge in exported.edges][:1] == [number - 1]
        for edge in exported.edges:
            assert edge.hashed == manifest.hash_payload(Path(edge.payload))


def test_a_published_version_is_not_returned_again(main: Main) -> None:
    session = main.open()
    main.step(session, 1)
    assert main.open().answer_open().export is None


def test_only_the_steps_that_main_asks_for_are_exported_and_checkpointed(main: Main) -> None:
    session = main.open()
    exported = [main.step(session, number, export=number % 3 == 0).export is not None for number in range(1, 8)]
    assert exported == [False, False, True, False, False, True, False]
    assert main.open().answer_open().step == 6, "a step between two exports is made again after a crash"


def torn(main: Main, step: int, era: int = 0) -> None:
    """Damage the checkpoint of a step, so that it no longer matches its hash."""
    checkpoint = main.folder / "checkpoints" / f"checkpoint-{era:012d}-{step:012d}"
    with open(checkpoint / "tensors.safetensors", "wb") as file:
        file.write(b"torn")
        file.flush()
        os.fsync(file.fileno())


def test_a_fall_back_behind_a_published_version_begins_a_new_era_with_its_weights_and_the_checkpoints_optimiser(
    main: Main, tmp_path: Path
) -> None:
    session = main.open()
    for number in (1, 2, 3):
        main.step(session, number)
    torn(main, 3)
    main.now = 1_800_000_000.5
    session = main.open()
    opened = session.answer_open()
    assert (opened.era, opened.step, opened.drawn) == (1_800_000_000, 4, [])
    assert "set aside" in main.reports[0]
    assert "step 2, and version 3 is published: a new era begins with version 4" in opened.undone
    first = main.published[-1]
    assert (first.version, first.root) == (4, main.published[3].root), "the weights of step 3, as a newer version"
    assert [edge.base for edge in first.edges] == [3, None]
    before = Path(main.published[3].snapshot)
    assert apply(Snapshot(before), Path(first.edges[0].payload), tmp_path / "old", first.root).root == first.root
    assert apply(None, Path(first.edges[1].payload), tmp_path / "new", first.root).root == first.root
    stepped = main.step(session, 5)
    assert stepped.metrics["learning_rate"] == HYPER.learning_rate, "the optimiser is the checkpoint's"
    assert stepped.export is not None
    assert [edge.base for edge in stepped.export.edges] == [4]
    again = main.open().answer_open()
    assert (again.era, again.step, again.export, again.undone) == (1_800_000_000, 5, None, "")


def test_a_learner_of_a_restored_run_begins_an_era_once_though_its_checkpoint_covers_what_is_published(
    main: Main,
) -> None:
    session = main.open()
    for number in (1, 2):
        main.step(session, number)
    main.least_era, main.now = 1_800_000_000, 1_800_000_007.0
    opened = main.open().answer_open()
    assert (opened.era, opened.step) == (1_800_000_007, 3)
    assert opened.undone == "the run was restored from a backup: a new era begins with version 3"
    assert main.published[-1].root == main.published[-2].root
    again = main.open().answer_open()
    assert (again.era, again.step, again.undone) == (1_800_000_007, 3, "")


def test_a_newest_checkpoint_lost_before_its_version_is_published_undoes_nothing(main: Main) -> None:
    session = main.open()
    for number in (1, 2):
        main.step(session, number)
    main.step(session, 3, publish=False)
    torn(main, 3)
    opened = main.open().answer_open()
    assert (opened.era, opened.step, opened.export, opened.undone) == (0, 2, None, "")
    assert opened.drawn == [group.id for number in (1, 2) for group in batch(number).groups]


@pytest.mark.usefixtures("ample_room_for_payloads_back")
@pytest.mark.slow
def test_after_the_loss_of_its_folder_a_learner_begins_a_new_era_from_the_published_weights(
    main: Main, tmp_path_factory: pytest.TempPathFactory
) -> None:
    session = main.open()
    for number in (1, 2, 3):
        main.step(session, number)
    kept = tmp_path_factory.mktemp("store") / "kept.safetensors"
    kept.write_bytes(Path(main.published[-1].snapshot).read_bytes())
    main.published[-1] = structs.replace(main.published[-1], snapshot=str(kept))
    shutil.rmtree(main.folder)
    main.era, main.now = 7, 3.0
    session = main.open()
    opened = session.answer_open()
    assert (opened.era, opened.step, opened.drawn) == (8, 4, []), "the clock is behind the last era"
    first = main.published[-1]
    assert (first.version, first.root) == (4, main.published[-2].root)
    assert [edge.base for edge in first.edges] == [3, None]
    stepped = main.step(session, 5)
    assert stepped.metrics["learning_rate"] == HYPER.learning_rate / 2, "the optimiser is new"
    for number in range(6, 33):
        main.step(session, number)
    assert [edge.base for edge in main.published[-1].edges] == [31, 30, 28, 24, 16, 4], "the era's first is the anchor"
    assert not {"v0000000003.safetensors"} & {path.name for path in (main.folder / "exports").iterdir()}


def test_after_the_loss_of_the_store_a_learner_begins_a_new_era_too(main: Main) -> None:
    session = main.open()
    for number in (1, 2):
        main.step(session, number)
    last, main.published = main.published[-1], []
    opened = main.open().answer_open()
    assert (opened.era, opened.step) == (1, 3)
    assert (main.published[0].version, main.published[0].root) == (3, last.root)
    assert [edge.base for edge in main.published[0].edges] == [2, None], "whoever holds the last version follows"


@EVERY
@pytest.mark.slow
def test_a_change_of_era_killed_at_any_moment_is_repeated_or_continued(
    tmp_path: Path, model_folder: Path, every: int
) -> None:
    """The newest checkpoint is torn. After a kill at any moment the next start publishes one version: the weights
    published last, numbered above all others."""
    with quick_folder() as folder:
        main = Main(folder / "learner", model_folder, HYPER)

        def life() -> Iterator[int]:
            """Yield the number of published versions."""
            session = main.open()
            for number in (1, 2):
                main.step(session, number)
            torn(main, 2)
            main.now = 100.0
            yield 3
            session = main.open()
            yield 4
            main.step(session, 4)
            yield 5

        for cut in islice(cuts(life(), folder), 0, None, every):
            reopened = Main(folder / "learner", model_folder, HYPER)
            reopened.published, reopened.now = main.published[: cut.before], 200.0
            reopened.era = 0 if cut.before == 3 else 100
            session = reopened.open()
            versions = [export.version for export in reopened.published]
            assert versions == [*range(session.answer_open().step + 1)], cut.where
            assert reopened.era in ((100, 200) if cut.before == 3 else (100,)), cut.where
            assert reopened.published[3].root == main.published[2].root, cut.where
            assert [edge.base for edge in reopened.published[3].edges] == [2, None], cut.where
            if session.answer_open().step == 3:
                assert reopened.step(session, 4).export is not None, cut.where
            assert reopened.published[4].root == main.published[4].root, cut.where


@pytest.mark.slow
def test_drawn_groups_too_old_to_be_drawn_again_are_removed_from_the_checkpoint(
    tmp_path: Path, model_folder: Path
) -> None:
    main = Main(tmp_path, model_folder, HYPER, staleness=2)
    session = main.open()
    for number in range(1, 9):
        main.step(session, number)
    expected = [group.id for number in (7, 8) for group in batch(number).groups]
    assert session.answer_open().drawn == main.open().answer_open().drawn == expected, "step 6 drew version 5 at most"


def test_an_export_that_will_never_be_published_is_no_base(main: Main) -> None:
    session = main.open()
    main.step(session, 1)
    main.step(session, 2, publish=False)
    stepped = session.step(ask(batch(3), published=1))
    assert stepped.export.edges[0].base == 1
    assert stepped.export.edges[0].base_root == main.published[-1].root
    names = {path.name for path in (main.folder / "exports").iterdir()}
    assert not any(name.startswith("v0000000002") for name in names)


@pytest.mark.usefixtures("ample_room_for_payloads_back")
@pytest.mark.slow
def test_skip_diffs_lead_from_powers_of_two_and_apply(main: Main, tmp_path: Path) -> None:
    main.store = tmp_path / "store"
    main.store.mkdir()
    session = main.open()
    exports = {number: main.step(session, number).export for number in range(1, 9)}
    bases = {number: [edge.base for edge in export.edges] for number, export in exports.items() if export}
    assert bases == {1: [0], 2: [1, 0], 3: [2], 4: [3, 2, 0], 5: [4], 6: [5, 4], 7: [6], 8: [7, 6, 4, 0]}
    assert isinstance(exports[8], Export)
    for edge in exports[8].edges:
        base = Snapshot(main.store / f"v{edge.base:010d}.safetensors")
        out = tmp_path / f"from-{edge.base}.safetensors"
        assert apply(base, Path(edge.payload), out, exports[8].root).root == exports[8].root


@pytest.mark.usefixtures("ample_room_for_payloads_back")
@pytest.mark.slow
def test_files_of_old_versions_are_removed_once_a_later_one_is_published(main: Main) -> None:
    session = main.open()
    for number in range(1, 10):
        main.step(session, number)
    names = sorted(path.name for path in (main.folder / "exports").iterdir())
    assert [name for name in names if name.endswith("edge")] == [
        "v0000000000-back-0000000001.edge",
        "v0000000000-full.edge",
        *(f"v{version:010d}-back-{version + 1:010d}.edge" for version in range(1, 8)),
        "v0000000008-back-0000000009.edge",
        *(f"v0000000008-from-{base:010d}.edge" for base in (0, 4, 6, 7)),
        "v0000000009-from-0000000008.edge",
    ]
    assert [name for name in names if name.endswith("safetensors")] == [
        f"v{version:010d}.safetensors" for version in (8, 9)
    ]


def test_a_snapshot_that_main_removes_after_opening_still_serves_as_base(main: Main) -> None:
    session = main.open()
    main.step(session, 1)
    moved = main.folder / "store.safetensors"
    os.link(main.published[-1].snapshot, moved)
    main.published[-1] = structs.replace(main.published[-1], snapshot=str(moved))
    session = main.open()
    moved.unlink()
    assert main.step(session, 2).export is not None


def bad_step(main: Main, number: int) -> None:
    session = main.open()
    main.step(session, 1)
    session.step(ask(batch(number)))


def drawn_twice(main: Main) -> None:
    session = main.open()
    main.step(session, 1)
    session.step(structs.replace(ask(batch(1)), step=2))


def from_the_future(main: Main) -> None:
    main.open().step(ask(batch(1, age=0)))


BAD_BATCHES = {
    "a step that was made": (lambda main: bad_step(main, 1), "step 1 was asked for, the learner is at 1"),
    "a step too far": (lambda main: bad_step(main, 3), "step 3 was asked for, the learner is at 1"),
    "a group drawn before": (drawn_twice, "drawn twice"),
    "a version that is yet to come": (from_the_future, "has yet to make"),
}


@pytest.mark.parametrize("sentence", BAD_BATCHES)
def test_a_bad_batch_is_refused(sentence: str, main: Main) -> None:
    call, message = BAD_BATCHES[sentence]
    with pytest.raises(BadBatch, match=message):
        call(main)


def test_after_a_bad_batch_the_session_continues_as_if_it_had_not_been_sent(tmp_path: Path, model_folder: Path) -> None:
    calm, disturbed = Main(tmp_path / "calm", model_folder, HYPER), Main(tmp_path / "d", model_folder, HYPER)
    for main in (calm, disturbed):
        session = main.open()
        main.step(session, 1)
        if main is disturbed:
            bad = ask(batch(2))
            sample, *others = GROUPS[bad.groups[1]].samples
            short = structs.replace(sample, behaviour=sample.behaviour[:-1])
            GROUPS[bad.groups[1]] = structs.replace(GROUPS[bad.groups[1]], samples=[short, *others])
            with pytest.raises(BadBatch):
                session.step(bad)
        main.step(session, 2)
    assert contents(calm) == contents(disturbed)


def test_a_published_file_with_another_root_is_refused(main: Main) -> None:
    main.open()
    main.published[-1] = structs.replace(main.published[-1], root=b"\x07" * 32)
    with pytest.raises(WrongOrder, match="does not have the root of version 0"):
        main.open()


def test_a_checkpoint_of_another_run_is_refused_and_one_that_names_none_is_taken(main: Main) -> None:
    session = main.open()
    main.step(session, 1)
    main.run = "0a" * 16
    assert main.open().answer_open().step == 1
    main.step(main.open(), 2)
    main.run = "0b" * 16
    with pytest.raises(WrongOrder, match=f"checkpoints of run {'0a' * 16}, and this is run {'0b' * 16}: move"):
        main.open()
    main.run = "0a" * 16
    assert main.open().answer_open().step == 2


def test_a_checkpoint_of_another_model_is_refused_and_stays(tmp_path: Path, main: Main) -> None:
    session = main.open()
    main.step(session, 1)
    kept = sorted(path.name for path in (main.folder / "checkpoints").iterdir())
    own, main.model = main.model, make_model(tmp_path / "wider", hidden_size=64)
    with pytest.raises(BadTensors, match=r"of shape .*: it is another model's"):
        main.open()
    assert sorted(path.name for path in (main.folder / "checkpoints").iterdir()) == kept
    main.model = own
    assert main.open().answer_open().step == 1


BAD_SETTINGS = {
    "a constant length that is not known": ({"aggregate": "constant"}, "the limit of a rollout is not known"),
    "cut rollouts to mask whose ends are not known": ({"cut_rollouts": "masked"}, "tokens that end an answer"),
    "cut rollouts to penalise without a limit": ({"cut_rollouts": "penalised"}, "limit of a rollout is not known"),
}


@pytest.mark.parametrize("sentence", BAD_SETTINGS)
def test_an_invalid_setting_is_named(sentence: str) -> None:
    changes, message = BAD_SETTINGS[sentence]
    with pytest.raises(WrongOrder, match=message):
        check_hyper(structs.replace(Hyper(), **changes))


def live_and_die(zygote: Popen[bytes], main: Main, journal: Path, chance: random.Random, steps: int) -> None:
    """Run a learner in a process of its own until SIGKILL: while it opens, or within a step after `steps` others."""
    assert zygote.stdin
    assert zygote.stdout
    life = Life(
        folder=str(main.folder), model=str(main.model), hyper=HYPER, journal=str(journal),
        checkpoint_share=main.checkpoint_share,
    )  # fmt: skip
    zygote.stdin.write(msgspec.json.encode(life) + b"\n")
    zygote.stdin.flush()
    child = int(zygote.stdout.readline())
    started = time.monotonic()
    for _ in range(steps):
        assert zygote.stdout.readline() == b".\n", "it works until it is killed"
    typical = (time.monotonic() - started) / steps if steps else 0.2
    time.sleep(chance.uniform(0, typical))
    os.kill(child, signal.SIGKILL)
    while (text_line := zygote.stdout.readline()) == b".\n":
        pass
    assert text_line == b"killed by 9\n", "it was killed, it did not fail"


@pytest.fixture
def zygote(repository: Path) -> Iterator[Popen[bytes]]:
    """Return the process from which learners are forked: it has imported everything, and has one thread."""
    argv = [sys.executable, "-m", "tests.support.learner_lives"]
    with Popen(argv, stdin=PIPE, stdout=PIPE, cwd=repository, start_new_session=True) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@EVERY
@pytest.mark.parametrize("share", [1.0, JOURNAL_ALONE])
@pytest.mark.slow
def test_killed_at_any_moment_the_learner_continues_bit_for_bit(
    tmp_path: Path, model_folder: Path, share: float, every: int
) -> None:
    whole = Main(tmp_path / "whole", model_folder, HYPER)
    session = whole.open()
    for number in (1, 2):
        whole.step(session, number)
    with quick_folder() as folder:
        main = Main(folder / "learner", model_folder, HYPER)
        main.checkpoint_share = share

        def life() -> Iterator[int]:
            """Yield the number of published versions."""
            yield 0
            session = main.open()
            yield 1
            for number in (1, 2):
                main.step(session, number)
                yield number + 1

        for cut in islice(cuts(life(), folder), 0, None, every):
            reopened = Main(folder / "learner", model_folder, HYPER)
            reopened.published, reopened.checkpoint_share = main.published[: cut.before], share
            session = reopened.open()
            assert all("made again" in report for report in reopened.reports), cut.where
            assert cut.before <= len(reopened.published) <= cut.after, cut.where
            for number in range(session.answer_open().step + 1, 3):
                reopened.step(session, number)
            assert contents(reopened) == contents(whole), cut.where


@pytest.mark.parametrize("lives", [4, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("share", [pytest.param(1.0, marks=pytest.mark.slow), JOURNAL_ALONE])
@pytest.mark.slow
def test_kill_9_at_any_moment_leaves_a_learner_that_continues_from_intact_files(
    main: Main, tmp_path: Path, zygote: Popen[bytes], share: float, lives: int
) -> None:
    """Kill learners; after each, check the files that the next one finds against the journal."""
    journal, chance = tmp_path / "publications", random.Random(12)
    journal.touch()
    main.checkpoint_share = share
    last_step = -1
    for life in range(lives):
        live_and_die(zygote, main, journal, chance, life % 4)
        main.published = [
            msgspec.json.decode(text_line, type=Export) for text_line in journal.read_bytes().splitlines()
        ]
        versions = [export.version for export in main.published]
        assert versions == sorted(set(versions)), "no version is published twice"
        for step in range(1, len(versions) + 2):
            ask(batch(step))  # the learner's journal may name the groups of each step so far
        opened = main.open(publish=False).answer_open()
        assert all("made again" in report for report in main.reports)
        assert opened.step >= last_step
        assert opened.drawn == [g.id for step in range(1, opened.step + 1) for g in batch(step).groups]
        pending = [opened.export] if opened.export else []
        assert [export.version for export in main.published + pending] == list(range(opened.step + 1))
        for export in pending:
            assert Snapshot(Path(export.snapshot)).root == export.root
            base = Snapshot(Path(main.published[-1].snapshot)) if main.published else None
            apply(base, Path(export.edges[0].payload), tmp_path / "node.safetensors", export.root)
        last_step = opened.step
    assert last_step >= 3 * lives // 4, "a byte says that a step was begun, so each life of n bytes made n - 1 at least"
