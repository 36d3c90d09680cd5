"""Verified groups of single tasks are rewarded by their environment, then decided."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from echo2.coordinator.submissions.episode_record import EpisodeRecords
from echo2.coordinator.training.reward_loop import Rewarding
from echo2.tasks.task import Score, Split, TaskFault, Transcript
from tests.support.fake_coordinator import until


class CountingHost:
    """An environment that scores an episode by its first token once `free` is set, and fails at a 9. `under_way`:
    episodes at present; `most`: at a time. `begun`: the first tokens, in order."""

    facts = SimpleNamespace(name="riddle")

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.under_way = self.most = 0
        self.begun: list[int] = []

    async def score(self, split: Split, index: int, transcript: Transcript, limit: int) -> Score:
        first = int(transcript.tokens[0])
        self.begun.append(first)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.free.wait()
        self.under_way -= 1
        if first == 9:
            raise TaskFault("score raised KeyError", verified=True)
        return Score(float(first), False)


class Decided:
    """The part of a `GroupService` that the loop uses. `begun`: names of the groups of which episodes are scored.
    `rewards`: by name of the group, in the order of decisions."""

    def __init__(self) -> None:
        self.episodes = EpisodeRecords()
        self.begun = set[str]()
        self.rewards: dict[str, list[float | None]] = {}

    def leave_for_reward(self, group: Any) -> None: ...

    def begin_reward(self, group: Any) -> None:
        self.begun.add(group.name)

    def reward(self, group: Any, scores: list[Score | None]) -> None:
        self.rewards[group.name] = [score and score.reward for score in scores]

    def decide(self, group: Any, verdict: object, now: int) -> None:
        assert group.name in self.rewards


def verified(name: str, *firsts: int) -> Any:
    lease = SimpleNamespace(task="riddle", split="train", index=0, limit=8, id=name.encode())
    rollouts = [SimpleNamespace(tokens=[first], turns=[1]) for first in firsts]
    return SimpleNamespace(name=name, lease=lease, submission=SimpleNamespace(rollouts=rollouts))


@pytest.mark.parametrize("workers", [1, 3])
async def test_the_episodes_of_one_group_use_all_workers(workers: int) -> None:
    host, decided = CountingHost(), Decided()
    parts: Any = [host], decided
    rewarding = Rewarding(*parts, workers=workers, clock=lambda: 0.0, decided=asyncio.Event())
    verdict: Any = None
    rewarding.put(verified("only", 4, 3, 2, 1), verdict)
    running = asyncio.create_task(rewarding.run())
    await until(lambda: len(host.begun) == workers)
    host.free.set()
    await until(lambda: decided.rewards)
    running.cancel()
    assert host.most == workers
    assert decided.rewards == {"only": [4.0, 3.0, 2.0, 1.0]}


async def test_a_group_that_waits_for_a_worker_is_not_begun() -> None:
    host, decided = CountingHost(), Decided()
    parts: Any = [host], decided
    rewarding = Rewarding(*parts, workers=3, clock=lambda: 0.0, decided=asyncio.Event())
    verdict: Any = None
    for name in ("first", "second", "third"):
        rewarding.put(verified(name, 1, 2), verdict)
    running = asyncio.create_task(rewarding.run())
    await until(lambda: len(host.begun) == 3)
    assert decided.begun == {"first", "second"}
    host.free.set()
    await until(lambda: len(decided.rewards) == 3)
    running.cancel()


async def test_each_failed_episode_of_a_group_counts_and_no_other_group_suffers() -> None:
    host, decided = CountingHost(), Decided()
    host.free.set()
    parts: Any = [host], decided
    rewarding = Rewarding(*parts, workers=1, clock=lambda: 0.0, decided=asyncio.Event())
    verdict: Any = None
    rewarding.put(verified("bad", 4, 9, 9, 1), verdict)
    rewarding.put(verified("good", 7, 8), verdict)
    running = asyncio.create_task(rewarding.run())
    await until(lambda: len(decided.rewards) == 2)
    running.cancel()
    assert decided.rewards == {"bad": [4.0, None, None, 1.0], "good": [7.0, 8.0]}
    assert host.begun == [4, 9, 9, 1, 7, 8]
    assert list(decided.episodes.of("riddle").failed) == [False, True, True, False, False, False]
