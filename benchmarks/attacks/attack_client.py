"""A client that speaks the real protocol over real libp2p with the real engine, so that one part can be altered.

It works honestly under the version that its lease names. Snapshots are taken from the coordinator's disk instead of
being fetched: how they travel is not the point here.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.attacks.groups import submission_of
from benchmarks.plays import direct
from echo2.engines.engine import Job, Sample, dtype_named
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.discovery.peer_records import RecordIssuer
from echo2.p2p.envelope import decode_unverified, seal
from echo2.p2p.network import Rpc
from echo2.p2p.wire_types import decode, encode  # fmt: skip
from echo2.protocol.authority import Root, RunSpec, TaskReference  # fmt: skip
from echo2.protocol.engine_classes import parts  # fmt: skip
from echo2.protocol.leases import (  # fmt: skip
    Lease,
    LeaseRequest,
    Receipt,
    Submission,
    VerdictsRequest,
)
from echo2.protocol.numbers import SPOKEN_NUMBERS  # fmt: skip
from echo2.protocol.requests import Hello, Request, Response, Welcome  # fmt: skip
from echo2.protocol.versions import Head, HeadRequest, HeadResponse  # fmt: skip
from echo2.weights.shown_ranges import shown_of
from echo2.weights.store import snapshot_name

ENGINE: Final = "transformers/float32/cpu"
PATIENCE: Final = 240.0
"""Seconds that a lease or a verdict may take: on a busy machine a start of torch takes up to forty."""
_WAITING: Final = ("no-room", "newer-version", "stale-version")
"""Refusals after which a lease is requested again."""


class AttackRefused(Exception):
    """The coordinator's refusal."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Target:
    """The coordinator. `invite`: its text. `model`, `snapshots`: folders of its model and of its versions."""

    invite: str
    model: Path
    snapshots: Path


class Client:
    """A key pair, a connection, and an engine. `peer`: the coordinator's id. `kept`: a lease that is still open after
    a forgery: a new key gets no second one meanwhile."""

    def __init__(
        self, target: Target, network: Rpc, key: Ed25519PrivateKey, peer: str, engine_class: str = ENGINE
    ) -> None:
        from echo2.engines.transformers.engine import TransformersEngine

        self.target, self.network, self.peer, self.key = target, network, peer, key
        self.invite = Invite.from_text(target.invite)
        self.engine_class = engine_class
        self.engine = TransformersEngine("cpu", dtype_named(parts(engine_class)[1]) or "float32")
        self.channel = bytes(32)
        self.spec: RunSpec | None = None
        self.kept: Lease | None = None

    # --- the protocol, as a node speaks it ---------------------------------------------------------------------------

    def sealed(self, method: str, body: bytes, *, key: Ed25519PrivateKey | None = None, **changes: Any) -> bytes:
        fields: dict[str, Any] = {
            "recipient": self.channel, "id": os.urandom(16), "method": method, "body": body,
            "expires": int(time.time() * 1000) + 60_000,
        }  # fmt: skip
        return seal("request", self.invite.run, encode(Request(**fields | changes)), key or self.key)

    async def send(self, method: str, sealed: bytes) -> bytes:
        """The answer's body. Raises `AttackRefused`."""
        body = (await self.exchange(method, sealed)).body
        assert body is not None
        return body

    async def exchange(self, method: str, sealed: bytes) -> Response:
        """Return the answer. Raises `AttackRefused`."""
        answer = decode(await self.network.request(self.peer, method, sealed, timeout=30), Response)
        if answer.refusal is not None:
            raise AttackRefused(answer.refusal.code)
        return answer

    async def hello(self) -> None:
        greeting = Hello(
            protocols=SPOKEN_NUMBERS, software="redteam/1", name="redteam", engine=self.engine_class, device="cpu",
            tasks=[TaskReference(name="reverse", version=1)],
            record=RecordIssuer(self.key, self.invite.run).issue([], int(time.time() * 1000)),
        )  # fmt: skip
        welcome = decode(await self.send("hello", self.sealed("hello", encode(greeting))), Welcome)
        self.channel = decode(decode_unverified(welcome.roots[-1]).payload, Root).roles["channel"].keys[0]
        self.spec = decode(decode_unverified(welcome.runspec).payload, RunSpec)

    async def newest(self) -> tuple[Head, Path]:
        """The newest Head whose version's snapshot is here, and that snapshot."""
        with anyio.fail_after(PATIENCE):
            while True:
                asked = await self.network.request(self.peer, "head", encode(HeadRequest()), timeout=30)
                sealed = decode(asked, HeadResponse).head
                assert sealed is not None
                head = decode(decode_unverified(sealed).payload, Head)
                for path in self.target.snapshots.glob(f"{head.version}-*.safetensors"):
                    return head, path
                await anyio.sleep(0.05)  # another process writes it

    async def ask(self, **changes: Any) -> LeaseRequest:
        """A question for a lease of the newest version, with changes."""
        head, path = await self.newest()
        fields: dict[str, Any] = {
            "nonce": os.urandom(16), "era": head.era, "version": head.version,
            "engine": self.engine_class,
            "root": bytes.fromhex(path.stem.rpartition("-")[2]),
        }  # fmt: skip
        return LeaseRequest(**fields | changes)

    async def lease(self) -> Lease:
        """The lease that was kept, or one of the newest version, asked for until there is room."""
        if self.kept is not None:
            kept, self.kept = self.kept, None
            return kept
        with anyio.fail_after(PATIENCE):
            while True:
                try:
                    sealed = await self.send("lease", self.sealed("lease", encode(await self.ask())))
                    return decode(decode_unverified(sealed).payload, Lease)
                except AttackRefused as refused:
                    if refused.code not in _WAITING:
                        raise
                    await anyio.sleep(0.3)

    def snapshot(self, lease: Lease) -> Path:
        return self.target.snapshots / snapshot_name(lease.version, lease.root)

    def generate(self, job: Job, snapshot: Path) -> list[Sample]:
        self.engine.load(self.target.model, snapshot)
        return direct.generate(self.engine, job)

    def work(self, lease: Lease) -> Submission:
        """Return the submission of an honest node."""
        ranges = shown_of(self.snapshot(lease), lease.id) if lease.ranges_asked else None
        honest = self.tagged(lease, self.generate(self.job(lease), self.snapshot(lease)))
        return msgspec.structs.replace(honest, ranges=ranges)

    def job(self, lease: Lease) -> Job:
        """Return the engine's job for a lease."""
        assert self.spec is not None
        return Job(
            prompt=lease.prompt, seeds=lease.seeds, limit=lease.limit, eos=self.spec.eos,
            other_ends=self.spec.other_ends, task=lease.task, task_version=lease.task_version, split="train",
            index=lease.index, temperature=self.spec.temperature,
        )  # fmt: skip

    def tagged(self, lease: Lease, samples: list[Sample]) -> Submission:
        return submission_of(lease, samples)

    async def submit(self, submission: Submission) -> bytes:
        return await self.send("submit", self.sealed("submit", encode(submission)))

    async def receipt(self, lease: bytes) -> bytes | None:
        """Return the sealed Receipt of a lease; None: there is none yet."""
        asked = self.sealed("verdicts", b"", verdicts=VerdictsRequest(leases=[lease]))
        verdicts = (await self.exchange("verdicts", asked)).verdicts
        return None if verdicts is None else verdicts.receipts[0]

    async def verdict(self, submission: Submission) -> str:
        """Submit; the code of the Receipt that comes sooner or later."""
        await self.submit(submission)
        with anyio.fail_after(PATIENCE):
            while (receipt := await self.receipt(submission.lease)) is None:  # noqa: ASYNC110 - another process
                await anyio.sleep(0.1)
        return decode(decode_unverified(receipt).payload, Receipt).code
