"""A thief of a run's keys, between a node and the coordinator, over real libp2p.

With the first channel key he has the network identity: a node that dials him finds the peer that its invite names. He
passes every request on to the coordinator, keeps newer Roots from the node, and forges what his key can sign: leases
(channel), or receipts (ledger).
"""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.p2p.discovery.invite import Invite
from echo2.p2p.envelope import decode_unverified, document_hash, open_signed, seal
from echo2.p2p.errors import P2PError
from echo2.p2p.identity import generate_key, load_key
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease, LeaseRequest, Receipt, Submission, VerdictsResponse
from echo2.protocol.methods import DOCUMENTS, HEAD, HELLO, LEASE, REMAKE, SEALED, SUBMIT
from echo2.protocol.requests import Request, Response, Welcome
from echo2.protocol.versions import HeadResponse

LIMIT = 8 << 20
LIFE = 240_000
"""Milliseconds of a forged lease."""


class Thief:
    """`forged`: ids of the leases that were forged, or whose receipts were. `invite`: leads to him."""

    def __init__(self, invite: str, channel: Path, ledger: Path | None = None) -> None:
        self.invite, self._real = "", Invite.from_text(invite)
        self._channel, self._ledger = load_key(channel), None if ledger is None else load_key(ledger)
        self.forged: list[bytes] = []
        self._refused: dict[bytes, bytes] = {}
        self._template: Lease | None = None
        self._ready = threading.Event()

    async def serve(self) -> None:
        """Serve until cancelled."""
        host = ThreadedPeer(self._channel, ["/ip4/127.0.0.1/tcp/0"])
        self._client = ThreadedPeer(generate_key(), [])
        for name in [method.name for method in (*SEALED, HEAD, DOCUMENTS, REMAKE)]:

            async def handle(peer: str, data: bytes, name: str = name) -> bytes:
                return await self._answer(name, data)

            host.serve(name, handle, limit=LIMIT)
        async with asyncio.TaskGroup() as group:
            for one in (host, self._client):
                group.create_task(one.run())
                await one.ready()
            self._peer = await self._client.dial(self._real.addresses)
            addresses = await host.addresses()
            own = msgspec.structs.replace(self._real, addresses=addresses, https_key=None)
            self.invite = own.to_text()
            self._ready.set()

    async def _answer(self, method: str, data: bytes) -> bytes:
        if method == LEASE.name and self._ledger is None and self._template is not None:
            node, payload = open_signed(data, "request", self._real.run)
            return encode(Response(body=self._lease(node, decode(decode(payload, Request).body, LeaseRequest))))
        answer = await self._client.request(self._peer, method, data, timeout=30)
        if method in (one.name for one in SEALED):
            return encode(self._changed(method, data, decode(answer, Response)))
        if method == HEAD.name:
            return encode(msgspec.structs.replace(decode(answer, HeadResponse), roots=[]))
        return answer

    def _changed(self, method: str, data: bytes, answer: Response) -> Response:
        if answer.refusal is not None:
            return msgspec.structs.replace(answer, refusal=msgspec.structs.replace(answer.refusal, roots=[]))
        assert answer.body is not None
        if method == HELLO.name:
            welcome = decode(answer.body, Welcome)
            welcome = msgspec.structs.replace(welcome, roots=welcome.roots[:1])
            return msgspec.structs.replace(answer, body=encode(welcome))
        if method == LEASE.name and self._template is None:
            self._template = decode(decode_unverified(answer.body).payload, Lease)
        if method == SUBMIT.name and self._ledger is not None:
            node, payload = open_signed(data, "request", self._real.run)
            submission = decode(decode(payload, Request).body, Submission)
            self._refused[submission.lease] = self._receipt(node, submission, self._ledger)
            answer = msgspec.structs.replace(answer, body=b"")
        if answer.verdicts is not None and self._ledger is not None:
            asked = decode(open_signed(data, "request", self._real.run)[1], Request).verdicts
            assert asked is not None
            told = [
                self._refused.get(lease, sealed)
                for lease, sealed in zip(asked.leases, answer.verdicts.receipts, strict=True)
            ]
            answer = msgspec.structs.replace(answer, verdicts=VerdictsResponse(receipts=told))
        return answer

    def _lease(self, node: bytes, ask: LeaseRequest) -> bytes:
        assert self._template is not None
        now, identity = time.time_ns() // 1_000_000, generate_key().private_bytes_raw()[:16]
        lease = msgspec.structs.replace(
            self._template, id=identity, node=node, nonce=ask.nonce, era=ask.era, version=ask.version, root=ask.root,
            sent=now, expires=now + LIFE, ranges_asked=False,
        )  # fmt: skip
        self.forged.append(identity)
        return seal("lease", self._real.run, encode(lease), self._channel)

    def _receipt(self, node: bytes, submission: Submission, key: Ed25519PrivateKey) -> bytes:
        self.forged.append(submission.lease)
        receipt = Receipt(
            run=self._real.run, node=node, lease=submission.lease, era=submission.era, version=submission.version,
            submission_hash=document_hash(encode(submission)), verdict="refused", code="token", reason="no pay",
            trainable=False, weight=0, entry=0, entry_hash=bytes(32), at=time.time_ns() // 1_000_000,
        )  # fmt: skip
        return seal("receipt", self._real.run, encode(receipt), key)


@contextmanager
def thieving(thief: Thief) -> Iterator[Thief]:
    """Let a thief serve in a thread until the block ends."""
    loop = asyncio.new_event_loop()
    task: list[asyncio.Task[None]] = []

    async def main() -> None:
        task.append(asyncio.create_task(thief.serve()))
        with suppress(asyncio.CancelledError, P2PError):
            await task[0]

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert thief._ready.wait(60)
    try:
        yield thief
    finally:
        loop.call_soon_threadsafe(task[0].cancel)
        thread.join(60)
        loop.close()


def named(events: Sequence[dict[str, object]], event: str) -> list[dict[str, object]]:
    """Return the log lines of one event."""
    return [one for one in events if one.get("event") == event]
