"""Many light nodes in one process, over a few real libp2p connections: `python -m benchmarks.load.crowd`.

A request carries its node's signature, so that nodes may share a connection. The first line on stdin is a `Crowd`.
Each later line is an order:

    {"nodes": N}                  introduce N nodes
    {"seconds": S}                let them work for S seconds
    {"idle": S, "settling": T}    let them request leases for S seconds, as often as the refusals permit; count after T

Each line is answered with a line: the first with {"ready": true}, an order with counts.

1. The offered load is a number of nodes: each makes a group every `PERIOD` seconds, and starts its next one late where
   the last one took longer. So each node waits only for its own groups, as volunteers do.
2. A node requests a lease and submits, and repeats each request until it is answered. Beside both it requests verdicts
   and confirms receipts, as node/rollouts/outbox_relay.py does.
3. A node that is refused because its version is too old requests the newest Head and its Version; all nodes then hold
   that version.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.attacks.light_node import Terms, lease_of, opened, result
from benchmarks.load.light import LightNode
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.errors import P2PError
from echo2.p2p.libp2p.transport import LibP2PTransport
from echo2.p2p.peer.peer import Peer
from echo2.p2p.wire_types import decode, encode
from echo2.protocol import refusals
from echo2.protocol.leases import Lease, VerdictsRequest, VerdictsResponse
from echo2.protocol.requests import DocumentsRequest, DocumentsResponse, Refusal, Response
from echo2.protocol.versions import Head, HeadRequest, HeadResponse
from echo2.weights.documents import Version

PERIOD: Final = 8.0
_TIMEOUT: Final = 15.0
_SHORTEST: Final = 0.5  # seconds until an unanswered request is repeated the first time; then 1.5 times as long
_LONGEST: Final = 8.0
_BATCH: Final = 256  # leases in one request for verdicts


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the process, its first line on stdin. `addresses`: of the coordinator. `connections`:
    libp2p peers, each of which may send 100 requests per second."""

    terms: Terms
    addresses: list[str]
    connections: int = 64


class Fault(Exception):
    """The coordinator sent an unexpected answer."""


class Policy:
    """The version that all nodes hold."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._lock = trio.Lock()

    async def renew(self, peer: Peer, coordinator: str, known: int) -> None:
        """Fetch the newest version, unless that has happened since version `known` was current (rule 3)."""
        async with self._lock:
            if self.terms.version != known:
                return
            answer = decode(
                await peer.request(coordinator, "head", encode(HeadRequest()), timeout=_TIMEOUT), HeadResponse
            )
            if answer.head is None:
                return
            head = decode(decode_unverified(answer.head).payload, Head)
            ask = encode(DocumentsRequest(hashes=[head.version_hash]))
            (sealed,) = decode(
                await peer.request(coordinator, "documents", ask, timeout=_TIMEOUT), DocumentsResponse
            ).documents
            if sealed is not None:
                root = Version.from_bytes(decode_unverified(sealed).payload).root
                self.terms = msgspec.structs.replace(self.terms, version=head.version, era=head.era, root=root)


class Member:
    """One light node and the connection it uses. `counts`: of all nodes together."""

    def __init__(self, policy: Policy, peer: Peer, coordinator: str, counts: Counter[str]) -> None:
        self._policy, self._node = policy, LightNode(policy.terms)
        self._peer, self._coordinator, self._counts = peer, coordinator, counts
        self._undecided: list[bytes] = []
        self._unconfirmed: list[bytes] = []

    async def hello(self) -> None:
        """Introduce the node."""
        answer = opened(await self._request("hello", self._node.hello()))
        if not isinstance(answer, bytes):
            raise Fault(f"hello was refused: {answer}")

    async def work(self, first: float) -> None:
        """Make a group every `PERIOD` seconds, the first one at `first`, until cancelled."""
        due = first
        while True:
            await trio.sleep_until(due)
            self._counts["offered"] += 1
            await self._group()
            due = max(due + PERIOD, trio.current_time())

    async def idle(self, first: float, counted: float) -> None:
        """Request a lease as often as the refusals permit, until one is granted or this is cancelled; count the
        refusals from `counted` on."""
        await trio.sleep_until(first)
        while True:
            try:
                answer = opened(await self._request("lease", self._node.ask()))
            except P2PError:
                self._counts["unanswered"] += 1
                await trio.sleep(1.0)
                continue
            if not isinstance(answer, Refusal):
                return
            if answer.retry_after is None:
                raise Fault(f"a lease was refused for good: {answer.sentence}")
            if trio.current_time() >= counted:
                self._counts["asks"] += 1
                self._counts["told"] += answer.retry_after
            await trio.sleep(answer.retry_after / 1000)

    async def _group(self) -> None:
        lease = await self._lease()
        answer = await self._surely("submit", partial(self._node.submit, lease))
        if isinstance(answer, Refusal):
            self._counts[f"submit: {answer.code}"] += 1
        else:
            self._undecided.append(lease.id)

    async def _lease(self) -> Lease:
        while True:
            self._node.terms = self._policy.terms
            answer = await self._surely("lease", self._node.ask)
            if isinstance(answer, bytes):
                return lease_of(answer)
            self._counts[f"lease: {answer.code}"] += 1
            if answer.retry_after is None:
                raise Fault(f"a lease was refused for good: {answer.sentence}")
            if refusals.then(answer) == "other version":
                await self._policy.renew(self._peer, self._coordinator, self._node.terms.version)
            await trio.sleep(answer.retry_after / 1000)

    async def _surely(self, method: str, request_of: Callable[[VerdictsRequest], bytes]) -> bytes | Refusal:
        """Repeat a request, after ever longer pauses, until it is answered; with a verdicts request (rule 2)."""
        wait = _SHORTEST
        while True:
            ask = VerdictsRequest(leases=self._undecided[:_BATCH], confirmed=self._unconfirmed[:_BATCH])
            try:
                answer = decode(await self._request(method, request_of(ask)), Response)
            except P2PError:
                self._counts["unanswered"] += 1
                await trio.sleep(wait * random.uniform(0.7, 1.0))
                wait = min(_LONGEST, wait * 1.5)
            else:
                if answer.verdicts is not None:
                    self._take(ask, answer.verdicts)
                return result(answer)

    def _take(self, ask: VerdictsRequest, answer: VerdictsResponse) -> None:
        decided = [lease for lease, receipt in zip(ask.leases, answer.receipts, strict=True) if receipt is not None]
        self._counts["decided"] += len(decided)
        self._unconfirmed = [lease for lease in self._unconfirmed if lease not in ask.confirmed] + decided
        self._undecided = [lease for lease in self._undecided if lease not in decided]

    async def _request(self, method: str, data: bytes) -> bytes:
        self._counts["requests"] += 1
        return await self._peer.request(self._coordinator, method, data, timeout=_TIMEOUT)


async def _connected(crowd: Crowd, nursery: trio.Nursery) -> list[tuple[Peer, str]]:
    peers = []
    for number in range(crowd.connections):
        peer = Peer(LibP2PTransport(Ed25519PrivateKey.generate(), [], patience=20.0), seed=number)
        nursery.start_soon(peer.run)
        await peer.ready()
        peers.append((peer, await peer.dial(crowd.addresses)))
    return peers


async def _introduced(crowd: Crowd, peers: list[tuple[Peer, str]], count: int, counts: Counter[str]) -> list[Member]:
    policy = Policy(crowd.terms)
    members = [Member(policy, *peers[number % len(peers)], counts) for number in range(count)]
    limit = trio.CapacityLimiter(len(peers))

    async def one(member: Member) -> None:
        async with limit:
            await member.hello()

    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(one, member)
    return members


async def _for(
    seconds: float, members: list[Member], task: Callable[[Member, float], Awaitable[None]], spread: float
) -> None:
    """Run `task` for each member until `seconds` have passed; the starts are spread over `spread` seconds."""
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for place, member in enumerate(members):
                nursery.start_soon(task, member, trio.current_time() + spread * place / len(members))


async def _serve() -> None:
    crowd = msgspec.json.decode(sys.stdin.readline(), type=Crowd)
    counts: Counter[str] = Counter()
    async with trio.open_nursery() as nursery:
        peers = await _connected(crowd, nursery)
        _say(ready=True)
        members: list[Member] = []
        while order_text := await trio.to_thread.run_sync(sys.stdin.readline):
            order: dict[str, Any] = json.loads(order_text)
            if "nodes" in order:
                members = await _introduced(crowd, peers, order["nodes"], counts)
            elif "seconds" in order:
                await _for(order["seconds"], members, lambda one, at: one.work(at), PERIOD)
            else:
                settled = trio.current_time() + order["settling"]
                await _for(order["idle"], members, partial(Member.idle, counted=settled), order["settling"] / 2)
            _say(**counts)
            counts.clear()
        nursery.cancel_scope.cancel()


def _say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    trio.run(_serve)
