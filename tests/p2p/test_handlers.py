"""The table of methods: registered once, answered at every entrance, and counted on every thread."""

import anyio
import anyio.lowlevel
import pytest

from echo2.p2p.errors import Unreachable
from echo2.p2p.handlers import METHOD_LIMIT, MOST_BUSY_PEERS, MOST_COUNTED_REQUESTS, Handlers


async def echo(peer: str, request: bytes) -> bytes:
    return peer.encode() + b":" + request


async def shout(peer: str, request: bytes) -> bytes:
    return request.upper()


def test_a_method_registered_again_replaces_the_earlier_handler() -> None:
    handlers = Handlers()
    handlers.serve("echo", echo, limit=10)
    handlers.serve("echo", shout, limit=20)
    assert anyio.run(handlers.answer, "echo", "alice", b"hi") == b"HI"
    assert handlers.methods["echo"].limit == 20


def test_a_method_name_over_the_limit_is_refused() -> None:
    handlers = Handlers()
    handlers.serve("m" * METHOD_LIMIT, echo, limit=10)
    with pytest.raises(ValueError, match=f"exceeds {METHOD_LIMIT} bytes"):
        handlers.serve("m" * (METHOD_LIMIT + 1), echo, limit=10)


def test_a_request_counts_as_unanswered_until_its_handler_ends() -> None:
    handlers, counts = Handlers(), []

    async def slow(peer: str, request: bytes) -> bytes:
        counts.append((handlers.count_unanswered(["slow"]), handlers.count_unanswered(["plan", "head"])))
        raise Unreachable("not now")

    handlers.serve("slow", slow, limit=10)
    with pytest.raises(Unreachable):
        anyio.run(handlers.answer, "slow", "alice", b"")
    counts.append((handlers.count_unanswered(["slow"]), handlers.count_unanswered(["plan", "head"])))
    assert counts == [(1, 0), (0, 0)]


async def test_a_few_peers_with_many_requests_make_no_crowd() -> None:
    handlers, answer = Handlers(), anyio.Event()

    async def slow(peer: str, request: bytes) -> bytes:
        await answer.wait()
        return b""

    handlers.serve("slow", slow, limit=10)
    async with anyio.create_task_group() as tasks:
        for peer in (*["alice"] * 30, *["bob"] * 30, "carol"):
            tasks.start_soon(handlers.answer, "slow", peer, b"")
        await anyio.lowlevel.checkpoint()
        assert handlers.count_unanswered(["slow"]) == 2 * MOST_COUNTED_REQUESTS + 1
        answer.set()
    assert handlers.count_unanswered(["slow"]) == 0


def test_requests_at_an_entrance_on_another_thread_are_counted_here_too() -> None:
    handlers, counts = Handlers(), []

    async def slow(peer: str, request: bytes) -> bytes:
        counts.append((handlers.count_unanswered(["slow"]), elsewhere.count_unanswered(["slow"])))
        return b""

    handlers.serve("slow", slow, limit=10)
    elsewhere = handlers.across(lambda handler: handler)
    anyio.run(elsewhere.answer, "slow", "alice", b"")
    anyio.run(handlers.answer, "slow", "alice", b"")
    assert counts == [(1, 1), (1, 0)], "the other table counts its own requests alone"
    assert elsewhere.methods["slow"].limit == 10


def test_peers_that_were_answered_busy_are_told_once_those_of_other_threads_too() -> None:
    handlers = Handlers()
    across = handlers.across(lambda handler: handler)
    handlers.note_busy("alice")
    across.note_busy("bob")
    across.note_busy("bob")
    assert handlers.take_busy() == {"alice", "bob"}
    for number in range(2 * MOST_BUSY_PEERS):
        handlers.note_busy(str(number))
    assert len(handlers.take_busy()) == MOST_BUSY_PEERS
    assert handlers.take_busy() == set()
