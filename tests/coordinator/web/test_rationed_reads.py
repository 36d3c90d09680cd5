"""Reads of the page by party: in rotation, with places for those of whom nobody waits."""

import asyncio

import pytest
from aiohttp import web

from echo2.coordinator.web.rationed_reads import MOST_OF_PARTY, MOST_WAITING, RationedReads


class Reads:
    """Reads whose actions take no time. `done`: parties in the order in which they were served; "-" for a refusal."""

    def __init__(self) -> None:
        self.reads = RationedReads("rows", lambda: 0.0)
        self.done: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def ask(self, party: str, *, begun: bool = False) -> None:
        self._tasks.append(asyncio.create_task(self._read(party, begun=begun)))

    async def _read(self, party: str, *, begun: bool) -> None:
        try:
            await self.reads.read(party, lambda: self.done.append(party), begun=begun)
        except web.HTTPServiceUnavailable:
            self.done.append("-")

    async def all_done(self) -> None:
        await asyncio.gather(*self._tasks)


async def test_a_party_that_asks_for_much_is_served_in_turn_with_others_and_alone_refused() -> None:
    reads = Reads()
    for party in [*("greedy" for _ in range(MOST_OF_PARTY + 3)), "one", "two"]:
        reads.ask(party)
    await reads.all_done()
    assert reads.done[:3] == ["-"] * 3
    assert reads.done[3:] == ["greedy", "one", "two", *["greedy"] * (MOST_OF_PARTY - 1)]


async def test_the_last_quarter_of_the_places_is_for_parties_of_which_nobody_waits() -> None:
    reads = Reads()
    for number in range(MOST_WAITING * 3 // 4):
        reads.ask(f"greedy {number // MOST_OF_PARTY}")
    reads.ask("greedy 0")
    for number in range(MOST_WAITING // 4):
        reads.ask(f"other {number}")
    reads.ask("one too many")
    await reads.all_done()
    assert reads.done.count("-") == 2
    assert {f"other {number}" for number in range(MOST_WAITING // 4)} < set(reads.done)
    assert "one too many" not in reads.done


async def test_an_answer_of_which_a_part_is_sent_waits_and_is_not_refused() -> None:
    """A 503 amid the body of a bundle left its client waiting for the rest."""
    reads = Reads()
    for number in range(MOST_WAITING):
        reads.ask(f"other {number}")
    reads.ask("late")
    reads.ask("reader", begun=True)
    await reads.all_done()
    assert reads.done[0] == "-", "the places are taken"
    assert "late" not in reads.done
    assert "reader" in reads.done


async def test_after_an_error_the_next_reads_go_on() -> None:
    reads = Reads()
    with pytest.raises(ZeroDivisionError):
        await reads.reads.read("one", lambda: 1 // 0)
    reads.ask("one")
    await reads.all_done()
    assert reads.done == ["one"]
