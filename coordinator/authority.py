"""What the root key says: the Root (who may sign what) and the RunSpec (what the run is). Pure: made, and checked.

1. The first Root has serial 1 and is signed by its own threshold; each later one has the next serial and is signed by
   the thresholds of the one before and of its own.
2. A Root that has expired vouches for nothing: the coordinator does not start under one.
3. The RunSpec never changes, and is signed by the newest Root's `root` role: after a new root key it is sealed again,
   because whoever stole the old key could sign another.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.config import RunSection
from coordinator.keys import ROLES, ROOT, role_keys
from coordinator.modelfolder import ModelFacts
from p2p.envelope import PROTOCOL, open_sealed, peek, seal
from p2p.errors import LocalFault, PeerFault
from p2p.messages import Root, RunSpec, TaskReference, decode, encode
from tasks.task import Task

ROOT_LIFE: Final = 365 * 24 * 3600 * 1000
"""Milliseconds."""
SAMPLING: Final = "gumbel-splitmix64/1"
"""The sampling rule of engines.sampling: temperature 1, no truncation, seeded noise."""
PRICE_MODE: Final = "points"


class Untrusted(LocalFault):
    """The run's own signed documents do not hold: altered, of another run, or expired."""


def sign_root(run: bytes, keys: Mapping[str, Ed25519PrivateKey], now: int) -> bytes:
    """The first Root, sealed: one key a role, thresholds of 1, valid for `ROOT_LIFE` from `now` (milliseconds)."""
    root = Root(run=run, serial=1, roles=role_keys(dict(keys)), expires=now + ROOT_LIFE)
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


def check_roots(roots: Sequence[bytes], now: int) -> Root:
    """The newest Root, once the chain from the first holds (rules 1 and 2). Raises `Untrusted`."""
    held: Root | None = None
    for sealed in roots:
        held = _next_root(sealed, held)
    if held is None:
        raise Untrusted("the run has no Root")
    if now >= held.expires:
        raise Untrusted(f"Root {held.serial} has expired: sign a new one with the root key")
    return held


def check_runspec(sealed: bytes, root: Root) -> RunSpec:
    """The RunSpec, signed by the root role of the newest Root (rule 3). Raises `Untrusted`."""
    signers = root.roles[ROOT]
    try:
        spec = decode(open_sealed(sealed, "runspec", root.run, signers.keys, signers.threshold), RunSpec)
    except PeerFault as error:
        raise Untrusted("the RunSpec is not signed by this run's root key") from error
    if spec.run != root.run:
        raise Untrusted("the RunSpec is another run's")
    return spec


def root_hash(sealed: bytes) -> bytes:
    """What an invite pins: SHA-256 of the first sealed Root, 32 bytes."""
    return hashlib.sha256(sealed).digest()


def _next_root(sealed: bytes, before: Root | None) -> Root:
    serial = before.serial + 1 if before else 1
    try:
        root = decode(peek(sealed).payload, Root)
        for signers in (before or root, root):
            role = signers.roles[ROOT]
            open_sealed(sealed, "root", (before or root).run, role.keys, role.threshold)
    except (PeerFault, KeyError) as error:
        raise Untrusted(f"Root {serial} is damaged or not signed as it must be ({error})") from error
    if root.serial != serial or root.run != (before or root).run or not set(ROLES) <= root.roles.keys():
        raise Untrusted(f"Root {serial} is of another run, out of order, or lacks a role")
    return root
