"""A volunteer that speaks the real protocol over real libp2p, and lies. It works honestly first, with the real engine
under the version that its lease names; each lie then alters one thing.

A lie is a coroutine function of a `Liar`; it returns the code of the answer that it got. The table says which codes are
right. Snapshots are taken from the coordinator's disk instead of being fetched: how they travel is not the point here.
"""

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engines import direct
from engines.engine import Job, Sample, dtype_named
from engines.messages import float_bytes, floats
from node.rollouts.lease_check import job_of, submission_of
from p2p.discovery.invite import Invite
from p2p.discovery.peer_records import RecordIssuer
from p2p.envelope import Envelope, Signature, decode_unverified, seal
from p2p.errors import P2PError
from p2p.identity import generate_key, public_bytes
from p2p.libp2p.threaded_network import ThreadedPeer
from p2p.wire_types import decode, encode  # fmt: skip
from protocol.authority import Root, RunSpec, TaskReference  # fmt: skip
from protocol.leases import (  # fmt: skip
    Lease,
    LeaseRequest,
    Receipt,
    Submission,
    SubmitResponse,
    VerdictsRequest,
    VerdictsResponse,
)
from protocol.requests import Hello, Request, Response, Welcome  # fmt: skip
from protocol.versions import Head, HeadRequest, HeadResponse  # fmt: skip
from tests.faults.processes import PATIENCE, Coordinator
from tests.support.bigram import nudged
from weights.shown_ranges import shown_of
from weights.snapshot import Snapshot

ENGINE = "transformers/float32/cpu"


class Refused(Exception):
    """The coordinator's refusal."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Liar:
    """A key pair, a connection, and an engine. `kept`: a lease that is still open after a lie: a new key gets no second
    one meanwhile."""

    def __init__(
        self,
        coordinator: Coordinator,
        network: ThreadedPeer,
        key: Ed25519PrivateKey,
        peer: str,
        engine_class: str = ENGINE,
    ) -> None:
        from engines.transformers.engine import TransformersEngine

        self._coordinator, self._network, self._peer, self.key = coordinator, network, peer, key
        self.invite = Invite.from_text(coordinator.invite())
        self.engine_class = engine_class
        self.engine = TransformersEngine("cpu", dtype_named(engine_class.split("/")[1]) or "float32")
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
        """The answer's body. Raises `Refused`."""
        answer = decode(await self._network.request(self._peer, method, sealed, timeout=30), Response)
        if answer.refusal is not None:
            raise Refused(answer.refusal.code)
        assert answer.body is not None
        return answer.body

    async def hello(self) -> None:
        greeting = Hello(
            protocols=(1, 1), software="liar/1", name="liar", engine=self.engine_class, device="cpu",
            tasks=[TaskReference(name="reverse", version=1)],
            record=RecordIssuer(self.key, self.invite.run).issue([], int(time.time() * 1000)),
        )  # fmt: skip
        welcome = decode(await self.send("hello", self.sealed("hello", encode(greeting))), Welcome)
        self.channel = decode(decode_unverified(welcome.roots[-1]).payload, Root).roles["channel"].keys[0]
        self.spec = decode(decode_unverified(welcome.runspec).payload, RunSpec)

    async def newest(self) -> tuple[Head, Path]:
        """The newest Head, and its version's snapshot."""
        answer = decode(
            await self._network.request(self._peer, "head", encode(HeadRequest()), timeout=30), HeadResponse
        )
        assert answer.head is not None
        head = decode(decode_unverified(answer.head).payload, Head)
        (path,) = (self._coordinator.folder.store / "snapshots").glob(f"{head.era}-{head.version}-*.safetensors")
        return head, path

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
                except Refused as refused:
                    if refused.code not in ("no-room", "newer-version", "stale-version"):
                        raise
                    await anyio.sleep(0.3)

    def snapshot(self, lease: Lease) -> Path:
        name = f"{lease.era}-{lease.version}-{lease.root.hex()}.safetensors"
        return self._coordinator.folder.store / "snapshots" / name

    def generate(self, job: Job, snapshot: Path) -> list[Sample]:
        self.engine.load(self._coordinator.folder.model, snapshot)
        return direct.generate(self.engine, job)

    def work(self, lease: Lease) -> Submission:
        """Return the submission of an honest node."""
        ranges = shown_of(self.snapshot(lease), lease.id) if lease.ranges_asked else None
        honest = self.tagged(lease, self.generate(self.job(lease), self.snapshot(lease)))
        return msgspec.structs.replace(honest, ranges=ranges)

    def job(self, lease: Lease) -> Job:
        assert self.spec is not None
        return job_of(lease, self.spec)

    def tagged(self, lease: Lease, samples: list[Sample]) -> Submission:
        return decode(submission_of(lease, samples), Submission)

    async def submit(self, submission: Submission) -> SubmitResponse:
        body = encode(submission)
        return decode(await self.send("submit", self.sealed("submit", body)), SubmitResponse)

    async def verdict(self, submission: Submission) -> str:
        """Submit; the code of the Receipt that comes sooner or later."""
        receipt = (await self.submit(submission)).receipt
        with anyio.fail_after(PATIENCE):
            while receipt is None:
                await anyio.sleep(0.1)
                ask = VerdictsRequest(leases=[submission.lease])
                answer = decode(await self.send("verdicts", self.sealed("verdicts", encode(ask))), VerdictsResponse)
                (receipt,) = answer.receipts
        return decode(decode_unverified(receipt).payload, Receipt).code


@asynccontextmanager
async def liar_at(coordinator: Coordinator, engine_class: str = ENGINE) -> AsyncIterator[Liar]:
    """A stranger with a new key, connected and greeted. `engine_class`: its own."""
    key = generate_key()
    network = ThreadedPeer(key, ["/ip4/127.0.0.1/tcp/0"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(network.run)
        await network.ready()
        peer = await network.dial(Invite.from_text(coordinator.invite()).addresses)
        liar = Liar(coordinator, network, key, peer, engine_class)
        await liar.hello()
        yield liar
        tasks.cancel_scope.cancel()


Lie = Callable[[Liar], Awaitable[str]]


def _group(alter: Callable[[Liar, Lease, Submission], Submission]) -> Lie:
    """A lie in what is submitted for a lease of one's own."""

    async def tell(liar: Liar) -> str:
        lease = await liar.lease()
        try:
            return await liar.verdict(alter(liar, lease, liar.work(lease)))
        except Refused:  # without a receipt: the lease is as it was
            liar.kept = lease
            raise

    return tell


def _asking(**changes: Any) -> Lie:
    """A lie in what is asked for."""

    async def tell(liar: Liar) -> str:
        return await _code(liar.send("lease", liar.sealed("lease", encode(await liar.ask(**changes)))))

    return tell


def _request(**changes: Any) -> Lie:
    """A lie in the request around an honest question."""

    async def tell(liar: Liar) -> str:
        fields = {"method": "lease"} | changes
        sealed = liar.sealed(body=encode(await liar.ask()), **fields)
        return await _code(liar.send("lease", sealed))

    return tell


async def _code(answer: Awaitable[object]) -> str:
    try:
        await answer
    except Refused as refused:
        return refused.code
    return "ok"


def _first_rollout(submission: Submission, **changes: Any) -> Submission:
    first, *others = submission.rollouts
    return msgspec.structs.replace(submission, rollouts=[msgspec.structs.replace(first, **changes), *others])


def _other_token(liar: Liar, lease: Lease, honest: Submission) -> Submission:
    tokens = list(honest.rollouts[0].tokens)
    assert liar.spec is not None
    tokens[0] = next(token for token in range(3, 40) if token not in (tokens[0], liar.spec.eos))
    if len(tokens) == 1:  # it was eos alone: go on to the limit
        tokens = tokens * lease.limit
    logprobs = float_bytes([-1.0] * len(tokens))
    return _first_rollout(honest, tokens=tokens, turns=[len(tokens)], logprobs=logprobs)


def _shifted(by: float) -> Callable[[Liar, Lease, Submission], Submission]:
    def alter(liar: Liar, lease: Lease, honest: Submission) -> Submission:
        return _first_rollout(honest, logprobs=float_bytes([x - by for x in floats(honest.rollouts[0].logprobs)]))

    return alter


def _other_seeds(liar: Liar, lease: Lease, honest: Submission) -> Submission:
    job = msgspec.structs.replace(liar.job(lease), seeds=[os.urandom(16) for _ in lease.seeds])
    return liar.tagged(lease, liar.generate(job, liar.snapshot(lease)))


def _other_weights(liar: Liar, lease: Lease, honest: Submission) -> Submission:
    """Generated under weights of which every fifth was made a quarter larger."""
    import torch

    liar.engine.load(liar._coordinator.folder.model, liar.snapshot(lease))
    loaded_model = liar.engine._live
    assert loaded_model is not None
    with torch.no_grad():
        for parameter in loaded_model.model.parameters():
            parameter.copy_(torch.from_numpy(nudged(parameter.numpy(), 0, share=0.2)))
    return liar.tagged(lease, direct.generate(liar.engine, liar.job(lease)))


def _short(liar: Liar, lease: Lease, honest: Submission) -> Submission:
    return msgspec.structs.replace(honest, rollouts=honest.rollouts[1:])


def _fields(**changes: Any) -> Callable[[Liar, Lease, Submission], Submission]:
    return lambda liar, lease, honest: msgspec.structs.replace(honest, **changes)


async def _foreign_signature(liar: Liar) -> str:
    """A request that names another node's key beside a signature of one's own."""
    document = decode_unverified(liar.sealed("lease", encode(await liar.ask())))
    forged = [Signature(public_bytes(generate_key()), document.signatures[0].signature)]
    sealed = Envelope(document.kind, document.run, document.payload, forged)
    return await _code(liar.send("lease", msgspec.msgpack.encode(sealed)))


async def _second_submission(liar: Liar) -> str:
    lease = await liar.lease()
    honest = liar.work(lease)
    await liar.submit(honest)
    said = await _code(liar.submit(_shifted(1e-5)(liar, lease, honest)))
    assert await liar.verdict(honest) == "ok", "the first submission stands"
    return said


async def _anothers_lease(liar: Liar) -> str:
    lease = await liar.lease()
    honest, own = liar.work(lease), liar.key
    liar.key = generate_key()
    said = await _code(liar.submit(honest))
    liar.key = own
    assert await liar.verdict(honest) == "ok", "the owner's submission counts"
    return said


async def _keeping(liar: Liar, sealed: bytes) -> str:
    """Ask for a lease and keep it; the code of the answer."""
    try:
        liar.kept = decode(decode_unverified(await liar.send("lease", sealed)).payload, Lease)
    except Refused as refused:
        return refused.code
    return "ok"


async def _replay(liar: Liar) -> str:
    """The very bytes of an answered request, three times: always the answer of the first, and one lease."""
    sealed = liar.sealed("lease", encode(await liar.ask()))
    first = await _keeping(liar, sealed)
    answers = [await liar._network.request(liar._peer, "lease", sealed, timeout=30) for _ in range(3)]
    assert len(set(answers)) == 1
    return first


async def _id_twice(liar: Liar) -> str:
    name = os.urandom(16)
    await _keeping(liar, liar.sealed("lease", encode(await liar.ask()), id=name))
    return await _code(liar.send("lease", liar.sealed("lease", encode(await liar.ask()), id=name)))


async def _oversize(liar: Liar) -> str:
    try:
        return await _code(liar.send("submit", os.urandom(4 << 20)))
    except P2PError as error:
        return type(error).__name__


async def _garbage(liar: Liar) -> str:
    return await _code(liar.send("submit", os.urandom(1000)))


async def _too_old(liar: Liar) -> str:
    """Held, once published, and too old by now; asked for with its right root."""
    head, _ = await liar.newest()
    assert liar.spec is not None
    with anyio.fail_after(PATIENCE):
        while head.step <= liar.spec.staleness:
            await anyio.sleep(0.5)
            head, _ = await liar.newest()
    (base,) = (liar._coordinator.folder.store / "snapshots").glob(f"{head.era}-0-*.safetensors")
    return await _asking(version=0, root=Snapshot(base).root)(liar)


HOUR = 3_600_000

LIES: dict[str, tuple[Lie, set[str]]] = {
    "a signature under another node's key": (_foreign_signature, {"bad-signature"}),
    "a request for another coordinator": (_request(recipient=bytes(range(32))), {"wrong-recipient"}),
    "a request that expired an hour ago": (_request(expires=int(time.time() * 1000) - HOUR), {"clock"}),
    "a request under another method's name": (_request(method="verdicts"), {"wrong-method"}),
    "another request under an id that was used": (_id_twice, {"id-reused"}),
    "a request replayed": (_replay, {"ok", "no-room", "newer-version"}),
    "bytes that are no request": (_garbage, {"malformed"}),
    "a frame larger than any submission": (_oversize, {"Malformed", "Unreachable"}),
    "a lease asked for under a root that is not the version's": (_asking(root=bytes(32)), {"wrong-version"}),
    "a lease asked for under a version of the future": (_asking(version=1 << 30), {"wrong-version"}),
    "a lease asked for with an engine that is not admitted": (_asking(engine="abacus/int1/hand"), {"engine"}),
    "a submission for a lease that never was": (_group(_fields(lease=bytes(16))), {"unknown-lease"}),
    "a submission for another node's lease": (_anothers_lease, {"not-owner"}),
    "a second submission with other bytes": (_second_submission, {"other-bytes"}),
    "an older version's number": (_group(_fields(version=0)), {"version-lie"}),
    "another content root": (_group(_fields(root=bytes(32))), {"version-lie"}),
    "a group one sample short": (_group(_short), {"incomplete"}),
    "a token that was not chosen": (_group(_other_token), {"seeded-choice"}),
    "tokens chosen by other seeds": (_group(_other_seeds), {"seeded-choice"}),
    "tokens of other weights": (_group(_other_weights), {"seeded-choice", "drift"}),
    "log-probabilities a hundredth lower": (_group(_shifted(0.01)), {"drift"}),
    "log-probabilities lower by half of what one token may": (_group(_shifted(5e-4)), {"drift-median"}),
    "log-probabilities above zero": (_group(_shifted(-100.0)), {"logprobs"}),
    "a lease asked for under a version that is too old": (_too_old, {"stale-version"}),
}
"""Forgeries by name: the lie, and the codes that are right for it."""
