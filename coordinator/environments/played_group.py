"""Generate a served group with an engine of the coordinator's own: each sampled turn is answered by an open episode.

For evaluation and Calibrations. The turns of volunteers are answered by coordinator/submissions/step_service.py.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from echo2.coordinator.environments.task_host import OpenEpisode, TaskHost, TurnAnswer
from echo2.engines.engine import Job, Sample, SampledTurn
from echo2.engines.process.process import Play
from echo2.protocol.task_kinds import OPENED_KIND
from echo2.tasks.task import Score, Split, TaskFault

MOST_GIVEN = 1 << 14
"""Most tokens that an environment may give in one rollout."""


class ServingEngine(Protocol):
    """The part of `engines.process.process.EngineClient` that generates served groups."""

    async def generate_served(self, job: Job, play: Play) -> list[Sample]: ...


class PlayedGroup(NamedTuple):
    """A group with the score of each sample; None where its episode failed. `faults`: why, of those that did.
    `seconds`: that the environment took for its turns, without the waits for a process."""

    samples: list[Sample]
    scores: list[Score | None]
    faults: list[str]
    seconds: float


def fits(prompt: int, given: int, room: int | None) -> bool:
    """Tell whether a rollout may have so many given tokens. `prompt`: its tokens. `room`: most tokens of prompt and
    given together, the model's context less the limit; None: the model states no context."""
    return given <= MOST_GIVEN and (room is None or prompt + given <= room)


async def play(engine: ServingEngine, host: TaskHost, job: Job, split: Split, room: int | None) -> PlayedGroup:
    """Generate a group of a served task. `job`: it gets a name of its own. `room`: the same as in `fits`. Raises the
    engine's errors."""
    episodes: dict[int, OpenEpisode] = {}
    scores: list[Score | None] = [None] * len(job.seeds)
    sampled, given, faults = Counter[int](), Counter[int](), list[str]()
    seconds, time = 0.0, asyncio.get_running_loop().time

    async def replied(number: int, tokens: Sequence[int]) -> TurnAnswer:
        nonlocal seconds
        began = time()

        def begin() -> None:
            nonlocal began
            began = time()

        try:
            return await episodes[number].reply(tokens, last=sampled[number] == job.limit, begin=begin)
        finally:
            seconds += time() - began

    async def answered(sampled_turn: SampledTurn) -> Sequence[int] | None:
        number = sampled_turn.sample
        sampled[number] += len(sampled_turn.tokens)
        try:
            if number not in episodes:
                episodes[number] = host.episode(split, job.index, prompt=job.prompt)
            answer = await replied(number, sampled_turn.tokens)
            given[number] += len(answer.given or [])
            if not fits(len(job.prompt), given[number], room):
                raise TaskFault("its answer leaves no room in the model's context", verified=True)
        except TaskFault as fault:
            faults.append(str(fault))
            return None
        scores[number] = answer.score
        return answer.given

    name = f"{split}/{job.index}/{job.greedy}".encode()
    try:
        samples = await engine.generate_served(
            msgspec.structs.replace(job, served=name, opened=host.facts.kind == OPENED_KIND), answered
        )
    finally:
        for episode in episodes.values():
            episode.leave()
    return PlayedGroup(samples, scores, faults, seconds)
