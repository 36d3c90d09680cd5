"""A key with its requests to the coordinator, for honest nodes and attackers. Several keys may share a connection.

Requests are sealed with the product's own types.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.attacks.light_node import LightNode, Terms, lease_of
from echo2.p2p.errors import P2PError
from echo2.p2p.identity import public_bytes
from echo2.p2p.network import Links, Rpc
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease, Submission, VerdictsRequest
from echo2.protocol.requests import Refusal, Response

_TIMEOUT = 30.0  # seconds
_AGAIN = 1.0
"""Seconds after which an unanswered request is repeated."""


class Asker(Rpc, Links, Protocol):
    """The parts of a network that sending requests needs."""


@dataclass
class Connection:
    """A connection to the coordinator, whose peer id is `to`. `asked`: requests so far; `unanswered`: those that
    failed. `sent`, `received`: bytes of the requests and of their answers."""

    network: Asker
    to: str
    asked: int = 0
    unanswered: int = 0
    sent: int = 0
    received: int = 0

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        """Send one request, as `Rpc` does, and count its bytes. Raises `Unreachable`, `Malformed`."""
        self.asked += 1
        self.sent += len(payload)
        answer = await self.network.request(peer, method, payload, timeout=timeout)
        self.received += len(answer)
        return answer

    async def ask(self, method: str, data: bytes) -> Response:
        """Repeat a request until there is an answer."""
        while True:
            try:
                return decode(await self.request(self.to, method, data, timeout=_TIMEOUT), Response)
            except P2PError:
                self.unanswered += 1
                await anyio.sleep(_AGAIN)


@dataclass
class Key:
    """One identity, derived from `number`. `clock`: ms since the Unix epoch. `given`: number of leases that it got;
    `prompts`: time of sending (ms) and prompt index of each. `taken`: number of its groups that were not refused at
    receipt. `refused`: number of refusals by code. `undecided`: leases whose verdict it has yet to get."""

    connection: Connection
    terms: Terms
    number: int
    clock: Callable[[], int]
    given: int = 0
    prompts: list[tuple[int, int]] = field(default_factory=list)
    taken: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    undecided: list[bytes] = field(default_factory=list)
    _confirmed: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        secret = Ed25519PrivateKey.from_private_bytes(self.number.to_bytes(32, "big"))
        self._light = LightNode(self.terms, clock=self.clock, key=secret)

    @property
    def public(self) -> bytes:
        return public_bytes(self._light.key)

    async def hello(self) -> Refusal | None:
        """Introduce the key; return the refusal, if any."""
        return self._counted(await self.connection.ask("hello", self._light.hello()))

    async def lease(self, terms: Terms) -> Lease | Refusal:
        """Request a lease once, under the version of `terms`, with a verdicts request beside it."""
        self._light.terms = terms
        beside = self._beside()
        answer = await self.connection.ask("lease", self._light.ask(beside))
        self._take(beside, answer)
        refused = self._counted(answer)
        if refused is not None:
            return refused
        assert answer.body is not None
        self.given += 1
        lease = lease_of(answer.body)
        self.prompts.append((lease.sent, lease.index))
        return lease

    async def submit(self, group: Submission) -> Refusal | None:
        """Submit a group, with a verdicts request beside it; return the refusal, if it is refused at receipt."""
        beside = self._beside()
        answer = await self.connection.ask("submit", self._light.sealed("submit", encode(group), beside))
        self._take(beside, answer)
        if (refused := self._counted(answer)) is None:
            self.taken += 1
            self.undecided.append(group.lease)
        return refused

    @property
    def run(self) -> bytes:
        """The run's id."""
        return self.terms.run

    async def request(self, method: str, body: bytes) -> bytes | Refusal:
        """Send the encoded request of a method; return the body of the answer, or the refusal."""
        answer = await self.connection.ask(method, self._light.sealed(method, body))
        refused = self._counted(answer)
        return refused if refused is not None else answer.body or b""

    async def ask_verdicts(self) -> None:
        """Request the verdicts of undecided groups, and confirm receipts."""
        asked = self._beside()
        answer = await self.connection.ask("verdicts", self._light.sealed("verdicts", b"", asked))
        self._counted(answer)
        self._take(asked, answer)

    def sealed(self, method: str, terms: Terms) -> bytes:
        """Seal a request that costs much and contributes nothing: for a lease, or for verdicts of leases that do not
        exist."""
        self._light.terms = terms
        if method == "lease":
            return self._light.ask()
        return self._light.verdicts([os.urandom(16) for _ in range(256)], [])

    def _beside(self) -> VerdictsRequest:
        return VerdictsRequest(leases=self.undecided[:256], confirmed=self._confirmed[:256])

    def _take(self, asked: VerdictsRequest, answer: Response) -> None:
        if answer.verdicts is None:
            return
        receipts = answer.verdicts.receipts
        decided = {lease for lease, receipt in zip(asked.leases, receipts, strict=True) if receipt is not None}
        self._confirmed = [lease for lease in self._confirmed if lease not in asked.confirmed] + sorted(decided)
        self.undecided = [lease for lease in self.undecided if lease not in decided]

    def _counted(self, answer: Response) -> Refusal | None:
        if answer.refusal is not None:
            self.refused[answer.refusal.code] = self.refused.get(answer.refusal.code, 0) + 1
        return answer.refusal
