"""Requests between peers, on the in-memory network and a fake clock."""

import anyio
import pytest

from benchmarks.memory_network.transport import Link, MemoryNetwork
from echo2.p2p.errors import Declined, Malformed, P2PError, Unreachable
from echo2.p2p.limits.least_rate import RATE_SECONDS
from echo2.p2p.limits.request_slots import PER_PEER
from echo2.p2p.peer import rpc
from echo2.p2p.peer.peer import Peer
from tests.support.clock import run_fake
from tests.support.peers import running


async def echo(peer: str, request: bytes) -> bytes:
    return peer.encode() + b":" + request


def served(network: MemoryNetwork, method: str = "echo", handler=echo, limit: int = 1 << 20) -> Peer:
    peer = Peer(network.transport("server"), seed=0)
    peer.serve(method, handler, limit=limit)
    return peer


async def asked(
    network: MemoryNetwork, server: Peer, *, method: str = "echo", payload: bytes = b"hi", timeout=60.0, frozen=False
):
    """Return the client's answer or error, and after how many seconds it came."""
    client = Peer(network.transport("client"), seed=1)
    async with running(server, client):
        if frozen:
            network.freeze("server")
        start = anyio.current_time()
        try:
            answer: bytes | P2PError = await client.request("server", method, payload, timeout=timeout)
        except P2PError as error:
            answer = error
        return answer, anyio.current_time() - start


def test_a_request_is_answered_after_a_round_trip():
    network = MemoryNetwork(1, link=Link(delay=0.05))

    async def main():
        return await asked(network, served(network))

    answer, seconds = run_fake(main)
    assert answer == b"client:hi"
    assert seconds == pytest.approx(0.1)


def test_a_large_answer_takes_as_long_as_the_link_needs():
    network = MemoryNetwork(1, link=Link(bandwidth=1e6))

    async def large(peer: str, request: bytes) -> bytes:
        return bytes(5_000_000)

    async def main():
        return await asked(network, served(network, handler=large))

    answer, seconds = run_fake(main)
    assert len(answer) == 5_000_000
    assert seconds == pytest.approx(5.0, rel=0.01)


def test_a_handler_slower_than_the_watchdog_still_answers():
    network = MemoryNetwork(1, patience=10)

    async def slow(peer: str, request: bytes) -> bytes:
        await anyio.sleep(100)
        return b"done"

    async def main():
        return await asked(network, served(network, handler=slow), timeout=200)

    answer, seconds = run_fake(main)
    assert answer == b"done"
    assert seconds == pytest.approx(100)


async def crash(peer: str, request: bytes) -> bytes:
    raise RuntimeError("a bug")


async def sleep_long(peer: str, request: bytes) -> bytes:
    await anyio.sleep_forever()
    raise AssertionError("forever is over")


@pytest.mark.parametrize(
    ("handler", "limit", "method", "payload", "error", "after"),
    {
        "an unknown method": (echo, 10, "other", b"hi", Declined, 0),
        "a request over its limit": (echo, 10, "echo", b"x" * 11, Malformed, 0),
        "a request far over its limit": (echo, 10, "echo", b"x" * (10 << 20), Malformed, 0),
        "a handler that raises": (crash, 10, "echo", b"hi", Unreachable, 0),
        "a handler slower than the timeout": (sleep_long, 10, "echo", b"hi", Unreachable, 60),
    }.values(),
    ids=lambda value: None,
)
def test_a_request_that_cannot_be_answered_fails_for_the_right_reason(handler, limit, method, payload, error, after):
    network = MemoryNetwork(1)

    async def main():
        return await asked(network, served(network, handler=handler, limit=limit), method=method, payload=payload)

    answer, seconds = run_fake(main)
    assert type(answer) is error
    assert seconds == pytest.approx(after, abs=0.1)


def test_a_handler_that_raises_harms_no_other_request():
    async def main():
        network = MemoryNetwork(1)
        a, b = Peer(network.transport("a"), seed=0), Peer(network.transport("b"), seed=0)
        a.serve("crash", crash, limit=10)
        a.serve("echo", echo, limit=10)
        async with running(a, b):
            with pytest.raises(Unreachable):
                await b.request("a", "crash", b"", timeout=5)
            assert await b.request("a", "echo", b"", timeout=5) == b"b:"

    run_fake(main)


def test_a_frozen_peer_is_noticed_by_the_watchdog_before_the_timeout():
    network = MemoryNetwork(1, patience=20)
    server = served(network)

    async def main():
        return await asked(network, server, timeout=600, frozen=True)

    answer, seconds = run_fake(main)
    assert isinstance(answer, Unreachable)
    assert seconds == pytest.approx(RATE_SECONDS)


def test_a_request_waits_out_a_short_partition():
    network = MemoryNetwork(1, patience=20)

    async def main():
        server = served(network)
        client = Peer(network.transport("client"), seed=1)
        async with running(server, client), anyio.create_task_group() as tasks:

            async def part_and_heal() -> None:
                network.partition(["server"], ["client"])
                await anyio.sleep(5)
                network.heal()

            stream = await network.transports["client"].open("server", rpc.PROTOCOL)
            tasks.start_soon(part_and_heal)
            await anyio.sleep(0.001)
            assert await rpc.ask(stream, "echo", b"hi") == b"client:hi"
            tasks.cancel_scope.cancel()

    run_fake(main)


def test_a_killed_peer_fails_a_request_at_once():
    network = MemoryNetwork(1)
    server = served(network, handler=sleep_long)

    async def main():
        client = Peer(network.transport("client"), seed=1)
        async with running(server, client), anyio.create_task_group() as tasks:

            async def kill() -> None:
                await anyio.sleep(3)
                network.kill("server")

            tasks.start_soon(kill)
            start = anyio.current_time()
            with pytest.raises(Unreachable):
                await client.request("server", "echo", b"", timeout=60)
            assert anyio.current_time() - start == pytest.approx(3)
            assert await client.peers() == []
            tasks.cancel_scope.cancel()

    run_fake(main)


def test_requests_beyond_a_peers_share_are_answered_busy():
    async def main():
        network = MemoryNetwork(1)
        server = served(network, handler=sleep_long)
        client = Peer(network.transport("client"), seed=1)
        opened = network.transports["client"].open
        async with running(server, client), anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as many:
                for _ in range(PER_PEER):
                    many.start_soon(
                        rpc.ask, await network.transports["client"].open("server", rpc.PROTOCOL), "echo", b""
                    )
                await anyio.sleep(1)
                assert server.handlers.take_busy() == set()
                with pytest.raises(Unreachable, match="too many"):
                    await rpc.ask(await opened("server", rpc.PROTOCOL), "echo", b"")
                assert server.handlers.take_busy() == {"client"}
                assert server.handlers.take_busy() == set(), "each once"
                many.cancel_scope.cancel()
            tasks.cancel_scope.cancel()

    run_fake(main)
