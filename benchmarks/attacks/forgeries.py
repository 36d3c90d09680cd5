"""Forgeries: each alters one part of honest work, in the request, in the lease's terms, or in the group itself.

A forgery is a coroutine function of a `Client`; it returns the code of the answer that it got. The table says which
codes are right, by a sentence for each. A group whose code is "ok" was accepted, and paid.
"""

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.attacks.altered_weights import altered
from benchmarks.attacks.attack_client import PATIENCE, AttackRefused, Client
from benchmarks.plays import direct
from echo2.coordinator.verdicts.stored_receipts import ACCEPTED_CODES
from echo2.engines.process.messages import float_bytes, floats
from echo2.p2p.envelope import Envelope, Signature, decode_unverified
from echo2.p2p.errors import P2PError
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease, Submission

Forgery = Callable[[Client], Awaitable[str]]


def _group(alter: Callable[[Client, Lease, Submission], Submission]) -> Forgery:
    """Make a forgery in the group that is submitted for a lease of the client's own."""

    async def tell(client: Client) -> str:
        lease = await client.lease()
        try:
            return await client.verdict(alter(client, lease, client.work(lease)))
        except AttackRefused:  # without a receipt: the lease is as it was
            client.kept = lease
            raise

    return tell


def _asking(**changes: Any) -> Forgery:
    """Make a forgery in the request for a lease."""

    async def tell(client: Client) -> str:
        return await _code(client.send("lease", client.sealed("lease", encode(await client.ask(**changes)))))

    return tell


def _request(**changes: Any) -> Forgery:
    """Make a forgery in the request around an honest question."""

    async def tell(client: Client) -> str:
        fields = {"method": "lease"} | changes
        sealed = client.sealed(body=encode(await client.ask()), **fields)
        return await _code(client.send("lease", sealed))

    return tell


async def _code(answer: Awaitable[object]) -> str:
    try:
        await answer
    except AttackRefused as refused:
        return refused.code
    return "ok"


def _first_rollout(submission: Submission, **changes: Any) -> Submission:
    first, *others = submission.rollouts
    return msgspec.structs.replace(submission, rollouts=[msgspec.structs.replace(first, **changes), *others])


def _other_token(client: Client, lease: Lease, honest: Submission) -> Submission:
    tokens = list(honest.rollouts[0].tokens)
    assert client.spec is not None
    tokens[0] = next(token for token in range(3, 40) if token not in (tokens[0], client.spec.eos))
    if len(tokens) == 1:  # it was eos alone: go on to the limit
        tokens = tokens * lease.limit
    logprobs = float_bytes([-1.0] * len(tokens))
    return _first_rollout(honest, tokens=tokens, turns=[len(tokens)], logprobs=logprobs)


def _too_long(client: Client, lease: Lease, honest: Submission) -> Submission:
    tokens = [3] * (lease.limit + 1)
    return _first_rollout(honest, tokens=tokens, turns=[len(tokens)], logprobs=float_bytes([-1.0] * len(tokens)))


def _shifted(by: float) -> Callable[[Client, Lease, Submission], Submission]:
    def alter(client: Client, lease: Lease, honest: Submission) -> Submission:
        return _first_rollout(honest, logprobs=float_bytes([x - by for x in floats(honest.rollouts[0].logprobs)]))

    return alter


def _other_seeds(client: Client, lease: Lease, honest: Submission) -> Submission:
    job = msgspec.structs.replace(client.job(lease), seeds=[os.urandom(16) for _ in lease.seeds])
    return client.tagged(lease, client.generate(job, client.snapshot(lease)))


def _other_weights(client: Client, lease: Lease, honest: Submission) -> Submission:
    """Generated under weights of which every fifth was made a quarter larger."""
    client.engine.load(client.target.model, client.snapshot(lease))
    altered(client.engine, _nudged)
    return client.tagged(lease, direct.generate(client.engine, client.job(lease)))


def _nudged(table: NDArray[np.float32]) -> NDArray[np.float32]:
    chosen = np.random.default_rng(0).random(table.shape) < 0.2
    return np.where(chosen, table * np.float32(1.25), table).astype(np.float32)


def _short(client: Client, lease: Lease, honest: Submission) -> Submission:
    return msgspec.structs.replace(honest, rollouts=honest.rollouts[1:])


def _fields(**changes: Any) -> Callable[[Client, Lease, Submission], Submission]:
    return lambda client, lease, honest: msgspec.structs.replace(honest, **changes)


async def _foreign_signature(client: Client) -> str:
    """A request that names another node's key beside a signature of one's own."""
    document = decode_unverified(client.sealed("lease", encode(await client.ask())))
    forged = [Signature(public_bytes(generate_key()), document.signatures[0].signature)]
    sealed = Envelope(document.kind, document.run, document.payload, forged)
    return await _code(client.send("lease", msgspec.msgpack.encode(sealed)))


async def _second_submission(client: Client) -> str:
    lease = await client.lease()
    honest = client.work(lease)
    await client.submit(honest)
    said = await _code(client.submit(_shifted(1e-5)(client, lease, honest)))
    assert await client.verdict(honest) in ACCEPTED_CODES, "the first submission stands"
    return said


async def _anothers_lease(client: Client) -> str:
    lease = await client.lease()
    honest, own = client.work(lease), client.key
    client.key = generate_key()
    said = await _code(client.submit(honest))
    client.key = own
    assert await client.verdict(honest) in ACCEPTED_CODES, "the owner's submission counts"
    return said


async def _keeping(client: Client, sealed: bytes) -> str:
    """Ask for a lease and keep it; the code of the answer."""
    try:
        client.kept = decode(decode_unverified(await client.send("lease", sealed)).payload, Lease)
    except AttackRefused as refused:
        return refused.code
    return "ok"


async def _replay(client: Client) -> str:
    """The very bytes of an answered request, three times: always the answer of the first, and one lease."""
    sealed = client.sealed("lease", encode(await client.ask()))
    first = await _keeping(client, sealed)
    answers = [await client.network.request(client.peer, "lease", sealed, timeout=30) for _ in range(3)]
    assert len(set(answers)) == 1
    return first


async def _id_twice(client: Client) -> str:
    name = os.urandom(16)
    await _keeping(client, client.sealed("lease", encode(await client.ask()), id=name))
    return await _code(client.send("lease", client.sealed("lease", encode(await client.ask()), id=name)))


async def _oversize(client: Client) -> str:
    try:
        return await _code(client.send("submit", os.urandom(4 << 20)))
    except P2PError as error:
        return type(error).__name__


async def _garbage(client: Client) -> str:
    return await _code(client.send("submit", os.urandom(1000)))


async def _too_old(client: Client) -> str:
    """Ask for a version that was the newest one, once it is too old, with its right root."""
    first, path = await client.newest()
    assert client.spec is not None
    head = first
    with anyio.fail_after(PATIENCE):
        while head.step <= first.step + client.spec.staleness:
            await anyio.sleep(0.5)
            head, _ = await client.newest()
    root = bytes.fromhex(path.stem.rpartition("-")[2])
    return await _asking(version=first.version, root=root)(client)


HOUR: Final = 3_600_000

FORGERIES: Final[dict[str, tuple[Forgery, set[str]]]] = {
    "a signature under another node's key": (_foreign_signature, {"bad-signature"}),
    "a request for another coordinator": (_request(recipient=bytes(range(32))), {"wrong-recipient"}),
    "a request that expired an hour ago": (_request(expires=int(time.time() * 1000) - HOUR), {"clock"}),
    "a request under another method's name": (_request(method="verdicts"), {"wrong-method"}),
    "another request under an id that was used": (_id_twice, {"id-reused"}),
    "a request replayed": (_replay, {"ok", "no-room", "newer-version"}),
    "bytes that are not a request": (_garbage, {"malformed"}),
    "a frame larger than any submission": (_oversize, {"Malformed", "Unreachable"}),
    "a lease asked for under a root that is not the version's": (_asking(root=bytes(32)), {"wrong-version"}),
    "a lease asked for under a version of the future": (_asking(version=1 << 30), {"wrong-version"}),
    "a lease asked for with an engine that is not admitted": (_asking(engine="abacus/int1/hand"), {"engine"}),
    "a submission for a lease that never was": (_group(_fields(lease=bytes(16))), {"unknown-lease"}),
    "a submission for another node's lease": (_anothers_lease, {"not-owner"}),
    "a second submission with other bytes": (_second_submission, {"other-bytes"}),
    "an older version's number": (_group(_fields(version=0)), {"version-lie"}),
    "another content root": (_group(_fields(root=bytes(32))), {"version-lie"}),
    "a completion beyond the limit": (_group(_too_long), {"turns", "transcript"}),
    "a group one sample short": (_group(_short), {"incomplete"}),
    "a token that was not chosen": (_group(_other_token), {"seeded-choice"}),
    "tokens chosen by other seeds": (_group(_other_seeds), {"seeded-choice"}),
    "tokens of other weights": (_group(_other_weights), {"seeded-choice", "drift"}),
    "log-probabilities a hundredth lower": (_group(_shifted(0.01)), {"drift"}),
    "log-probabilities lower by half of what one token may": (_group(_shifted(5e-4)), {"drift-median"}),
    "log-probabilities above zero": (_group(_shifted(-100.0)), {"logprobs"}),
    "a lease asked for under a version that is too old": (_too_old, {"stale-version"}),
}
"""Forgeries by name: the forgery, and the codes that are right for it."""
