"""Measure the CPU of a `step` round trip, at both ends together, without the environment's own time.

Node and coordinator are in this process, each on its own libp2p peer, and talk over loopback. The node's end is what
node/rollouts/served_groups.py does around a turn: it stores the turn, seals and sends it, decodes the answer, and
stores it. The coordinator's end is its daemon: it checks the signature, writes the turn, passes it to the environment's
process over the real pipe, and writes the answer. The environment's process is not counted.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.attacks.light_node import lease_of, opened, terms_of
from benchmarks.flood.engine import StandInScorer
from benchmarks.load.bare import HeldLearner, until
from benchmarks.load.folder import make_run
from benchmarks.load.light import LightNode
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.run.task_processes import environment_at
from echo2.coordinator.training.model_processes import Models
from echo2.engines.engine import SampledTurn
from echo2.node.rollouts.turn_store import TurnStore
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.network import Network
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease
from echo2.protocol.methods import HELLO, LEASE, STEP
from echo2.protocol.refusals import STEP_PENDING
from echo2.protocol.requests import Hello, Refusal, Request
from echo2.protocol.steps import StepRequest, StepResponse
from echo2.protocol.task_kinds import SERVED_KIND
from echo2.tasks.tokenizer import EOS
from echo2.weights.store import Store

GROUP: Final = 8
AT_ONCE: Final = 8
TURN: Final = (2, 3, EOS)
"""A turn's tokens: a guess of two digits."""
SECTIONS: Final[dict[str, dict[str, Any]]] = {
    "run": {
        "task": "guess",
        "kind": SERVED_KIND,
        "group_size": GROUP,
        "limit": 64,
        "batch_groups": 200,
        "staleness": 8,
    },
    "leases": {"minimum_seconds": 600.0, "per_node": 256},
    "network": {"listen": ("/ip4/127.0.0.1/tcp/0",), "plan": False, "mdns": False},
}


class _Asker:
    """A node's end. `pending`: answers that came by a second request."""

    def __init__(self, node: LightNode, peer: ThreadedPeer, coordinator: str, store: TurnStore) -> None:
        self._node, self._peer, self._coordinator, self._store = node, peer, coordinator, store
        self.pending = 0

    async def ask(self, method: str, body: bytes) -> bytes | Refusal:
        sealed = self._node.sealed(method, body)
        return opened(await self._peer.request(self._coordinator, method, sealed, timeout=30.0))

    async def lease(self) -> Lease:
        """Request a lease, until there is one. Raises RuntimeError where waiting brings none."""
        while True:
            request = decode(_body(self._node.ask()), Request)
            answer = await self.ask(LEASE.name, request.body)
            if isinstance(answer, bytes):
                return lease_of(answer)
            if answer.code in ("too-many-leases", "expiries"):
                raise RuntimeError(answer.sentence)
            await asyncio.sleep((answer.retry_after or 1_000) / 1_000)

    async def play(self, lease: Lease, sample: int) -> int:
        """Play an episode; return its sampled turns."""
        turn_number = 0
        while True:
            sampled_turn = SampledTurn(
                served=lease.id, sample=sample, turn_number=turn_number, tokens=list(TURN), logprobs=[-0.5] * len(TURN)
            )
            self._store.put_turn(sampled_turn)
            answer = await self._answer(sampled_turn)
            self._store.put_answer(sampled_turn, answer.given)
            turn_number += 2
            if answer.given is None:
                return turn_number // 2

    async def _answer(self, one: SampledTurn) -> StepResponse:
        step = StepRequest(lease=one.served, sample=one.sample, turn_number=one.turn_number, tokens=one.tokens)
        while True:
            answer = await self.ask(STEP.name, encode(step))
            if isinstance(answer, bytes):
                return STEP.answer.decode(answer)
            if answer.code != STEP_PENDING:
                raise RuntimeError(answer.sentence)
            self.pending += 1
            await asyncio.sleep((answer.retry_after or 0) / 1_000)


def _body(sealed: bytes) -> bytes:
    from echo2.p2p.envelope import decode_unverified

    return decode_unverified(sealed).payload


async def round_trips(folder: Path, episodes: int) -> tuple[float, int, int]:
    """Play episodes, `AT_ONCE` at a time. Return (CPU seconds of both ends, sampled turns, answers that came late)."""
    run = await asyncio.to_thread(make_run, folder / "run", now=time.time_ns() // 1_000_000, **SECTIONS)
    host = environment_at(run.task, run.config.environment, lambda fault: None)
    await host.open()
    with Store(run.folder.store) as store, Database.open(run.folder.database) as database:
        network = ThreadedPeer(run.keys.network, run.config.network.listen)
        models = Models(HeldLearner(), [StandInScorer(0.0)])
        coordinator = Coordinator(run, Network.of(network), models, store=store, database=database, hosts=[host])
        node_peer = ThreadedPeer(generate_key(), [])
        tasks = [asyncio.create_task(coordinator.run()), asyncio.create_task(node_peer.run())]
        try:
            await network.ready()
            await node_peer.ready()
            await until(lambda: coordinator.publisher.latest and coordinator.group_service.progress)
            return await _measured(folder, coordinator, run, network, node_peer, episodes)
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await host.close()


async def _measured(
    folder: Path, coordinator: Coordinator, run: Any, network: ThreadedPeer, node_peer: ThreadedPeer, episodes: int
) -> tuple[float, int, int]:
    latest = coordinator.publisher.latest
    assert latest is not None
    node = LightNode(terms_of(run, latest.version, latest.root, 4))
    peer = await node_peer.dial(await network.addresses())
    store = TurnStore(folder / "turns.sqlite")
    asker = _Asker(node, node_peer, peer, store)
    hello = decode(decode(_body(node.hello()), Request).body, Hello)
    await asker.ask(HELLO.name, encode(msgspec.structs.replace(hello, kinds=[SERVED_KIND])))
    coordinator.group_service.accounts.remark(public_bytes(node.key), "node.vouched", "", time.time_ns() // 1_000_000)
    leases = [await asker.lease() for _ in range(-(-episodes // GROUP))]
    todo = [(lease, sample) for lease in leases for sample in range(GROUP)]
    await _play(asker, todo[:GROUP])
    began = time.process_time()
    turns = await _play(asker, todo[GROUP:])
    spent = time.process_time() - began
    store.close()
    return spent, turns, asker.pending


async def _play(asker: _Asker, todo: Sequence[tuple[Lease, int]]) -> int:
    """Play these episodes; return their sampled turns."""
    waiting, turns = iter(todo), 0

    async def each() -> None:
        nonlocal turns
        for lease, sample in waiting:
            played = await asker.play(lease, sample)
            turns += played

    await asyncio.gather(*(each() for _ in range(AT_ONCE)))
    return turns
