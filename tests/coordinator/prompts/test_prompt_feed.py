"""Prompts of an environment are posed ahead of their leases, and no lease waits for a process."""

import asyncio

import pytest

from echo2.coordinator.prompts.prompt_feed import MOST_KEPT_PROMPTS, PROMPTS_AHEAD, PromptFeed
from echo2.coordinator.prompts.prompts import PromptPending
from echo2.tasks.task import TaskFault
from tests.support.group_world import TEXT
from tests.support.hosted_task import HostedTask


class Asked(HostedTask):
    """Records the indices of the prompts that it poses; `missing` ones it does not have."""

    def __init__(self) -> None:
        super().__init__(TEXT)
        self.asked: list[int] = []
        self.missing: set[int] = set()

    async def prompt(self, split: str, index: int) -> list[int]:
        self.asked.append(index)
        if index in self.missing:
            raise TaskFault("there is no such riddle", verified=False)
        return await super().prompt("train", index)


async def posed(feed: PromptFeed) -> None:
    """Let the feed pose everything that is asked for."""
    runs = asyncio.create_task(feed.run())
    for _ in range(4 * MOST_KEPT_PROMPTS):
        await asyncio.sleep(0)
    runs.cancel()


async def test_a_prompt_is_pending_at_first_and_there_with_the_next_ones_soon_after() -> None:
    host = Asked()
    feed = PromptFeed(host, seed=7)
    with pytest.raises(PromptPending, match="riddle is not posed yet"):
        feed.at(0)
    await posed(feed)
    first = feed.at(0)
    assert (first.task, first.task_version) == ("riddle", 3)
    assert first.tokens == await host.prompt("train", first.index)
    assert {feed.at(position).index for position in range(PROMPTS_AHEAD)} == set(host.asked)


async def test_the_prompt_of_the_lease_is_posed_before_those_ahead() -> None:
    host = Asked()
    feed = PromptFeed(host, seed=7)
    with pytest.raises(PromptPending):
        feed.at(500)
    await posed(feed)
    assert host.asked[0] == feed.at(500).index


async def test_a_prompt_that_the_task_does_not_have_is_a_fault_and_not_pending() -> None:
    host = Asked()
    feed = PromptFeed(host, seed=7)
    with pytest.raises(PromptPending):
        feed.at(0)
    host.missing = set(range(host.facts.train))
    await posed(feed)
    with pytest.raises(TaskFault, match="no such riddle"):
        feed.at(0)


async def test_a_prompt_that_leaves_no_room_for_an_answer_is_a_fault() -> None:
    feed = PromptFeed(Asked(), seed=7, room=2)
    with pytest.raises(PromptPending):
        feed.at(0)
    await posed(feed)
    with pytest.raises(TaskFault, match="leaves 2"):
        feed.at(0)


async def test_the_prompts_in_memory_are_bounded_and_a_dropped_one_is_posed_again() -> None:
    host = Asked()
    feed = PromptFeed(host, seed=7)
    for position in range(0, 4 * MOST_KEPT_PROMPTS, PROMPTS_AHEAD):
        with pytest.raises(PromptPending):
            feed.at(position)
        await posed(feed)
    assert len(feed) == MOST_KEPT_PROMPTS
    with pytest.raises(PromptPending):
        feed.at(0)
    await posed(feed)
    assert feed.at(0).index == host.asked[-1]
