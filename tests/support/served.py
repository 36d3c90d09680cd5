"""Play served groups on an engine in this process: turns are answered by a pure task, some steps after they ended, or
by a coroutine."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from echo2.engines.engine import Finished, Job, Sample, SampledTurn
from echo2.engines.process.process import Play
from echo2.runtime.exception_groups import leaves
from echo2.tasks import registry
from echo2.tasks.task import Episode, Tokenizer

Answers = Callable[[SampledTurn], Sequence[int] | None]


class TaskAnswers:
    """The environment of a served job: a task of the registry, an episode per sample."""

    def __init__(self, job: Job, text: Tokenizer) -> None:
        task = registry.get(job.task, job.task_version)
        self._episodes: list[Episode] = [task.episode("train", job.index, text) for _ in job.seeds]

    def __call__(self, sampled_turn: SampledTurn) -> Sequence[int] | None:
        return self._episodes[sampled_turn.sample].reply(sampled_turn.tokens)


def served(job: Job, name: bytes = b"a lease") -> Job:
    return msgspec.structs.replace(job, served=name)


def play(engine: Any, pairs: Sequence[tuple[Job, Answers]], *, late: int = 0) -> list[list[Sample]]:
    """Generate served groups together. `late`: steps after which a turn is answered. Raises the first group's error."""
    answers, waiting = {job.served: one for job, one in pairs}, deque[tuple[int, SampledTurn]]()
    ended: dict[int, list[Sample]] = {}
    for ticket, (job, _) in enumerate(pairs):
        engine.begin(ticket, job)
    for number in range(10_000):
        waiting += [(number, sampled_turn) for sampled_turn in engine.turns()]
        while waiting and (waiting[0][0] + late <= number or engine.idle):
            _, sampled_turn = waiting.popleft()
            engine.answer(
                sampled_turn.served,
                sampled_turn.sample,
                sampled_turn.turn_number,
                answers[sampled_turn.served](sampled_turn),
            )
        for one in engine.step():
            ended[one.ticket] = outcome_of(one)
        if len(ended) == len(pairs):
            return [ended[ticket] for ticket in range(len(pairs))]
    raise AssertionError("the groups never end")


def outcome_of(one: Finished) -> list[Sample]:
    if isinstance(one.outcome, Exception):
        raise one.outcome
    return one.outcome


async def generate_served(
    engine: Any, job: Job, play: Play, *, check: Callable[[], object] = lambda: None
) -> list[Sample]:
    """Generate one served group. `check`: called before each step; raises what ends the engine."""
    engine.begin(0, job)
    try:
        async with asyncio.TaskGroup() as tasks:
            answered = asyncio.Event()

            async def answer(sampled_turn: SampledTurn) -> None:
                engine.answer(
                    sampled_turn.served, sampled_turn.sample, sampled_turn.turn_number, await play(sampled_turn)
                )
                answered.set()

            while True:
                check()
                ended = engine.step()
                for sampled_turn in engine.turns():
                    tasks.create_task(answer(sampled_turn))
                if ended:
                    return outcome_of(ended[0])
                if engine.idle:
                    answered.clear()
                    await answered.wait()
    except BaseExceptionGroup as group:
        raise next(leaves(group)) from None
