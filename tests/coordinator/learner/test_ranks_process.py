"""Two ranks of a learner, started as the daemon starts them, against one process."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from echo2.coordinator.learner.checkpoints import checkpoint, journal
from echo2.coordinator.learner.messages import Export, Hyper, Open, Opened, Stepped
from echo2.coordinator.learner.ranks.launch import RankLayout, learner_process
from echo2.runtime.child import Child, ChildDied, ChildError
from echo2.weights.snapshot import Snapshot
from tests.support.tiny_learner import Main, ask, batch, make_model, store

pytestmark = pytest.mark.slow

LOSS = 1e-6
"""Most difference of the losses."""
DIFFERING = 1e-4
"""Largest share of published elements that differ."""
SETTINGS = {
    "the defaults": Hyper(warmup_steps=0, learning_rate=1e-3),
    "a weight and a KL term over the whole batch, in many passes": Hyper(
        warmup_steps=0, learning_rate=1e-3, weight="m2po", kl_coefficient=0.1, kl_groups="all", microbatch_tokens=24
    ),
    "whole rollouts, two updates, rollouts as denominator": Hyper(
        warmup_steps=0, learning_rate=1e-3, objective="gspo", aggregate="sequences", denominator="all", minibatches=2
    ),
    "moments in 8 bits": Hyper(warmup_steps=0, learning_rate=1e-3, optimiser_state="8bit"),
}


class TwoRanks:
    """Learners of two ranks, of which each takes the last one's place. `child`: torchrun."""

    def __init__(self) -> None:
        self.child: Child | None = None

    async def start(self) -> Child:
        self.child = learner_process(ranks=RankLayout(2))
        await self.child.start()
        return self.child

    def ranks(self) -> list[psutil.Process]:
        assert self.child is not None
        return sorted(psutil.Process(self.child.pid).children(), key=lambda one: int(one.environ()["RANK"]))


@pytest.fixture
async def two() -> AsyncIterator[TwoRanks]:
    group = TwoRanks()
    yield group
    if group.child is not None:
        await group.child.stop()


def order_of(main: Main, folder: Path, steps: range) -> Open:
    """Return an order to open a copy of a learner's folder, with a run.sqlite that has the groups of these steps."""
    shutil.copytree(main.folder, folder)
    database = store(folder / "run.sqlite", [group for number in steps for group in batch(number).groups])
    order = main.order()
    published = folder / "exports" / Path(order.published).name
    return msgspec.structs.replace(order, folder=str(folder), database=str(database), published=str(published))


def folders_of_torchrun(folder: Path) -> list[Path]:
    return list(folder.glob("torchelastic_*"))


def differing(left: Export | None, right: Export | None) -> float:
    """Return the share of elements in which two exports differ."""
    assert left is not None
    one, other = Snapshot(Path(left.snapshot)), Snapshot(Path(right.snapshot))
    assert (one.tensors, one.aliases) == (other.tensors, other.aliases)
    assert Snapshot(Path(right.snapshot)).root == right.root, "its hashes were computed by several ranks"
    apart = sum(int(np.count_nonzero(one.bits(part.name) != other.bits(part.name))) for part in one.tensors)
    return apart / sum(part.elements for part in one.tensors)


async def step_of_one(child: Child, folder: Path, model_folder: Path, hyper: Hyper, sentence: str) -> None:
    """Let two ranks make a step that one process makes too, and make it once more."""
    main = Main(folder / "one", model_folder, hyper)
    session = main.open()
    main.step(session, 1)
    order, once_more = (order_of(main, folder / name, range(2, 3)) for name in ("two", "again"))
    alone = main.step(session, 2)
    assert (await child.call("open", order, Opened)).step == 1, sentence
    together = await child.call("train", ask(batch(2)), Stepped)
    assert together.metrics.keys() == alone.metrics.keys()
    assert together.metrics == pytest.approx(alone.metrics, rel=1e-4, abs=LOSS), sentence
    assert together.metrics["loss"] == pytest.approx(alone.metrics["loss"], abs=LOSS), sentence
    assert together.metrics["updates"] == hyper.minibatches
    assert differing(alone.export, together.export) <= DIFFERING, sentence
    again = await child.call("open", once_more, Opened)
    assert again.step == 1
    repeated = await child.call("train", ask(batch(2)), Stepped)
    assert repeated.metrics == together.metrics, "as many ranks make the same step, to the bit"
    assert differing(together.export, repeated.export) == 0


async def test_two_ranks_make_the_steps_of_one_process_and_of_its_journal_and_end_with_the_first_of_them(
    tmp_path: Path, model_folder: Path, two: TwoRanks
) -> None:
    """The quick form of the slow tests below: one start of two ranks."""
    child = await two.start()
    await step_of_one(child, tmp_path / "step", model_folder, SETTINGS["the defaults"], "the defaults")
    main, order = journalled(tmp_path / "journal", model_folder)
    await child.call("open", order, Opened)
    stepped = await child.call("train", ask(batch(4)), Stepped)
    assert stepped.export is not None

    ranks, under_way = two.ranks(), asyncio.create_task(child.call("train", ask(batch(5)), Stepped))
    await asyncio.sleep(0)
    ranks[1].kill()
    with pytest.raises(ChildDied) as death:
        await under_way
    assert not death.value.told
    assert "was the first to end, with" in str(death.value)
    assert psutil.wait_procs(ranks, timeout=60)[1] == []

    fewer = Main(Path(order.folder), model_folder, main.hyper)
    fewer.published, fewer.era = [*main.published, stepped.export], main.era
    fewer.open()
    assert "the checkpoint was written by 2 ranks, and the learner has 1 now" in fewer.reports[0]


async def test_two_ranks_make_the_step_of_one_process(tmp_path: Path, model_folder: Path, two: TwoRanks) -> None:
    child = await two.start()
    nowhere = Main(tmp_path / "none", tmp_path / "no model").order()
    with pytest.raises(ChildError, match=r"BadModelFolder: .* has no config\.json"):
        await child.call("open", nowhere, Opened)
    for number, (sentence, hyper) in enumerate(SETTINGS.items()):
        await step_of_one(child, tmp_path / str(number), model_folder, hyper, sentence)
    ranks = two.ranks()
    assert await child.stop() == 0
    assert psutil.wait_procs(ranks, timeout=60)[1] == [], "no rank outlives the pipe"


async def test_ranks_of_which_one_is_killed_end_and_any_number_goes_on_from_their_checkpoint(
    tmp_path: Path, model_folder: Path, two: TwoRanks
) -> None:
    main = Main(tmp_path / "one", model_folder, Hyper(warmup_steps=0, learning_rate=1e-3))
    session = main.open()
    main.step(session, 1)
    order = order_of(main, tmp_path / "two", range(2, 4))
    for number in (2, 3):
        main.step(session, number)
    child = await two.start()
    await child.call("open", order, Opened)
    second = await child.call("train", ask(batch(2)), Stepped)
    ranks, under_way = two.ranks(), asyncio.create_task(child.call("train", ask(batch(3)), Stepped))
    await asyncio.sleep(0)
    ranks[1].kill()
    with pytest.raises(ChildDied) as death:
        await under_way
    assert not death.value.told
    assert "was the first to end, with" in str(death.value)
    assert psutil.wait_procs(ranks, timeout=60)[1] == []

    published = {"published": second.export.snapshot, "published_root": second.export.root, "published_version": 2}
    order = msgspec.structs.replace(order, **published)
    shutil.copytree(tmp_path / "two", tmp_path / "fewer")
    again = await two.start()
    opened = await again.call("open", order, Opened)
    assert (opened.step, opened.undone) == (2, "")
    together = await again.call("train", ask(batch(3)), Stepped)
    assert differing(main.published[-1], together.export) <= DIFFERING

    ranks = two.ranks()
    again.kill()
    assert await again.exited < 0
    assert psutil.wait_procs(ranks, timeout=60)[1] == [], "no rank outlives torchrun that was killed"

    fewer = Main(tmp_path / "fewer", model_folder, main.hyper)
    fewer.published, fewer.era = [second.export], main.era
    alone = fewer.step(fewer.open(), 3)
    assert "the checkpoint was written by 2 ranks, and the learner has 1 now" in fewer.reports[0]
    assert alone.metrics["loss"] == pytest.approx(together.metrics["loss"], abs=LOSS)
    assert differing(alone.export, together.export) <= DIFFERING


def journalled(folder: Path, model_folder: Path) -> tuple[Main, Open]:
    """Make three steps by one process; return it, and an order to open a copy whose checkpoint lacks them."""
    main = Main(folder / "one", model_folder, Hyper(warmup_steps=0, learning_rate=1e-3))
    main.checkpoint_share = 1e-9
    session = main.open()
    for number in (1, 2, 3):
        main.step(session, number)
    return main, order_of(main, folder / "two", range(1, 6))


async def test_two_ranks_make_the_journalled_steps_of_one_again_and_take_what_was_published(
    tmp_path: Path, model_folder: Path, two: TwoRanks
) -> None:
    """The last entry names other groups than it was made of, so the remade weights differ, as with several ranks they
    may."""
    main, order = journalled(tmp_path, model_folder)
    newest = checkpoint.load(tmp_path / "two" / checkpoint.FOLDER, pytest.fail)
    entries = journal.behind(tmp_path / "two" / journal.FOLDER, newest.state, pytest.fail)
    false = msgspec.structs.replace(entries[-1], steps=[(3, *entries[0].steps[0][1:])])
    journal.append(tmp_path / "two" / journal.FOLDER, false)

    child = await two.start()
    opened = await child.call("open", order, Opened)
    assert (opened.step, opened.undone, opened.drawn) == (3, "", entries[-1].state.drawn)
    assert list((tmp_path / "two" / journal.FOLDER).iterdir()) == []
    shutil.copytree(tmp_path / "two", tmp_path / "fewer")
    stepped = await child.call("train", ask(batch(4)), Stepped)
    assert stepped.export is not None

    fewer = Main(tmp_path / "fewer", model_folder, main.hyper)
    fewer.published, fewer.era = main.published, main.era
    taken = fewer.open()._trainer.save_snapshot(tmp_path / "taken.safetensors")
    assert taken.root == main.published[-1].root


async def test_ranks_whose_torchrun_is_killed_before_they_have_met_end_too_and_leave_no_folder(
    tmp_path: Path, two: TwoRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that waits for the others has no connection yet that could break."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    child = await two.start()
    torchrun = psutil.Process(child.pid)
    async with asyncio.timeout(60):
        while len(ranks := torchrun.children()) < 2:  # noqa: ASYNC110 (no event tells of it)
            await asyncio.sleep(0.05)
    child.kill()
    assert await child.exited < 0
    _, living = await asyncio.to_thread(psutil.wait_procs, ranks, timeout=20)
    assert living == []
    assert folders_of_torchrun(tmp_path) == []


def test_ranks_of_which_one_runs_out_of_memory_make_the_step_in_smaller_passes(tmp_path: Path) -> None:
    """Forward and backward; and where the sizes are given, all say so (tests/support/rank_short_of_memory.py)."""
    folder = make_model(tmp_path / "model", num_hidden_layers=2)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "tests.support.rank_short_of_memory", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, ended.stderr
    ends = [line for line in ended.stdout.splitlines() if line.startswith("rank")]
    assert sorted(ends) == ["rank 0 has met again", "rank 1 has met again"]
