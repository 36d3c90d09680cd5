"""What this node believes about the run: bytes in, a verified document or a typed error out. Pure.

Rules, in order
1. The first Root is the bytes whose SHA-256 the invite names; each later one follows by protocol/authority.py.
2. A Root that has expired vouches for nothing: `RootExpired` until a later one is held. A Root that would end more than
   `ROOT_AHEAD` from now is not adopted.
3. A Root that changes the channel's keys makes the stored Head forgotten; one that changes the policy's keys, the
   stored Version as well: so a run recovers from a stolen key that pushed the numbers forward.
4. The RunSpec is the root role's, of this run, and never changes.
5. A Head is the channel's; it has not expired on the coordinator's clock; it lives `HEAD_LIFE` at most, was issued
   at most `HEAD_AHEAD` from now, and its sequence is at most `SEQUENCE_AHEAD` from now: so a stolen channel key cannot
   freeze the run for longer. (era, version, sequence) never falls; with equal (era, version) it names the same Version.
   `offer_head` keeps it apart as a candidate. A stored Head beyond these bounds counts for nothing; its Version stays.
6. A candidate becomes the Head only together with the Version that it names by hash, signed by the policy, of just that
   era and version: a forged Head alone moves nothing forward.
7. An EdgeIndex is the bytes whose hash the Head names, of the Head's era and version. An Edge is one that the index
   names by hash, signed by the policy, of an era not after the Head's; an edge to the Head's version leads to its root.
8. Hash and signature are over the bytes received, never over a re-serialisation.
9. Which Received and Receipts hold after the ledger's keys have changed: protocol/authority.py.

`now` is in milliseconds on the coordinator's clock. The caller makes durable what a method returned
before it acts on it.
"""

import hashlib
from typing import Final, TypeVar

from p2p.envelope import ROLES, document_hash, open_sealed, peek
from p2p.errors import BadSignature, Malformed, Stale
from p2p.messages import Head, Root, RunSpec, decode
from protocol.authority import WrongRoot, open_kept, verify_root
from runtime.figures import apart, figure
from weights.documents import MAX_EDGES, Edge, EdgeIndex, Version
from weights.errors import BadPayload

D = TypeVar("D", Version, Edge, EdgeIndex)
HEAD_LIFE: Final = 15 * 60_000
HEAD_AHEAD: Final = 10 * 60_000
SEQUENCE_AHEAD: Final = 24 * 3600_000
ROOT_AHEAD: Final = 2 * 366 * 24 * 3600_000
"""Milliseconds: bounds of rules 2 and 5."""


class RootExpired(Stale):
    """The operator has not renewed the run's Root."""


class Rollback(Stale):
    """An authentic Head that is older than what is held."""


class Frozen(Stale):
    """An authentic Head whose life is over."""


class Mixed(BadSignature):
    """Authentic documents that do not belong together."""


class TooFarAhead(BadSignature):
    """A document of the run's own keys with times that no honest operator writes."""


class TrustedSet:
    """The documents of one run that hold, starting from the invite's run id and Root hash."""

    def __init__(self, run: bytes, root_hash: bytes) -> None:
        self._run, self._root_hash = run, root_hash
        self.roots: list[bytes] = []
        """Every sealed Root since the first, in order."""
        self.chain: list[Root] = []
        """The same, decoded."""
        self.runspec: RunSpec | None = None
        self.runspec_sealed = b""
        self.head: Head | None = None
        self.head_sealed = b""
        self.version: Version | None = None
        self.version_sealed = b""
        self._edges: dict[bytes, Edge] = {}

    @property
    def root(self) -> Root | None:
        """The newest Root."""
        return self.chain[-1] if self.chain else None

    @property
    def channel(self) -> bytes:
        """The run's channel key: the recipient of requests; zeros before the Root is known."""
        return self.root.roles["channel"].keys[0] if self.root is not None else bytes(32)

    def update_root(self, sealed: bytes, now: int) -> Root:
        """Take the next Root, or one that is held already. Raises `WrongRoot`, `TooFarAhead`, `Malformed`."""
        if sealed not in self.roots:
            ends = decode(peek(sealed).payload, Root).expires
            if ends > now + ROOT_AHEAD:
                raise TooFarAhead(f"a Root that ends in {figure((ends - now) / 86_400_000)} days; at most two years")
        return self.restore_root(sealed)

    def restore_root(self, sealed: bytes) -> Root:
        """Take the next Root, or one that is held already; it was adopted before. Raises `WrongRoot`, `Malformed`."""
        if sealed in self.roots:
            return self.chain[self.roots.index(sealed)]
        if self.root is None and hashlib.sha256(sealed).digest() != self._root_hash:
            raise WrongRoot("the Root is not the one that the invite names")
        new = verify_root(sealed, self.root, self._run)
        self._adopt(new, sealed)
        return new

    def check_root(self, now: int) -> None:
        """Raises `RootExpired` (rule 2)."""
        if now >= self._held_root().expires:
            raise RootExpired("the run's Root has expired: the operator must sign a new one")

    def update_runspec(self, sealed: bytes) -> RunSpec:
        """Raises `BadSignature`, `Mixed` (a second RunSpec), `Malformed`."""
        runspec = decode(self.open(sealed, "runspec"), RunSpec)
        if runspec.run != self._run:
            raise Mixed("the RunSpec is of another run")
        if self.runspec is not None and runspec != self.runspec:
            raise Mixed("a second RunSpec for the same run")
        self.runspec, self.runspec_sealed = runspec, sealed
        return runspec

    def offer_head(self, sealed: bytes, now: int) -> Head:
        """Rule 5. A Head of the (era, version) held is adopted at once, a newer one only by `update_version`.
        Raises `RootExpired`, `BadSignature`, `Malformed`, `Rollback`, `Frozen`, `TooFarAhead`, `Mixed`."""
        self.check_root(now)
        head = decode(self.open(sealed, "head"), Head)
        if now >= head.expires:
            raise Frozen(f"the Head of version {head.version} expired {figure((now - head.expires) / 1000)} s ago")
        check_bounds(head, now)
        if self.version is not None and (head.era, head.version) < (self.version.era, self.version.version):
            raise Rollback(f"the Head goes back to version {head.version} from {self.version.version}")
        held = self.head
        if held is not None and within_bounds(held, now):
            if order(head) < order(held):
                raise Rollback(f"the Head goes back to {order(head)} from {order(held)}")
            if order(head) == order(held) and sealed != self.head_sealed and head != held:
                raise Mixed("two different Heads with one sequence number")
        if self._names_held_version(head):
            self.head, self.head_sealed = head, sealed
        return head

    def update_version(self, head_sealed: bytes, version_sealed: bytes, now: int) -> Version:
        """Rule 6: adopt a Head and the Version it names, both or neither. Raises as `offer_head`."""
        head = self.offer_head(head_sealed, now)
        if document_hash(version_sealed) != head.version_hash:
            raise Mixed("the Version is not the one that the Head names")
        version = _document(self.open(version_sealed, "version"), Version)
        if (version.era, version.version) != (head.era, head.version):
            raise Mixed("the Version's era and number are not the Head's")
        self.head, self.head_sealed = head, head_sealed
        self.version, self.version_sealed = version, version_sealed
        return version

    def restore(self, version_sealed: bytes, head_sealed: bytes, now: int) -> None:
        """Take back what this node believed before it was restarted. A Head that has expired since, or that was not yet
        renewed when its Version was stored, still holds against rollback; one beyond the bounds of rule 5 does not.
        Raises `BadSignature`, `Malformed`."""
        version = _document(self.open(version_sealed, "version"), Version)
        self.version, self.version_sealed = version, version_sealed
        head = decode(self.open(head_sealed, "head"), Head) if head_sealed else None
        if head is not None and within_bounds(head, now) and self._names_held_version(head):
            self.head, self.head_sealed = head, head_sealed

    def edge_index(self, data: bytes, head: Head) -> EdgeIndex:
        """Rule 7. Raises `Mixed`, `Malformed`."""
        if document_hash(data) != head.index_hash:
            raise Mixed("the EdgeIndex is not the one that the Head names")
        index = _document(data, EdgeIndex)
        if (index.era, index.version) != (head.era, head.version):
            raise Mixed("the EdgeIndex's era and number are not the Head's")
        return index

    def edge(self, sealed: bytes, index: EdgeIndex) -> Edge:
        """Rule 7. Raises `Mixed`, `BadSignature`, `Malformed`."""
        digest = document_hash(sealed)
        if digest not in index.edges:
            raise Mixed("the EdgeIndex does not name this Edge")
        # Most edges of an index were in the one before: the same bytes are verified once.
        edge = self._edges.get(digest) or _document(self.open(sealed, "edge"), Edge)
        self._edges[digest] = edge
        while len(self._edges) > MAX_EDGES:
            del self._edges[next(iter(self._edges))]
        if (edge.era, edge.version) > (index.era, index.version):
            raise Mixed("the Edge leads past the version that the index is for")
        version = self.version
        same = version is not None and (edge.era, edge.version) == (version.era, version.version)
        if version is not None and same and edge.root != version.root:
            raise Mixed("the Edge leads to another root than the Version's")
        return edge

    def open(self, sealed: bytes, kind: str) -> bytes:
        """The payload of any document of a role that the Root names. Raises `BadSignature`, `Malformed`."""
        role = self._held_root().roles.get(ROLES[kind])
        if role is None:
            raise BadSignature(f"the Root names no keys that may sign a {kind}")
        return open_sealed(sealed, kind, self._run, role.keys, role.threshold)

    def open_kept(self, sealed: bytes, kind: str) -> bytes:
        """As `open`, of a kind that stays good when its role's keys change (rule 9). Raises `BadSignature`, of which
        `Unproven`, and `Malformed`."""
        return open_kept(sealed, kind, self.chain)

    def _held_root(self) -> Root:
        if self.root is None:
            raise BadSignature("no Root is held yet")
        return self.root

    def _adopt(self, new: Root, sealed: bytes) -> None:
        self._edges.clear()  # verified under the Root before
        old = self.root
        if old is not None and old.roles["channel"] != new.roles["channel"]:
            self.head, self.head_sealed = None, b""
        if old is not None and old.roles["policy"] != new.roles["policy"]:
            self.head, self.head_sealed, self.version, self.version_sealed = None, b"", None, b""
        self.chain.append(new)
        self.roots.append(sealed)

    def _names_held_version(self, head: Head) -> bool:
        version = self.version
        if version is None or (head.era, head.version) != (version.era, version.version):
            return False
        if head.version_hash != document_hash(self.version_sealed):
            raise Mixed("two different Versions with one number")
        return True


def check_bounds(head: Head, now: int) -> None:
    """Raises `TooFarAhead` for a Head beyond the bounds of rule 5."""
    checks = (
        ("lives for", head.expires - head.issued, HEAD_LIFE),
        ("was issued ahead of now by", head.issued - now, HEAD_AHEAD),
        ("has a sequence ahead of now by", head.sequence - now, SEQUENCE_AHEAD),
    )
    for what, found, most in checks:
        if found > most:
            told, bound = apart(found / 60_000, most / 60_000)
            raise TooFarAhead(f"the Head of version {head.version} {what} {told} min, at most {bound} min are believed")


def within_bounds(head: Head, now: int) -> bool:
    """Return whether rule 5's bounds admit the Head."""
    try:
        check_bounds(head, now)
    except TooFarAhead:
        return False
    return True


def order(head: Head) -> tuple[int, int, int]:
    """Heads of a run never fall in this."""
    return head.era, head.version, head.sequence


def _document(data: bytes, type_: type[D]) -> D:
    try:
        return type_.from_bytes(data)
    except BadPayload as error:
        raise Malformed(str(error)) from error
