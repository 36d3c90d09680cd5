"""A node without engine and network: it signs requests with the product's own types."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.run.setup import Run
from echo2.p2p.discovery.messages import PeerRecord
from echo2.p2p.envelope import decode_unverified, seal
from echo2.p2p.identity import public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import TaskReference
from echo2.protocol.engine_classes import parts
from echo2.protocol.leases import Lease, LeaseRequest, VerdictsRequest
from echo2.protocol.numbers import SPOKEN_NUMBERS
from echo2.protocol.requests import Hello, Refusal, Request, Response


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a light node knows about a run and its newest version. `recipient`: public key of the role
    channel. `tokens`: of each rollout that it makes. `engine`: its engine class."""

    run: bytes
    recipient: bytes
    task: str
    task_version: int
    era: int
    version: int
    root: bytes
    tokens: int = 4
    engine: str = "transformers/float32/cpu"


def terms_of(run: Run, version: int, root: bytes, tokens: int, era: int = 1) -> Terms:
    """Return the facts about the run, with this version as the newest. The engine is of the first admitted class."""
    reference = run.runspec.tasks[0]
    named = parts(run.runspec.engines[0])
    engine = "/".join([*named, *["", run.runspec.compute_dtype, "cpu"][len(named) :]])
    return Terms(
        run=run.id,
        recipient=public_bytes(run.keys.channel),
        task=reference.name,
        task_version=reference.version,
        era=era,
        version=version,
        root=root,
        tokens=tokens,
        engine=engine,
    )


@dataclass
class LightNode:
    """A node's key and its sealed requests, without a connection. `clock`: ms since the Unix epoch."""

    terms: Terms
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    def sealed(self, method: str, body: bytes, verdicts: VerdictsRequest | None = None) -> bytes:
        """Seal a request. `verdicts`: a verdicts request beside it."""
        request = Request(
            recipient=self.terms.recipient, id=os.urandom(16), method=method, expires=self.clock() + 60_000, body=body,
            verdicts=verdicts,
        )  # fmt: skip
        return seal("request", self.terms.run, encode(request), self.key)

    def hello(self) -> bytes:
        """Seal a hello."""
        terms, now = self.terms, self.clock()
        record = seal("peer", terms.run, encode(PeerRecord(addresses=[], issued=now)), self.key)
        name = f"light-{public_bytes(self.key)[:4].hex()}"
        tasks = [TaskReference(name=terms.task, version=terms.task_version)]
        hello = Hello(
            protocols=SPOKEN_NUMBERS, software="echo2 load", name=name, engine=terms.engine, device="none", tasks=tasks,
            record=record,
        )  # fmt: skip
        return self.sealed("hello", encode(hello))

    def ask(self, verdicts: VerdictsRequest | None = None) -> bytes:
        """Seal a request for a lease under the version of `terms`."""
        terms = self.terms
        ask = LeaseRequest(
            nonce=os.urandom(16), era=terms.era, version=terms.version, root=terms.root, engine=terms.engine
        )
        return self.sealed("lease", encode(ask), verdicts)

    def verdicts(self, leases: list[bytes], confirmed: list[bytes]) -> bytes:
        """Seal a request for the verdicts of `leases` that confirms the receipts of `confirmed`."""
        return self.sealed("verdicts", b"", VerdictsRequest(leases=leases, confirmed=confirmed))


def opened(data: bytes) -> bytes | Refusal:
    """Return the body of an encoded answer, or the refusal."""
    return result(decode(data, Response))


def result(answer: Response) -> bytes | Refusal:
    """Return the body of an answer, or the refusal."""
    if answer.refusal is not None:
        return answer.refusal
    assert answer.body is not None
    return answer.body


def lease_of(body: bytes) -> Lease:
    """Return the lease in a sealed document without checking its signature."""
    return decode(decode_unverified(body).payload, Lease)
