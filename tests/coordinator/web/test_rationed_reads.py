"""Reads of the page by party: in rotation, with places for those of whom nobody waits."""

import asyncio
import queue
import threading
import time
from functools import partial

import pytest
from aiohttp import web

from echo2.coordinator.web.rationed_reads import CREDIT_SECONDS, MOST_OF_PARTY, MOST_WAITING, RationedReads


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
    assert reads.done.count("-") == 3
    served = [party for party in reads.done if party != "-"]
    assert served == ["greedy", "one", "two", *["greedy"] * (MOST_OF_PARTY - 1)]


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
    assert reads.done.count("-") == 1, "the places are taken"
    assert "late" not in reads.done
    assert "reader" in reads.done


async def test_after_an_error_the_next_reads_go_on() -> None:
    reads = Reads()
    with pytest.raises(ZeroDivisionError):
        await reads.reads.read("one", lambda: 1 // 0)
    reads.ask("one")
    await reads.all_done()
    assert reads.done == ["one"]


class Times:
    """A clock, and the CPU seconds of a thread. `spent`: CPU seconds of each action. `late`: seconds that pass between
    the end of an action and the moment when the event loop hears of it."""

    def __init__(self, *, spent: float, late: float = 0.0) -> None:
        self.now = self.processor_seconds = 0.0
        self.spent, self.late = spent, late

    def processor(self) -> float:
        if self.processor_seconds:  # the action has ended
            self.now += self.late
        return self.processor_seconds

    def action(self) -> None:
        self.processor_seconds += self.spent


async def test_a_read_beyond_the_credit_is_followed_by_a_pause_for_its_share_of_a_processor() -> None:
    times = Times(spent=0.2 * (CREDIT_SECONDS + 0.02))
    reads = RationedReads("rows", time.monotonic, share=0.2, processor=times.processor)
    began = time.monotonic()
    await reads.read("one", times.action)
    await reads.read("two", times.action)
    assert time.monotonic() - began >= 0.02


async def test_time_that_no_read_used_makes_up_for_pauses() -> None:
    """Two at once that take less than their share in the mean wait for no clock."""
    times = Times(spent=0.1)
    reads = RationedReads("rows", lambda: times.now, share=0.2, processor=times.processor)
    async with asyncio.timeout(20):
        for _ in range(60):
            times.now += 1.2
            await reads.read("one", times.action)
            await reads.read("two", times.action)


async def test_the_next_read_begins_while_the_event_loop_is_busy() -> None:
    """Each read used to wait for two turns of the loop: beside a busy one they fell behind."""
    reads = RationedReads("rows", lambda: 0.0)
    done = queue.Queue[str]()
    tasks = [asyncio.create_task(reads.read(party, partial(done.put, party))) for party in ("one", "two", "three")]
    await asyncio.sleep(0)
    assert [done.get(timeout=20) for _ in tasks] == ["one", "two", "three"], "the loop stands still here"
    await asyncio.gather(*tasks)


async def test_how_late_the_event_loop_hears_of_a_read_adds_no_pause() -> None:
    times = Times(spent=0.001, late=60.0)
    reads = RationedReads("rows", lambda: times.now, share=0.2, processor=times.processor)
    async with asyncio.timeout(20):
        for _ in range(3):
            await reads.read("one", times.action)


async def test_the_end_of_the_page_waits_for_no_pause() -> None:
    """The thread slept through it, and kept the process from its end."""
    times = Times(spent=600.0)
    reads, app = RationedReads("rows", time.monotonic, processor=times.processor), web.Application()
    reads.end_with(app)
    runner = web.AppRunner(app)
    await runner.setup()
    before = set(threading.enumerate())
    await reads.read("one", times.action)
    (thread,) = set(threading.enumerate()) - before
    waiting = asyncio.create_task(reads.read("two", times.action))
    await asyncio.sleep(0)
    await runner.cleanup()
    async with asyncio.timeout(20):
        await asyncio.to_thread(thread.join)
    assert await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), 20)
