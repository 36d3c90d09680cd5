"""Acknowledgements: the times of a delivery, and the attempts to send it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio

from echo2.node.links.coordinator_client import RequestRefused
from echo2.node.versions.acknowledgements import HEADS, PAYLOADS, RETRY_WAITS_SECONDS, SENDERS, Acknowledger
from echo2.p2p.errors import Unreachable
from echo2.p2p.network import FetchReport, PeerTransfer
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.broadcast_messages import Acknowledgement, TransferSource
from echo2.protocol.requests import Refusal
from tests.support.clock import run_fake


class Connection:
    """A connection that records its messages. `fails`: errors of the next attempts in order; None: success."""

    def __init__(self, *fails: Exception | None) -> None:
        self.fails = list(fails)
        self.told: list[tuple[float, Acknowledgement]] = []
        self.tried: list[float] = []
        self.start = 0.0

    async def tell(self, make: Callable[[], Acknowledgement]) -> None:
        now = anyio.current_time() - self.start
        self.tried.append(round(now, 3))
        if self.fails and (error := self.fails.pop(0)) is not None:
            raise error
        message = make()
        assert decode(encode(message), Acknowledgement) == message
        self.told.append((now, message))


def feed(peer: str, nbytes: int, began: float = 0.0, ended: float = 1.0) -> PeerTransfer:
    return PeerTransfer(peer=peer, nbytes=nbytes, began=began, ended=ended)


def running(connection: Connection) -> AbstractAsyncContextManager[Acknowledger]:
    @asynccontextmanager
    async def run() -> AsyncIterator[Acknowledger]:
        connection.start = anyio.current_time()
        acknowledger = Acknowledger(connection.tell)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(acknowledger.run)
            yield acknowledger
            await anyio.sleep(100)
            tasks.cancel_scope.cancel()

    return run()


def test_times_are_stated_as_durations() -> None:
    connection = Connection()

    async def main() -> None:
        async with running(connection) as node:
            node.on_message(1, 7)
            await anyio.sleep(3)
            node.on_message(1, 7)  # the Head again, with another sequence
            node.on_payload(b"p" * 32, FetchReport(seconds=2.0, feeds=(feed("s", 10, 0.5, 1.75),)))
            await anyio.sleep(1)
            node.on_version_load(1, 7, {b"p" * 32})

    run_fake(main)
    ((_, message),) = connection.told
    assert (message.era, message.version) == (1, 7)
    assert (message.heard, message.complete, message.applied) == (4000, 1000, 0)
    (taken,) = message.taken
    assert (taken.payload_hash, taken.took) == (b"p" * 32, 2000)
    assert taken.senders == [TransferSource(peer="s", nbytes=10, began=2500, ended=1250)]


def test_attempts_grow_apart_and_end_and_the_next_version_is_acknowledged_again() -> None:
    connection = Connection(*[Unreachable("no line")] * len(RETRY_WAITS_SECONDS))

    async def main() -> None:
        async with running(connection) as node:
            node.on_version_load(1, 7, ())
            await anyio.sleep(200)
            node.on_version_load(1, 8, ())

    run_fake(main)
    assert connection.tried == [0.0, 0.5, 2.5, 10.5, 200.0]
    assert [message.version for _, message in connection.told] == [8]


def test_a_newer_version_replaces_one_whose_acknowledgement_failed() -> None:
    connection = Connection(Unreachable("no line"), Unreachable("no line"))

    async def main() -> None:
        async with running(connection) as node:
            node.on_version_load(1, 7, ())
            await anyio.sleep(1)
            node.on_version_load(1, 8, ())

    run_fake(main)
    assert [(at, message.version) for at, message in connection.told] == [(1.0, 8)]


def test_a_refusal_is_final() -> None:
    connection = Connection(RequestRefused(Refusal(code="unknown-method", sentence="There is no such method.")))

    async def main() -> None:
        async with running(connection) as node:
            node.on_version_load(1, 7, ())

    run_fake(main)
    assert connection.tried == [0.0]


def test_a_version_that_was_here_already_is_acknowledged_without_payloads() -> None:
    connection = Connection()

    async def main() -> None:
        async with running(connection) as node:
            node.on_message(1, 7)
            await anyio.sleep(2)
            node.on_version_load(1, 7, ())

    run_fake(main)
    ((_, message),) = connection.told
    assert (message.heard, message.complete, message.applied, message.taken) == (2000, 2000, 0, [])


def test_a_payload_fetched_meanwhile_for_a_newer_version_is_named_with_that_one() -> None:
    connection = Connection()
    seventh, eighth = b"7" * 32, b"8" * 32

    async def main() -> None:
        async with running(connection) as node:
            node.on_message(1, 7)
            await anyio.sleep(1)
            node.on_payload(seventh, FetchReport(seconds=0.5, feeds=(feed("s", 10),)))
            await anyio.sleep(5)  # the groups under way
            node.on_message(1, 8)
            await anyio.sleep(1)
            node.on_payload(eighth, FetchReport(seconds=0.5, feeds=(feed("s", 10),)))
            await anyio.sleep(1)
            node.on_version_load(1, 7, {seventh})
            await anyio.sleep(1)
            node.on_version_load(1, 8, {eighth})

    run_fake(main)
    first, second = (message for _, message in connection.told)
    assert [taken.payload_hash for taken in first.taken] == [seventh]
    assert (first.heard, first.complete, first.applied) == (8000, 7000, 0)
    assert [taken.payload_hash for taken in second.taken] == [eighth]
    assert (second.heard, second.complete, second.applied) == (3000, 2000, 0)


def test_messages_and_memory_are_bounded_and_the_greatest_senders_stay() -> None:
    connection = Connection()

    async def main() -> None:
        async with running(connection) as node:
            for version in range(100):
                node.on_message(1, version)
            assert len(node._heard) == HEADS
            for number in range(20):
                node.on_payload(
                    bytes([number]) * 32, FetchReport(seconds=1.0, feeds=tuple(feed(f"p{i}", i + 1) for i in range(50)))
                )
            node.on_version_load(1, 99, {bytes([19]) * 32})

    run_fake(main)
    ((_, message),) = connection.told
    assert [taken.payload_hash[0] for taken in message.taken] == list(range(20 - PAYLOADS, 20))
    assert {sender.nbytes for sender in message.taken[0].senders} == set(range(51 - SENDERS, 51))
