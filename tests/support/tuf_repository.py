"""python-tuf beside our trusted set: one history of documents, signed twice, and what each client then trusts.

What corresponds
- Root: root metadata. Roles root; policy: targets and snapshot; channel: timestamp.
- Version: targets metadata, and the snapshot that names it. Head: timestamp. A Head's sequence is the timestamp's
  version; a greater version always has a greater sequence.
- Our rule that a new policy key discards the Head as well has no counterpart in TUF: there the timestamp's key is
  another one for each pair of channel and policy key.
- python-tuf stores a timestamp before the snapshot that it names; here all or nothing is stored, as in ours.
"""

import hashlib
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.ngclient._internal.trusted_metadata_set import EnvelopeType, TrustedMetadataSet

from echo2.node.trust.trusted_set import TrustedSet
from echo2.p2p.envelope import document_hash, seal
from echo2.p2p.errors import P2PError
from echo2.p2p.identity import public_bytes
from echo2.p2p.wire_types import encode
from echo2.protocol import authority
from echo2.protocol.authority import RoleKeys
from echo2.protocol.versions import Head
from echo2.weights.documents import EdgeIndex, TensorEntry, Version

RUN: Final = b"t" * 32
DAY: Final = 24 * 3600_000
HEAD_LIFE: Final = 600_000
KEYS: Final = [Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in range(1, 49)]
_SIGNERS: Final = [CryptoSigner(key) for key in KEYS]
_PAIRS: dict[tuple[int, int], CryptoSigner] = {}
ONLINE: Final = range(8, 47)
"""Keys of channel and policy, as indexes of `KEYS`; those below are root keys."""
STRANGER: Final = 47


class Roles(NamedTuple):
    """The keys of a Root, as indexes."""

    root: tuple[int, ...]
    threshold: int
    channel: int
    policy: int


class Trusted(NamedTuple):
    """Documents that a client trusts: serial of the Root, number and content of the Version."""

    serial: int
    version: int | None
    content: bytes | None


UNTRUSTED: Final = Trusted(1, None, None)


class RootStep(NamedTuple):
    serial: int
    roles: Roles
    signers: tuple[int, ...]
    expires: int


class VersionStep(NamedTuple):
    """A Head and a Version that are offered. `content`: of the Version; `named`: of the one that the Head names."""

    version: int
    sequence: int
    content: int
    named: int
    head_key: int
    version_key: int
    expires: int


def pair(channel: int, policy: int) -> CryptoSigner:
    """Return the key of TUF's timestamp role for a pair of our keys."""
    known = _PAIRS.get((channel, policy))
    if known is None:
        seed = hashlib.sha256(bytes([channel, policy])).digest()
        known = _PAIRS[channel, policy] = CryptoSigner(Ed25519PrivateKey.from_private_bytes(seed))
    return known


def _at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)


@dataclass
class TufClient:
    """The flow of python-tuf's updater over its `TrustedMetadataSet`, without a network."""

    root: bytes
    policy: int
    """Of the Root here: names the timestamp's key."""
    timestamp: bytes | None = None
    snapshot: bytes | None = None
    targets: bytes | None = None
    state: Trusted = UNTRUSTED

    def _loaded(self, now: int) -> TrustedMetadataSet:
        trusted = TrustedMetadataSet(self.root, EnvelopeType.METADATA)
        trusted.reference_time = _at(now)
        return trusted

    def offer_root(self, step: RootStep, now: int) -> None:
        trusted, data = self._loaded(now), tuf_root(step)
        try:
            trusted.update_root(data)
        except (RepositoryError, ValueError):
            return
        self.root, self.policy = data, step.roles.policy
        self.state = self.state._replace(serial=trusted.root.version)
        self._drop_unsigned(now)

    def _drop_unsigned(self, now: int) -> None:
        """Forget the Version that the new Root's keys did not sign, as the next start of a client does."""
        try:
            role = self._loaded(now).root
            if self.targets is not None:
                role.verify_delegate("targets", *_parts(self.targets))
        except RepositoryError:
            self.targets = None
            self.state = Trusted(self.state.serial, None, None)

    def offer_version(self, step: VersionStep, now: int) -> None:
        trusted = self._loaded(now)
        targets = tuf_targets(step, step.content)
        snapshot = tuf_snapshot(step, tuf_targets(step, step.named))
        timestamp = tuf_timestamp(step, snapshot, self.policy)
        try:
            if self.timestamp is not None:
                with suppress(RepositoryError):
                    trusted.update_timestamp(self.timestamp)
            trusted.update_timestamp(timestamp)
            if self.snapshot is not None:
                with suppress(RepositoryError):
                    trusted.update_snapshot(self.snapshot, trusted=True)
            trusted.update_snapshot(snapshot)
            trusted.update_targets(targets)
        except RepositoryError:
            return
        self.timestamp, self.snapshot, self.targets = timestamp, snapshot, targets
        content = trusted.targets.targets["content"].hashes["sha256"]
        self.state = Trusted(self.state.serial, trusted.targets.version, bytes.fromhex(content))


class OurClient:
    """The node's trusted set under the same history."""

    def __init__(self, first: RootStep, now: int) -> None:
        sealed = our_root(first)
        self._trusted = TrustedSet(RUN, hashlib.sha256(sealed).digest())
        self._trusted.update_root(sealed, now)

    @property
    def state(self) -> Trusted:
        root, version = self._trusted.root, self._trusted.version
        assert root is not None
        held = (None, None) if version is None else (version.value.version, version.value.root)
        return Trusted(root.serial, *held)

    def offer_root(self, step: RootStep, now: int) -> None:
        try:
            self._trusted.update_root(our_root(step), now)
        except P2PError:
            return

    def offer_version(self, step: VersionStep, now: int) -> None:
        named, sent = our_version(step, step.named), our_version(step, step.content)
        try:
            self._trusted.update_version(our_head(step, named, now), sent, now)
        except P2PError:
            return


def content_of(number: int) -> bytes:
    """Return the content root of a Version's content."""
    return hashlib.sha256(b"content %d" % number).digest()


def our_root(step: RootStep) -> bytes:
    online = {"channel": step.roles.channel, "policy": step.roles.policy, "ledger": ONLINE[0]}
    roles = {name: RoleKeys(keys=[public_bytes(KEYS[key])], threshold=1) for name, key in online.items()}
    members = [public_bytes(KEYS[key]) for key in step.roles.root]
    roles["root"] = RoleKeys(keys=members, threshold=step.roles.threshold)
    document = authority.Root(run=RUN, serial=step.serial, roles=roles, expires=step.expires, issued=0)
    return seal("root", RUN, encode(document), *(KEYS[key] for key in step.signers))


def our_version(step: VersionStep, content: int) -> bytes:
    table = [TensorEntry(name="t", dtype="BF16", shape=(2,))]
    document = Version(era=1, version=step.version, root=content_of(content), tensors=table)
    return seal("version", RUN, document.to_bytes(), KEYS[step.version_key])


def our_head(step: VersionStep, version: bytes, now: int) -> bytes:
    index = EdgeIndex(era=1, version=step.version, edges=[]).to_bytes()
    document = Head(
        era=1, version=step.version, version_hash=document_hash(version), index_hash=document_hash(index),
        step=step.version, sequence=step.sequence, addresses=[], root_serial=1, issued=step.expires - HEAD_LIFE,
        expires=step.expires,
    )  # fmt: skip
    return seal("head", RUN, encode(document), KEYS[step.head_key])


def tuf_root(step: RootStep) -> bytes:
    root = Root(version=step.serial, expires=_at(step.expires), consistent_snapshot=False)
    for key in step.roles.root:
        root.add_key(_SIGNERS[key].public_key, "root")
    root.roles["root"].threshold = step.roles.threshold
    root.add_key(pair(step.roles.channel, step.roles.policy).public_key, "timestamp")
    for role in ("snapshot", "targets"):
        root.add_key(_SIGNERS[step.roles.policy].public_key, role)
    return _signed(Metadata(root), [_SIGNERS[key] for key in step.signers])


def tuf_targets(step: VersionStep, content: int) -> bytes:
    file = TargetFile(1, {"sha256": content_of(content).hex()}, "content")
    targets = Targets(version=step.version, expires=_at(20_000 * DAY), targets={"content": file})
    return _signed(Metadata(targets), [_SIGNERS[step.version_key]])


def tuf_snapshot(step: VersionStep, targets: bytes) -> bytes:
    meta = {"targets.json": MetaFile(step.version, len(targets), {"sha256": hashlib.sha256(targets).hexdigest()})}
    snapshot = Snapshot(version=step.version, expires=_at(20_000 * DAY), meta=meta)
    return _signed(Metadata(snapshot), [_SIGNERS[step.version_key]])


def tuf_timestamp(step: VersionStep, snapshot: bytes, policy: int) -> bytes:
    meta = MetaFile(step.version, len(snapshot), {"sha256": hashlib.sha256(snapshot).hexdigest()})
    timestamp = Timestamp(version=step.sequence, expires=_at(step.expires), snapshot_meta=meta)
    return _signed(Metadata(timestamp), [pair(step.head_key, policy)])


def _signed(metadata: Metadata, signers: Sequence[CryptoSigner]) -> bytes:
    for signer in signers:
        metadata.sign(signer, append=True)
    return metadata.to_bytes()


def _parts(data: bytes) -> tuple[bytes, dict[str, object]]:
    metadata = Metadata.from_bytes(data)
    return metadata.signed_bytes, metadata.signatures


@dataclass
class History:
    """A random history: what the operator, a thief of some keys and the clock do. `events`: what was done, for the
    message of a failure."""

    seed: int
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.now = 1000 * DAY
        self._root = RootStep(1, Roles((0, 1), self._random.choice([1, 2]), 8, 9), (0, 1), self.now + 300 * DAY)
        self._contents: dict[int, int] = {}
        self._unused = 10
        self._newest = self._sequence = 0
        self.ours, self.tuf = OurClient(self._root, self.now), TufClient(tuf_root(self._root), 9)

    def play(self, steps: int) -> None:
        """Play this many steps. Raises AssertionError where the two clients trust different documents."""
        for _ in range(steps):
            kind = self._random.choices(["root", "version", "time"], [3, 6, 1])[0]
            if kind == "time":
                self.now += self._random.choice([1000, 300_000, 700_000, 40 * DAY, 200 * DAY])
                self.events.append(f"time {self.now}")
            elif kind == "root":
                self._offer_root(self._next_root())
            else:
                self._offer_version(self._next_version())
            assert self.ours.state == self.tuf.state, "\n".join([f"seed {self.seed}", *self.events])

    def _offer_root(self, step: RootStep) -> None:
        self.events.append(str(step))
        before = self.ours.state.serial
        for client in (self.ours, self.tuf):
            client.offer_root(step, self.now)
        if self.ours.state.serial != before:
            if step.roles.policy != self._root.roles.policy:
                self._newest = self._sequence = 0
                self._contents.clear()
            elif step.roles.channel != self._root.roles.channel:
                self._sequence = 0
            self._root = step

    def _next_root(self) -> RootStep:
        pick, old = self._random, self._root.roles
        members = old.root
        if pick.random() < 0.4:
            members = tuple(sorted(pick.sample(range(6), pick.randint(1, 4))))
        threshold = min(len(members), pick.choice([old.threshold, 1, 2, 3]))
        channel = self._fresh() if pick.random() < 0.3 else old.channel
        policy = self._fresh() if pick.random() < 0.2 else old.policy
        roles = Roles(members, threshold, channel, policy)
        both = list(dict.fromkeys([*old.root, *members]))
        signers = {
            "both": both, "old": list(old.root), "new": list(members), "few": pick.sample(both, 1),
            "some": pick.sample(both, pick.randint(1, len(both))), "stranger": [STRANGER],
        }[pick.choices(["both", "old", "new", "few", "some", "stranger"], [6, 1, 1, 1, 2, 1])[0]]  # fmt: skip
        serial = self._root.serial + pick.choices([1, 2, 0, -1], [8, 1, 1, 1])[0]
        return RootStep(max(1, serial), roles, tuple(signers), self.now + pick.choice([-DAY, DAY, 300 * DAY]))

    def _fresh(self) -> int:
        """Return a key that no Root named: one that comes back would find python-tuf's files of before."""
        self._unused += 1
        return self._unused

    def _offer_version(self, step: VersionStep) -> None:
        self.events.append(str(step))
        for client in (self.ours, self.tuf):
            client.offer_version(step, self.now)
        if (self.ours.state.version, self.ours.state.content) == (step.version, content_of(step.content)):
            self._newest, self._sequence = step.version, step.sequence

    def _next_version(self) -> VersionStep:
        pick, roles = self._random, self._root.roles
        version = max(1, self._newest + pick.choices([1, 0, -1, 5], [6, 3, 2, 1])[0])
        content = self._contents.setdefault(version, pick.randrange(1 << 30))
        sequence = version * 100 + pick.randrange(100)
        if version == self._newest and self._sequence and pick.random() < 0.5:
            sequence = min(version * 100 + 99, self._sequence + 1)
        head_key = roles.channel if pick.random() < 0.8 else pick.choice([*ONLINE[: self._unused - 7], STRANGER])
        version_key = roles.policy if pick.random() < 0.85 else pick.choice([*ONLINE[: self._unused - 7], STRANGER])
        sent = content if pick.random() < 0.9 else content + 1
        expires = self.now + pick.choices([HEAD_LIFE, -1000, 60_000], [8, 1, 3])[0]
        return VersionStep(version, sequence, sent, content, head_key, version_key, expires)
