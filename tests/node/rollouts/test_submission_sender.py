"""Several submissions under way at once: their order, their bounds, refusals and breaks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from echo2.node.links.coordinator_client import RequestRefused
from echo2.node.rollouts.outbox import Outbox
from echo2.node.rollouts.submission_sender import SubmissionSender
from echo2.node.rollouts.submission_window import MOST_BYTES, MOST_UNDER_WAY
from echo2.p2p.errors import BadSignature, Unreachable
from echo2.protocol.requests import Refusal
from tests.support.clock import on_fake_clock


class DistantCoordinator:
    """The coordinator's end of a sender: answers after 150 ms. `begun`: bodies, in the order of their arrival.
    `answers`: what it raises for a body. `most`, `most_bytes`: most submissions, and bytes of them, under way."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.answers: dict[bytes, Exception] = {}
        self.busy = self.most = self.most_bytes = 0
        self._here: list[bytes] = []

    async def call(self, method: object, body: bytes) -> bytes:
        self.begun.append(body)
        self._here.append(body)
        self.most, self.most_bytes = max(self.most, len(self._here)), max(self.most_bytes, sum(map(len, self._here)))
        try:
            await asyncio.sleep(0.15)
        finally:
            self._here.remove(body)
        if body in self.answers:
            raise self.answers[body]
        return b""


@asynccontextmanager
async def sending(folder: Path) -> AsyncIterator[tuple[SubmissionSender, Outbox, DistantCoordinator]]:
    """A sender whose outbox counts an answered submission as refused for good: that ends it as simply as a receipt."""
    coordinator = DistantCoordinator()
    client: Any = coordinator
    with closing(Outbox(folder / "outbox.sqlite", node=bytes(32), limit=1000)) as outbox:

        def take(lease: bytes, answer: bytes) -> None:
            outbox.take_refusal(lease, Refusal(code="taken", sentence=""), 1)

        def refuse(lease: bytes, refusal: Refusal) -> None:
            outbox.take_refusal(lease, refusal, 1)

        yield SubmissionSender(outbox, client, take, refuse), outbox, coordinator


def put(outbox: Outbox, count: int, *, first: int = 0, size: int = 4) -> list[bytes]:
    """Queue submissions; return their bodies."""
    bodies = [number.to_bytes(4) * (size // 4) for number in range(first, first + count)]
    for number, body in enumerate(bodies, first):
        outbox.put(number.to_bytes(16), body, number)
    return bodies


def never(begun: int) -> bool:
    return False


@on_fake_clock
async def test_submissions_begin_oldest_first_and_at_most_so_many_at_once(tmp_path: Path) -> None:
    async with sending(tmp_path) as (sender, outbox, coordinator):
        bodies = put(outbox, 100)
        began = asyncio.get_running_loop().time()
        assert await sender.send(never) == 100
        assert coordinator.begun == bodies
        assert coordinator.most == MOST_UNDER_WAY
        assert asyncio.get_running_loop().time() - began < 0.15 * (4 + 100 / MOST_UNDER_WAY + 1)
        assert outbox.unsent() == 0


@on_fake_clock
async def test_the_bytes_under_way_are_bounded(tmp_path: Path) -> None:
    async with sending(tmp_path) as (sender, outbox, coordinator):
        put(outbox, 12, size=MOST_BYTES // 5 // 4 * 4)
        await sender.send(never)
        assert MOST_BYTES / 2 < coordinator.most_bytes <= MOST_BYTES


@on_fake_clock
async def test_a_group_that_is_ready_meanwhile_does_not_wait_for_those_under_way(tmp_path: Path) -> None:
    async with sending(tmp_path) as (sender, outbox, coordinator):
        put(outbox, 4)
        await sender.send(never)  # the window has opened
        put(outbox, 1, first=10)
        sent = asyncio.ensure_future(sender.send(never))
        await asyncio.sleep(0.05)
        put(outbox, 1, first=11)
        sender.wake()
        await asyncio.sleep(0.05)
        assert len(coordinator.begun) == 6
        assert await sent == 2


@on_fake_clock
async def test_after_a_refusal_that_says_later_nothing_begins_and_the_longest_wait_counts(tmp_path: Path) -> None:
    async with sending(tmp_path) as (sender, outbox, coordinator):
        put(outbox, 8)
        await sender.send(never)
        most = sender.window.most
        bodies = put(outbox, 40, first=100)
        for number, body in enumerate(bodies[:3], 1):
            refused = Refusal(code="busy", sentence="later", retry_after=1000 * number)
            coordinator.answers[body] = RequestRefused(refused)
        with pytest.raises(RequestRefused) as raised:
            await sender.send(never)
        assert raised.value.refusal.retry_after == 3000
        assert len(coordinator.begun) == 8 + most, "those under way went on, and no other began"
        assert outbox.unsent() == 40 - most + 3, "the refused ones stay queued"
        assert sender.window.most < most


@on_fake_clock
async def test_a_break_raises_unreachable_once_the_others_have_ended(tmp_path: Path) -> None:
    async with sending(tmp_path) as (sender, outbox, coordinator):
        put(outbox, 8)
        await sender.send(never)
        bodies = put(outbox, 5, first=100)
        coordinator.answers[bodies[0]] = Unreachable("gone")
        with pytest.raises(Unreachable):
            await sender.send(never)
        assert outbox.unsent() == 1


@on_fake_clock
async def test_a_false_answer_ends_what_is_under_way_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    async with sending(tmp_path) as (sender, outbox, coordinator):
        put(outbox, 8)
        await sender.send(never)
        before = len(coordinator.begun)
        bodies = put(outbox, 1, first=100)
        coordinator.answers[bodies[0]] = BadSignature("not the run's")
        task = asyncio.ensure_future(sender.send(never))
        await asyncio.sleep(0.1)
        put(outbox, 3, first=101)
        sender.wake()
        with pytest.raises(BadSignature):
            await task
        assert len(coordinator.begun) == before + 4
        assert outbox.unsent() == 4
        coordinator.answers.clear()
        assert await sender.send(never) == 4


@on_fake_clock
async def test_a_final_refusal_concerns_its_own_submission_alone(tmp_path: Path) -> None:
    async with sending(tmp_path) as (sender, outbox, coordinator):
        bodies = put(outbox, 3)
        coordinator.answers[bodies[1]] = RequestRefused(Refusal(code="unknown-lease", sentence="no such lease"))
        assert await sender.send(never) == 3
        assert sorted(row.code for row in outbox.rows()) == ["taken", "taken", "unknown-lease"]


@on_fake_clock
async def test_nothing_begins_any_more_once_it_is_enough(tmp_path: Path) -> None:
    async with sending(tmp_path) as (sender, outbox, _):
        put(outbox, 30)
        assert await sender.send(lambda begun: begun >= 7) == 7
        assert outbox.unsent() == 23
