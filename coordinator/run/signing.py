"""What the root key says: the Root (who may sign what) and the RunSpec (what the run is). Pure: made, and checked.

1. The first Root has serial 1; each later one follows from the one before by protocol/authority.py.
2. A Root that has expired vouches for nothing: the coordinator does not start under one. It can still be renewed.
3. The RunSpec never changes, and is signed by the newest Root's `root` role: a thief of an old root key could sign
   another. When the root key changes it is sealed by both keys, before the Root, so that it holds under either.
4. The next Root says when it was issued, later than the one before, lives `ROOT_LIFE`, and keeps what was revoked. A
   run has `MOST_ROOTS` Roots at most.
5. From `REMINDED` before its end on, the operator is told that the Root ends.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.config import RunSection
from coordinator.run.keys import ROOT, role_keys
from coordinator.run.model_folder import ModelFacts
from engines import registry
from p2p.envelope import PROTOCOL, seal, verify_envelope
from p2p.errors import PeerFault
from p2p.wire_types import decode, encode
from protocol.authority import MOST_ROOTS, RoleKeys, Root, RunSpec, TaskReference, verify_root
from runtime.errors import LocalFault
from runtime.units import DAY
from tasks.task import Task

ROOT_LIFE: Final = 365 * DAY
REMINDED: Final = 30 * DAY
"""Milliseconds."""
SAMPLING: Final = registry.TRANSFORMERS.sampling
"""The sampling rule of the engine that scores: temperature 1, no truncation, seeded noise."""
PRICE_MODE: Final = "points"


class Untrusted(LocalFault):
    """The run's own signed documents do not hold: altered, of another run, or expired."""


def sign_root(run: bytes, keys: Mapping[str, Ed25519PrivateKey], now: int) -> bytes:
    """The first Root, sealed: one key a role, thresholds of 1, valid for `ROOT_LIFE` from `now` (milliseconds)."""
    root = Root(run=run, serial=1, roles=role_keys(dict(keys)), expires=now + ROOT_LIFE, issued=now)
    return seal("root", run, encode(root), keys[ROOT])


def sign_runspec(run: bytes, settings: RunSection, task: Task, model: ModelFacts, key: Ed25519PrivateKey) -> bytes:
    """The RunSpec of these settings and this model, sealed by the root key."""
    spec = RunSpec(
        run=run,
        name=settings.name,
        model=settings.model,
        assets=list(model.assets),
        eos=model.eos,
        vocabulary=model.vocabulary,
        tasks=[TaskReference(name=task.name, version=task.version)],
        staleness=settings.staleness,
        group_size=settings.group_size,
        limit=settings.limit,
        compute_dtype=settings.compute_dtype,
        engines=list(settings.engines),
        sampling=SAMPLING,
        price_mode=PRICE_MODE,
        protocols=(PROTOCOL, PROTOCOL),
    )
    return seal("runspec", run, encode(spec), key)


def next_root(before: Root, now: int, changed: Mapping[str, bytes], revoked: Mapping[bytes, int]) -> Root:
    """Return the Root that follows `before`, not signed yet (rule 4). `changed`: role -> its new public key. `revoked`:
    key -> time of the run (ms) from which on it counts no more. Raises `LocalFault` where the run has its last Root."""
    if before.serial >= MOST_ROOTS:
        raise LocalFault(f"this run has had {before.serial} Roots, and no more are possible: make another run")
    return Root(
        run=before.run,
        serial=before.serial + 1,
        roles=before.roles | {role: RoleKeys(keys=[key], threshold=1) for role, key in changed.items()},
        issued=max(now, (before.issued or 0) + 1),
        expires=now + ROOT_LIFE,
        revoked={**before.revoked, **revoked},
    )


def check_chain(roots: Sequence[bytes]) -> list[Root]:
    """Return the Roots, once each follows from the one before (rule 1). Raises `Untrusted`."""
    chain: list[Root] = []
    for sealed in roots:
        serial = len(chain) + 1
        try:
            chain.append(verify_root(sealed, chain[-1] if chain else None))
        except PeerFault as error:
            raise Untrusted(f"Root {serial} is damaged or not signed as it must be ({error})") from error
        if chain[0].serial != 1:
            raise Untrusted("the first Root does not have serial 1")
    if not chain:
        raise Untrusted("the run has no Root")
    return chain


def check_life(root: Root, now: int) -> None:
    """Raises `Untrusted` where the Root has expired (rule 2)."""
    if now >= root.expires:
        raise Untrusted(
            f"Root {root.serial} has expired: sign the next one with the root key, by `echo2-coord keys renew`"
        )


def ends_soon(root: Root, now: int) -> str:
    """Return a sentence where the Root ends within `REMINDED` (rule 5), else nothing."""
    left = root.expires - now
    if left > REMINDED:
        return ""
    day = datetime.fromtimestamp(root.expires / 1000, UTC).strftime("%Y-%m-%d")
    when = f"ends on {day}, in {left // DAY} days" if left > 0 else f"ended on {day}, and nodes do no more work"
    return f"Root {root.serial} {when}: renew it with the root key, by `echo2-coord keys renew`"


def check_runspec(sealed: bytes, root: Root) -> RunSpec:
    """The RunSpec, signed by the root role of the newest Root (rule 3). Raises `Untrusted`."""
    signers = root.roles[ROOT]
    try:
        spec = decode(verify_envelope(sealed, "runspec", root.run, signers.keys, signers.threshold), RunSpec)
    except PeerFault as error:
        raise Untrusted("the RunSpec is not signed by this run's root key") from error
    if spec.run != root.run:
        raise Untrusted("the RunSpec is another run's")
    return spec


def root_hash(sealed: bytes) -> bytes:
    """What an invite pins: SHA-256 of the first sealed Root, 32 bytes."""
    return hashlib.sha256(sealed).digest()
