"""An evaluation asks the same held-out prompts of every version, in slices, sampled and greedy."""

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import pytest

from echo2.coordinator.environments.task_host import LocalTask
from echo2.coordinator.training.evaluation import EvaluationSet, VersionGone, evaluate
from echo2.coordinator.training.slice_pace import SlicePace
from echo2.engines.engine import Job, Sample
from echo2.tasks.arithmetic import REVERSE_TASK
from tests.support.group_world import TEXT

T = TypeVar("T")
SET = EvaluationSet(LocalTask(REVERSE_TASK, TEXT), TEXT.eos, limit=16, prompts=6)


class Solver:
    """A scorer that solves every prompt when greedy, and none when sampling."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool]] = []

    async def generate_all(self, jobs: list[Job]) -> list[list[Sample]]:
        (greedy,) = {job.greedy for job in jobs}
        self.calls.append((len(jobs), greedy))
        return [[_answer(job, solved=greedy)] for job in jobs]


def _answer(job: Job, *, solved: bool) -> Sample:
    text = list(REVERSE_TASK.demonstration("heldout", job.index, TEXT, 0, 0.0, 0.0))
    tokens = text if solved else [TEXT.eos]
    return Sample(tokens=tokens, turns=[len(tokens)], logprobs=[-0.5] * len(tokens))


async def test_the_jobs_depend_on_the_task_alone() -> None:
    jobs, again = await SET.jobs(), await replace(SET, host=LocalTask(REVERSE_TASK, TEXT)).jobs()
    assert jobs == again
    assert len(jobs) == 6
    assert len({job.seeds[0] for job in jobs}) == 6
    assert {job.split for job in jobs} == {"heldout"}
    assert await replace(SET, prompts=3).jobs() == jobs[:3]
    cooler = await replace(SET, temperature=800).jobs()
    assert cooler == [msgspec.structs.replace(job, temperature=800) for job in jobs]


class FourTogether(SlicePace):
    @property
    def size(self) -> int:
        return 4


async def test_both_passes_are_scored_and_other_work_comes_between_the_slices() -> None:
    order: list[str] = []

    async def hold() -> bool:
        order.append("hold")
        return True

    async def meanwhile(work: Awaitable[T]) -> T:
        order.append("meanwhile")
        return await work

    async def between() -> None:
        order.append("between")

    solver: Any = Solver()
    result = await evaluate(
        [replace(SET, pace=FourTogether())], solver, hold=hold, version=7, clock=lambda: 2.5, between=between,
        meanwhile=meanwhile,
    )  # fmt: skip
    assert (result.version, result.at, result.prompts) == (7, 2500, 6)
    assert (result.sampled, result.greedy) == (0.0, 1.0)
    assert solver.calls == [(4, False), (2, False), (4, True), (2, True)]
    assert order == ["meanwhile", *["between", "hold", "meanwhile"] * 4]


async def test_an_evaluation_whose_version_is_gone_ends() -> None:
    async def hold() -> bool:
        return False

    async def between() -> None: ...

    async def meanwhile(work: Awaitable[T]) -> T:
        return await work

    solver: Any = Solver()
    with pytest.raises(VersionGone):
        await evaluate([SET], solver, hold=hold, version=7, clock=lambda: 2.5, between=between, meanwhile=meanwhile)
    assert solver.calls == []


async def test_a_group_waits_for_a_slice_about_as_long_as_for_a_verdict() -> None:
    """On 05512ca2 all 128 answers of a slice are generated first: 128 s here, in place of 6."""
    now, waits, began = 0.0, list[float](), 0.0

    class OneBySecond(Solver):
        async def generate_all(self, jobs: list[Job]) -> list[list[Sample]]:
            nonlocal now
            now += len(jobs)
            return await super().generate_all(jobs)

    async def hold() -> bool:
        nonlocal now, began
        began, now = now, now + 1.0
        return True

    async def meanwhile(work: Awaitable[T]) -> T:
        waits.append(now - began)
        return await work

    async def between() -> None: ...

    solver: Any = OneBySecond()
    many = replace(SET, prompts=128, pace=SlicePace())
    for version in range(2):
        waits.clear()
        result = await evaluate(
            [many], solver, hold=hold, version=version, clock=lambda: now, between=between, meanwhile=meanwhile,
            verdict_seconds=lambda: 6.0,
        )  # fmt: skip
    assert result.prompts == 128
    assert max(waits) <= 6.0
    assert len(waits) <= 2 * 128 / 4, "slices of one answer would change the version for each"
