"""The table of wire methods: each row can be served and called, and the daemons use no other method."""

import re
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.p2p.errors import Malformed, Unreachable
from echo2.p2p.peer.peer import Peer
from echo2.protocol.broadcast_messages import PlanRequest, PlanResponse
from echo2.protocol.methods import EMPTY, FOLLOW, HEAD, METHODS, PLAN, REMAKE, SEALED, Body, Method, message
from echo2.protocol.requests import DocumentsRequest
from echo2.protocol.versions import HeadRequest, HeadResponse
from tests.support.clock import on_fake_clock
from tests.support.peers import running


class Connection:
    """A network that records the registered handlers."""

    def __init__(self) -> None:
        self.served: dict[str, tuple[Any, int]] = {}

    def serve(self, method: str, handler: Any, *, limit: int) -> None:
        self.served[method] = handler, limit


def test_each_name_stands_once_and_a_rank_is_a_sealed_methods() -> None:
    assert len({method.name for method in METHODS}) == len(METHODS)
    assert {method.name for method in METHODS if method.rank} <= {method.name for method in SEALED}


@on_fake_clock
async def test_a_method_sends_its_request_to_a_peer_and_returns_the_answer() -> None:
    async def place(peer: str, ask: PlanRequest) -> PlanResponse:
        return PlanResponse(parents=[peer, *ask.failed])

    network = MemoryNetwork(1)
    one, other = (Peer(network.transport(name), seed=0) for name in ("one", "other"))
    PLAN.serve(one, place)
    async with running(one, other):
        answer = await PLAN.ask(other, "one", PlanRequest(failed=["x"]), timeout=5)
        assert answer == PlanResponse(parents=["other", "x"])
        with pytest.raises(Unreachable):
            await other.request("one", PLAN.name, b"\xc1", timeout=5)


async def test_a_malformed_answer_is_the_peers_fault() -> None:
    class Liar:
        async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
            return b"\xc1"

    with pytest.raises(Malformed, match="PlanResponse"):
        await PLAN.ask(Liar(), "liar", PlanRequest(), timeout=1)
    await REMAKE.ask(Liar(), "liar", DocumentsRequest(hashes=[]), timeout=1)  # an empty answer is not decoded


async def test_a_request_for_a_head_is_answered_within_its_limit_and_refused_where_it_does_not_decode() -> None:
    requests = list[HeadRequest]()

    async def answer(peer: str, ask: HeadRequest) -> HeadResponse:
        requests.append(ask)
        return HeadResponse(head=None)

    connection = Connection()
    HEAD.serve(connection, answer)
    HEAD.serve(connection, answer, limit=HEAD.at_coordinator)
    handler, limit = connection.served["head"]
    assert limit == 1024
    await handler("peer", b"\x80")
    for data in (b"", b"anything"):
        with pytest.raises(Malformed):
            await handler("peer", data)
    assert requests == [HeadRequest()]


async def test_a_new_method_needs_a_row_a_handler_and_a_caller() -> None:
    class Sum(msgspec.Struct):
        values: list[int]

    total = Method("sum", "anyone -> anyone", message(Sum), Body("int", lambda n: b"%d" % n, int), 100)
    connection = Connection()

    async def added(peer: str, asked: Sum) -> int:
        return sum(asked.values)

    total.serve(connection, added)

    class Direct:
        async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
            answer: bytes = await connection.served[method][0]("me", payload)
            return answer

    assert await total.ask(Direct(), "peer", Sum(values=[1, 2]), timeout=1) == 3
    assert (total.slots, connection.served["sum"][1]) == ("other", 100)


async def test_an_empty_answer_is_no_bytes() -> None:
    connection = Connection()

    async def ignore(peer: str, place: PlanResponse) -> None:
        await anyio.lowlevel.checkpoint()

    FOLLOW.serve(connection, ignore)
    assert await connection.served["follow"][0]("peer", EMPTY.encode(None) + b"\x80") == b""


def test_the_daemons_use_only_methods_of_the_table(repository: Path) -> None:
    """A method's name is a literal in the table alone; only the ends of sealed requests pass names on."""
    names = "|".join(method.name for method in METHODS)
    literal = re.compile(rf'\.(?:serve|request|ask|call|tell)\([^)\n]*"(?:{names})"')
    bare = re.compile(r"(?:network|rpc)\.request\(|(?:network|handlers)\.serve\(")
    literals, by_name = [], []
    for package in ("node", "coordinator"):
        for path in (repository / package).rglob("*.py"):
            source = path.read_text()
            literals += [path.name] if literal.search(source) else []
            by_name += [path.name] if bare.search(source) else []
    assert literals == []
    assert sorted(by_name) == ["coordinator_client.py", "former_identity.py", "payment_probe.py", "request_handler.py"]
