"""A snapshot that steps in place: forward, back, killed at any moment, and given false payloads."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from blake3 import blake3

from echo2.runtime.memory_folder import remove_memory_folder
from echo2.weights import journaled as module
from echo2.weights.diff import encode, encode_full
from echo2.weights.errors import BadPayload, BadSnapshot, StoreCorrupt, WrongBase
from echo2.weights.journaled import Rolling
from echo2.weights.logged_weights import begin_log, open_weights
from echo2.weights.snapshot import Snapshot
from echo2.weights.store import Store
from tests.support.children import child
from tests.support.cuts import cuts
from tests.support.paths import ROOT
from tests.support.quick_disk import quick_folder

WORKER = ROOT / "tests/support/journaled_worker.py"
VERSIONS = 6


@pytest.fixture
def chain(make_snapshot: Any) -> list[Snapshot]:
    """Return versions of a model of two dtypes, each a step from the one before."""
    rng = np.random.default_rng(4)
    bits = (rng.normal(0, 0.02, 90_000).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    norm = rng.normal(1, 0.1, 64).astype(np.float32).view(np.uint32)
    steps = []
    for number in range(VERSIONS):
        steps.append(make_snapshot(str(number), {"a.weight": ("BF16", bits), "b.norm": ("F32", norm)}))
        bits = bits + (rng.random(len(bits)) < 0.01).astype(np.uint16)
        norm = norm ^ rng.integers(0, 3, 64).astype(np.uint32)
    return steps


def payload_between(chain: list[Snapshot], old: int, new: int) -> Path:
    path = chain[old].path.with_name(f"{old}-{new}.payload")
    return encode(chain[old], chain[new], path).path


def assert_is(rolling: Rolling, snapshot: Snapshot) -> None:
    assert rolling.root == snapshot.root
    assert rolling.path.read_bytes() == snapshot.path.read_bytes()
    assert Snapshot(rolling.path).root == snapshot.root


def test_it_goes_forward_and_back_within_reach(chain: list[Snapshot], tmp_path: Path) -> None:
    roots = [snapshot.root for snapshot in chain]
    with Rolling.create(tmp_path / "rolling", chain[0]) as rolling:
        for number in range(1, VERSIONS):
            rolling.apply(payload_between(chain, number - 1, number), roots[number], keep=3)
            assert_is(rolling, chain[number])
        assert (rolling.behind(), rolling.ahead()) == (roots[4:1:-1], [])
        for number in (4, 3, 2):
            assert rolling.back() == roots[number]
            assert_is(rolling, chain[number])
        with pytest.raises(WrongBase, match="no step is kept that could be undone"):
            rolling.back()
        assert (rolling.behind(), rolling.ahead()) == ([], roots[3:])
        for number in (3, 4):
            assert rolling.redo() == roots[number]
            assert_is(rolling, chain[number])
        assert (rolling.behind(), rolling.ahead()) == (roots[3:1:-1], roots[5:])
    assert_is(Rolling(tmp_path / "rolling"), chain[4])


def test_back_and_forth_in_any_order_is_what_a_list_of_versions_would_be(chain: list[Snapshot], tmp_path: Path) -> None:
    rng = random.Random(11)
    rolling = Rolling.create(tmp_path / "rolling", chain[0])
    history, at = [0], 0
    for _ in range(60):
        move = rng.choice(("back", "again", "apply"))
        if move == "back" and at > 0:
            at -= 1
            rolling.back()
        elif move == "again" and at < len(history) - 1:
            at += 1
            rolling.redo()
        elif move == "apply":
            to = (history[at] + rng.choice((1, 2))) % VERSIONS
            rolling.apply(payload_between(chain, history[at], to), chain[to].root, keep=4)
            history = [*history[: at + 1], to][-5:]
            at = len(history) - 1
        if rng.random() < 0.3:
            rolling = Rolling(tmp_path / "rolling")
        assert rolling.root == chain[history[at]].root
        assert rolling.behind() == [chain[number].root for number in reversed(history[:at])]
        assert rolling.ahead() == [chain[number].root for number in history[at + 1 :]]
    assert_is(rolling, chain[history[at]])


def test_a_step_by_a_payload_forgets_what_was_undone(chain: list[Snapshot], tmp_path: Path) -> None:
    rolling = Rolling.create(tmp_path / "rolling", chain[0])
    for number in (1, 2):
        rolling.apply(payload_between(chain, number - 1, number), chain[number].root, keep=2)
    rolling.back()
    rolling.back()
    with pytest.raises(BadPayload):
        rolling.apply(payload_between(chain, 0, 3), chain[4].root, keep=2)
    assert len(rolling.ahead()) == 2, "a step that was refused changes nothing"
    rolling.apply(payload_between(chain, 0, 3), chain[3].root, keep=2)
    assert rolling.ahead() == []
    with pytest.raises(WrongBase, match="no undone step is kept"):
        rolling.redo()
    assert_is(rolling, chain[3])


@pytest.mark.parametrize("torn", [0, 1, 2])
def test_a_kill_while_it_forgets_what_was_undone_leaves_steps_that_can_be_made_again(
    chain: list[Snapshot], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: int
) -> None:
    rolling = Rolling.create(tmp_path / "rolling", chain[0])
    for number in (1, 2, 3):
        rolling.apply(payload_between(chain, number - 1, number), chain[number].root, keep=3)
    for _ in range(3):
        rolling.back()
    removed, unlink = [], Path.unlink

    def killed_after(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "redo":
            if len(removed) == torn:
                raise KeyboardInterrupt
            removed.append(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", killed_after)
    with pytest.raises(KeyboardInterrupt):
        rolling.apply(payload_between(chain, 0, 1), chain[1].root, keep=3)
    monkeypatch.undo()
    reopened = Rolling(tmp_path / "rolling")
    expected = [chain[number].root for number in range(1, 4 - torn)]
    assert reopened.ahead() == expected
    for root in expected:
        assert reopened.redo() == root
    assert_is(reopened, chain[3 - torn])


def test_where_none_is_kept_the_last_step_still_tells_the_root(chain: list[Snapshot], tmp_path: Path) -> None:
    Rolling.create(tmp_path / "rolling", chain[0]).apply(payload_between(chain, 0, 1), chain[1].root)
    rolling = Rolling(tmp_path / "rolling")
    rolling.apply(payload_between(chain, 1, 2), chain[2].root)
    assert_is(rolling, chain[2])
    assert len(list((tmp_path / "rolling" / "undo").iterdir())) == 1


def test_a_refused_payload_leaves_the_version_whole(chain: list[Snapshot], make_snapshot: Any, tmp_path: Path) -> None:
    rolling = Rolling.create(tmp_path / "rolling", chain[1])
    good = payload_between(chain, 1, 2)
    damaged = tmp_path / "damaged"
    data = bytearray(good.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    bits = {entry.name: (entry.dtype, chain[1].bits(entry.name)) for entry in chain[1].tensors}
    tied = encode(chain[1], make_snapshot("tied", bits, {"head": "a.weight"}), tmp_path / "tied")
    for error, payload, root in (
        (WrongBase, payload_between(chain, 0, 1), chain[1].root),
        (WrongBase, encode_full(chain[2], tmp_path / "full").path, chain[2].root),
        (BadPayload, good, chain[3].root),
        (BadPayload, damaged, chain[2].root),
        (BadSnapshot, tied.path, tied.root),
    ):
        with pytest.raises(error):
            rolling.apply(payload, root)
        assert_is(rolling, chain[1])
        assert sorted(path.name for path in (tmp_path / "rolling").iterdir()) == [
            "origin", "redo", "snapshot.safetensors", "undo",
        ]  # fmt: skip
    rolling.apply(good, chain[2].root)
    with pytest.raises(WrongBase, match="already"):
        rolling.apply(good, chain[2].root)
    assert_is(rolling, chain[2])


@pytest.mark.parametrize("direction", ["forward", "back", "again"])
@pytest.mark.parametrize("torn", [0, 1, 2])
def test_a_step_that_was_torn_is_finished_at_the_next_start(
    chain: list[Snapshot], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direction: str, torn: int
) -> None:
    """Torn before the weights are written, between two frames, and before the journal is put away."""
    rolling = Rolling.create(tmp_path / "rolling", chain[0])
    first, second = payload_between(chain, 0, 1), payload_between(chain, 1, 2)
    rolling.apply(first, chain[1].root, keep=2)
    steps = {
        "forward": lambda: rolling.apply(second, chain[2].root, keep=2), "back": rolling.back, "again": rolling.redo,
    }  # fmt: skip
    if direction == "again":
        rolling.back()
    whole = Rolling._scatter

    def scatter(self: Rolling, changes: Any) -> None:
        listed = list(changes)
        whole(self, iter(listed[:torn]))
        raise KeyboardInterrupt

    monkeypatch.setattr(Rolling, "_scatter", scatter)
    with pytest.raises(KeyboardInterrupt):
        steps[direction]()
    monkeypatch.undo()
    reopened = Rolling(tmp_path / "rolling")
    assert_is(reopened, chain[{"forward": 2, "back": 0, "again": 1}[direction]])
    roots = [snapshot.root for snapshot in chain]
    within = {"forward": ([roots[1], roots[0]], []), "back": ([], [roots[1]]), "again": ([roots[0]], [])}
    assert (reopened.behind(), reopened.ahead()) == within[direction]


def test_a_journal_that_rotted_is_not_applied(chain: list[Snapshot], tmp_path: Path) -> None:
    rolling = Rolling.create(tmp_path / "rolling", chain[0])
    rolling.apply(payload_between(chain, 0, 1), chain[1].root)
    (journal,) = (tmp_path / "rolling" / "undo").iterdir()
    data = bytearray(journal.read_bytes())
    data[100] ^= 1
    journal.write_bytes(data)
    before = rolling.path.read_bytes()
    with pytest.raises(StoreCorrupt):
        rolling.back()
    assert rolling.path.read_bytes() == before
    assert bytes(data[:8]) == module._MAGIC


@pytest.fixture
def quick() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder


class Stand(NamedTuple):
    root: bytes
    behind: list[bytes]
    ahead: list[bytes]


def stand(rolling: Rolling) -> Stand:
    return Stand(rolling.root, rolling.behind(), rolling.ahead())


@pytest.mark.slow
def test_cut_at_any_moment_it_is_the_version_before_or_behind_and_every_step_kept_can_be_made(
    chain: list[Snapshot], quick: Path
) -> None:
    folder = quick / "rolling"
    versions = {snapshot.root: snapshot for snapshot in chain}
    payloads = {(a, b): payload_between(chain, a, b) for a, b in ((0, 1), (1, 2), (2, 3), (1, 4), (4, 5))}
    nothing = Stand(b"", [], [])

    def life() -> Iterator[Stand]:
        yield nothing
        rolling = Rolling.create(folder, chain[0])
        yield stand(rolling)
        for old, new in ((0, 1), (1, 2), (2, 3)):
            rolling.apply(payloads[old, new], chain[new].root, keep=3)
            yield stand(rolling)
        for move in (rolling.back, rolling.back, rolling.redo, rolling.redo, rolling.back, rolling.back):
            move()
            yield stand(rolling)
        rolling.apply(payloads[1, 4], chain[4].root, keep=2)
        yield stand(rolling)
        rolling.apply(payloads[4, 5], chain[5].root)
        yield stand(rolling)
        rolling = Rolling.create(folder, chain[0])
        yield stand(rolling)

    for cut in cuts(life(), folder):
        try:
            rolling = Rolling(folder)
        except FileNotFoundError:
            # Created in place of the old folder: `replace_folder` is for callers that must not lose it.
            anew = (cut.before.root, cut.after.root) == (chain[5].root, chain[0].root)
            assert anew or cut.before == nothing, cut.where
            continue
        state = stand(rolling)
        if state.root == cut.after.root:
            assert state.behind[: len(cut.after.behind)] == cut.after.behind, cut.where
            assert state.ahead == cut.after.ahead, cut.where
        else:
            assert (state.root, state.behind) == (cut.before.root, cut.before.behind), cut.where
            assert state.ahead == cut.before.ahead[: len(state.ahead)], cut.where
        assert_is(rolling, versions[state.root])
        for root in state.behind:
            assert rolling.back() == root, cut.where
            assert_is(rolling, versions[root])
        for root in rolling.ahead():
            assert rolling.redo() == root, cut.where
            assert_is(rolling, versions[root])


def killed(folder: Path, kills: int) -> Iterator[None]:
    """Kill a worker in a folder so many times, each time at a random moment, and yield after each. A worker gets the
    time of about two steps, which a slow disk or machine makes long."""
    rng, patience = random.Random(kills), 0.15
    command = [sys.executable, str(WORKER), str(folder), str(VERSIONS)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        for kill in range(kills):
            worker.stdin.write(f"{kill}\n")
            worker.stdin.flush()
            pid, begun = int(worker.stdout.readline()), time.monotonic()
            if kill == 0:
                assert worker.stdout.readline() == "stepped\n"
                patience = max(patience, 2 * (time.monotonic() - begun))
            time.sleep(rng.random() * patience)
            os.kill(pid, signal.SIGKILL)
            assert worker.stdout.readline() == "dead\n"
            yield
        worker.stdin.close()
        worker.wait()


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.slow_but("20")
def test_killed_at_random_moments_it_is_always_one_version_and_goes_on(
    chain: list[Snapshot], tmp_path: Path, kills: int
) -> None:
    """SIGKILL in apply, back, again, encode and put; then weights, store and payloads are looked through."""
    for number in range(VERSIONS):
        payload_between(chain, number, (number + 1) % VERSIONS)
    Rolling.create(tmp_path / "rolling", chain[0])
    numbers, seen = {snapshot.root: number for number, snapshot in enumerate(chain)}, set()
    for _ in killed(tmp_path, kills):
        rolling = Rolling(tmp_path / "rolling")
        assert_is(rolling, chain[numbers[rolling.root]])
        seen.add(numbers[rolling.root])
        with Store(tmp_path / "store") as store:
            for file in store.payloads():
                assert blake3(file.path.read_bytes()).digest() == file.hash
    assert len(seen) > 1


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.slow_but("20")
def test_with_a_log_it_is_one_version_after_each_kill_with_its_memory_and_without(
    chain: list[Snapshot], tmp_path: Path, kills: int
) -> None:
    """SIGKILL in apply and fold; after each second one the memory is gone, as after a power cut."""
    for number in range(VERSIONS):
        payload_between(chain, number, (number + 1) % VERSIONS)
    folder = tmp_path / "rolling"
    Rolling.create(folder, chain[0])
    begin_log(folder)
    numbers, seen = {snapshot.root: number for number, snapshot in enumerate(chain)}, set()
    for number, _ in enumerate(killed(tmp_path, kills)):
        if number % 2:
            remove_memory_folder(folder)
        weights = open_weights(folder)
        assert_is(weights, chain[numbers[weights.root]])
        seen.add(numbers[weights.root])
    assert len(seen) > 1
