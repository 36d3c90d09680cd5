"""Damaged messages under every method, raw streams, and false gossip, to the coordinator and to a node."""

import logging
import random
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from benchmarks.memory_network.transport import MemoryTransport
from echo2.p2p.discovery.messages import ReachableRequest
from echo2.p2p.envelope import seal
from echo2.p2p.errors import P2PError
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.peer import rpc
from echo2.p2p.peer.gossip import GossipRequest
from echo2.p2p.peer.peer import Peer
from echo2.p2p.swarm import exchange
from echo2.protocol.appeals import AppealRequest
from echo2.protocol.broadcast_messages import Acknowledgement, PlanRequest, PlanResponse
from echo2.protocol.leases import LeaseReport, LeaseRequest, Rollout, Segment, Submission, VerdictsRequest
from echo2.protocol.ledger_heads import LedgerRequest
from echo2.protocol.market import MarketRequest, PayeeRequest
from echo2.protocol.methods import METHODS, SEALED
from echo2.protocol.requests import DocumentsRequest, Hello, Request
from echo2.protocol.steps import StepRequest
from echo2.protocol.versions import HeadRequest
from tests.support.clock import run_fake
from tests.support.fake_coordinator import until
from tests.support.swarm import Swarm, accepted, make_swarm, step, wall, working

ODD: list[Any] = [
    None, True, 0, -1, 2**53 - 1, 2**53, 2**64 - 1, -(2**63), 0.0, float("nan"), "", "\0", "é" * 300, b"", bytes(16),
    b"\xff" * 32, [], {}, [[]] * 1100, {"a": {"b": [None]}}, msgspec.msgpack.Ext(5, b"abc"),
]  # fmt: skip


def mutated(value: Any, rng: random.Random) -> Any:
    """Return a message, as builtins, with one part replaced, left out, repeated or added."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        changed = {**value, key: mutated(value[key], rng)}
        if rng.random() < 0.1:
            del changed[key]
        return changed
    if isinstance(value, list) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        return [*value[:at], mutated(value[at], rng), *value[at + 1 :]] * rng.choice([1, 1, 1, 300])
    return rng.choice(ODD)


def damaged(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return rng.choice([data[:at], data[:at] + rng.randbytes(3) + data[at + 3 :], data[:at] + data[at + 1 :]])


def examples(peer: str) -> dict[str, msgspec.Struct | None]:
    """Return a well-formed message for each method, of made-up content. None: its request is empty."""
    lease, root = bytes(16), bytes(32)
    rollout = Rollout(
        tokens=[2, 3], turns=[2], logprobs=bytes(8), segments=[Segment(version=0, root=root, first=0)]
    )  # fmt: skip
    return {
        "hello": Hello(
            protocols=(1, 1),
            software="x",
            name="x",
            engine="bigram/float32/cpu",
            device="x",
            tasks=[],
            record=b"x",
            after=[bytes(16)],
            disputes=True,
            team="x",
        ),
        "lease": LeaseRequest(nonce=lease, era=1, version=0, root=root, engine="bigram/float32/cpu"),
        "submit": Submission(lease=lease, era=1, version=0, root=root, rollouts=[rollout, rollout]),
        "step": StepRequest(lease=lease, sample=0, turn_number=0, tokens=[2, 3]),
        "appeal": AppealRequest(lease=lease, ask=True),
        "market": MarketRequest(epoch=1, sealed=root, ask=10**8, salt=lease),
        "payee": PayeeRequest(account="somebody@example.org"),
        "ledger": LedgerRequest(after=0, entries=[1, 2], size=2),
        "verdicts": None,
        "rank": None,
        "acknowledge": Acknowledgement(era=1, version=0, heard=3, complete=2, applied=1),
        "plan": PlanRequest(uplink=1, failed=[peer]),
        "follow": PlanResponse(parents=[peer], records=[b"x"]),
        "head": HeadRequest(root_serial=0),
        "documents": DocumentsRequest(hashes=[root]),
        "remake": DocumentsRequest(hashes=[root]),
        "reachable": ReachableRequest(ports=[4001]),
        "gossip": GossipRequest(topic="x", data=b"x"),
    }


class Vandal:
    """A peer that sends garbage. `rng`: chooses it. `answers`: by method, those that it got."""

    def __init__(self, swarm: Swarm, seed: int) -> None:
        self.rng, self.run = random.Random(seed), swarm.run
        self.key = generate_key()
        self.answers: Counter[str] = Counter()
        self.transport: MemoryTransport = swarm.network.transport("vandal")
        self.peer = Peer(self.transport, seed=seed)

    def message(self, method: str, target: str) -> bytes:
        """Return a damaged message for a method; that of a sealed one is damaged inside or outside its envelope."""
        example = msgspec.to_builtins(examples(target)[method], builtin_types=(bytes,))
        body = msgspec.msgpack.encode(mutated(example, self.rng) if example else self.rng.randbytes(8))
        if method not in [one.name for one in SEALED]:
            return damaged(body, self.rng) if self.rng.random() < 0.3 else body
        request: Any = msgspec.to_builtins(
            Request(
                recipient=public_bytes(self.run.keys.channel), id=self.rng.randbytes(16), method=method,
                expires=int(wall() * 1000) + 60_000, body=body,
                leases=LeaseReport(waiting=[bytes(16)], returned=[bytes(16)]),
                verdicts=VerdictsRequest(leases=[bytes(16)]), instance=bytes(16),
            ),
            builtin_types=(bytes,),
        )  # fmt: skip
        if self.rng.random() < 0.3:
            request = mutated(request, self.rng)
        sealed = seal("request", self.run.id, msgspec.msgpack.encode(request), self.key)
        return damaged(sealed, self.rng) if self.rng.random() < 0.1 else sealed

    async def request(self, target: str) -> None:
        """Send one damaged request; any answer will do."""
        method = self.rng.choice([one.name for one in METHODS])
        try:
            await self.peer.request(target, method, self.message(method, target), timeout=2)
            self.answers[method] += 1
        except P2PError:
            return

    async def stream(self, target: str) -> None:
        """Send frames of garbage under one of the protocols, or leave a stream open in its middle."""
        try:
            stream = await self.transport.open(target, self.rng.choice([rpc.PROTOCOL, exchange.PROTOCOL]))
            for _ in range(self.rng.randrange(4)):
                await stream.send(self.rng.choice([b"", b"lease", b"nothing", self.rng.randbytes(60)]))
            if self.rng.random() < 0.5:
                await stream.reset()
        except P2PError:
            return

    async def gossip(self) -> None:
        topic = f"echo2/{self.run.id.hex()}/head"
        await self.peer.publish(topic, self.rng.choice([b"", b"\xc1", self.rng.randbytes(200)]))


def test_every_method_has_an_example_to_damage() -> None:
    assert examples("x").keys() == {one.name for one in METHODS}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
def test_garbage_under_every_method_harms_neither_coordinator_nor_nodes(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No handler meets an error that it does not expect, no slot stays taken, and work goes on."""

    async def main() -> None:
        swarm = make_swarm(tmp_path, steps=10**6)
        async with swarm.coordinating() as coordinator:
            node = swarm.node("alice")
            async with working(node):
                await until(lambda: accepted(node) >= 2)
                vandal = Vandal(swarm, seed)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(vandal.peer.run)
                    await vandal.peer.ready()
                    for _ in range(50):
                        for target in (swarm.run.peer_id, node.peer_id):
                            await vandal.peer.dial([f"/memory/0/p2p/{target}"])
                            async with anyio.create_task_group() as wave:
                                for _ in range(4):
                                    wave.start_soon(vandal.request, target)
                                wave.start_soon(vandal.stream, target)
                        await vandal.gossip()
                    tasks.cancel_scope.cancel()
                assert min(vandal.answers[method.name] for method in SEALED) > 1, "a slot stays taken"
                before, done = step(coordinator), accepted(node)
                await until(lambda: step(coordinator) > before + 1 and accepted(node) > done + 1)

    with caplog.at_level(logging.ERROR):
        run_fake(main)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
