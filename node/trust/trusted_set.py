"""The documents of one run that this node trusts: bytes in, a verified document or a typed error out. Pure.

Roles are as in TUF: the newest Root names the keys of each role, and documents of a kind are signed by one role.

Rules, in order
1. The first Root is the bytes whose SHA-256 the invite names. Each later Root is verified by protocol/authority.py.
   A Root is its payload: a copy with fewer signatures, others beside them, or in another order is the same Root.
   Anybody can make such a copy, and the first one that comes is kept.
2. Under an expired Root no Head is accepted, and no greeting succeeds: `RootExpired`, until a later Root is adopted. A
   Root that expires more than `ROOT_AHEAD` from now is not adopted.
3. A Root that changes the channel role's keys discards the stored Head. A Root that changes the policy role's keys
   discards the stored Version as well. So a run recovers from a stolen key that raised the numbers.
4. The RunSpec is signed by the root role, names this run, and never changes.
5. A Head is signed by the channel role and has not expired on the coordinator's clock.
   a. It lives `HEAD_LIFE` at most, was issued at most `HEAD_AHEAD` from now, and its sequence is at most
      `SEQUENCE_AHEAD` from now. So a stolen channel key cannot freeze the run for longer.
   b. (era, version, sequence) never falls. Heads of equal (era, version) name the same Version.
   c. A sealed Head has at most `HEAD_BYTES`, as in gossip: a peer can put any bytes beside its signatures, and the last
      Heads are kept.
   d. `offer_head` returns a newer Head as a candidate, not adopted. A stored Head beyond the bounds of (a) is
      ignored; its Version stays.
6. A candidate becomes the Head only together with the Version that it names by hash. That Version is signed by the
   policy role and has the Head's era and version. So a forged Head alone advances nothing.
7. An EdgeIndex is the bytes whose hash the Head names, of the Head's era and version. An Edge is named by the index, by
   hash, signed by the policy role, and of an era not after the Head's. An Edge to the Head's version has its root.
8. Hash and signature are over the bytes received, never over a re-serialisation. A method returns and keeps the value
   decoded from verified bytes, together with these bytes (`Verified`). The same bytes are verified once under a Root.
9. The validity of Received and Receipts after a change of the ledger's keys: protocol/authority.py.

`now` is in milliseconds on the coordinator's clock. The caller stores a returned document durably before acting on it.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from echo2.p2p.envelope import ROLES, Verified, decode_unverified, document_hash, verify, verify_named
from echo2.p2p.errors import BadSignature, Malformed, Stale
from echo2.p2p.wire_types import decode
from echo2.protocol.authority import Root, RunSpec, WrongRoot, open_kept, verify_root
from echo2.protocol.versions import Head
from echo2.runtime.figures import apart, figure
from echo2.weights.documents import MAX_EDGES, Edge, EdgeIndex, Version
from echo2.weights.errors import BadPayload

D = TypeVar("D", Version, Edge, EdgeIndex)
T = TypeVar("T")
HEAD_BYTES: Final = 16 << 10
HEAD_LIFE: Final = 15 * 60_000
HEAD_AHEAD: Final = 10 * 60_000
SEQUENCE_AHEAD: Final = 24 * 3600_000
ROOT_AHEAD: Final = 2 * 366 * 24 * 3600_000
"""Milliseconds: bounds of rules 2 and 5 (this and the three before)."""
NO_END: Final = (1 << 53) - 1
_HEADS_KEPT: Final = 16


class NotSigned(BadSignature):
    """A document that the keys of the newest Root did not sign; the keys of a later Root may have signed it."""


class RootExpired(Stale):
    """The operator has not renewed the run's Root."""


class Rollback(Stale):
    """An authentic Head that is older than the trusted one."""


class ExpiredHead(Stale):
    """An authentic Head that has expired."""


class Mismatch(BadSignature):
    """An authentic document that does not match the trusted documents, the request or this node."""


class TooFarAhead(BadSignature):
    """A document signed by the run's keys, with times beyond the bounds of rules 2 and 5."""


class TrustedSet:
    """The trusted documents of one run, starting from the invite's run id and Root hash."""

    def __init__(self, run: bytes, root_hash: bytes) -> None:
        self._run, self._root_hash = run, root_hash
        self.roots: list[bytes] = []
        """Every sealed Root since the first, in order."""
        self.chain: list[Root] = []
        """The Roots of `roots`, decoded."""
        self.runspec: Verified[RunSpec] | None = None
        self.head: Verified[Head] | None = None
        self.version: Verified[Version] | None = None
        self._heads: dict[bytes, Verified[Head]] = {}
        """By sealed bytes, the latest last. A Head arrives from several peers, and again with its Version."""
        self._edges: dict[bytes, Verified[Edge]] = {}
        """By hash: most Edges of an index are also in the previous index."""

    @property
    def root(self) -> Root | None:
        """The newest Root."""
        return self.chain[-1] if self.chain else None

    @property
    def expires(self) -> int:
        """The end of the newest Root, ms; `NO_END` before the Root is known."""
        return NO_END if self.root is None else self.root.expires

    @property
    def roots_by_serial(self) -> dict[int, bytes]:
        """Every sealed Root by its serial, in order."""
        return {root.serial: sealed for root, sealed in zip(self.chain, self.roots, strict=True)}

    @property
    def channel(self) -> bytes:
        """The run's channel key: the recipient of requests; zeros before the Root is known."""
        return self.root.roles["channel"].keys[0] if self.root is not None else bytes(32)

    def update_root(self, sealed: bytes, now: int) -> Root:
        """Adopt the next Root; return a known one unchanged. Raises `WrongRoot`, `TooFarAhead`, `Malformed`."""
        return self._next_root(sealed, now)

    def restore_root(self, sealed: bytes) -> Root:
        """Adopt the next Root from disk, without rule 2's bound, which held at its adoption. Raises `WrongRoot`,
        `Malformed`."""
        return self._next_root(sealed, None)

    def _next_root(self, sealed: bytes, now: int | None) -> Root:
        """Adopt the next Root. `now`: None skips rule 2's bound."""
        known = self._known_root(sealed)
        if known is not None:
            return known
        if self.root is None and hashlib.sha256(sealed).digest() != self._root_hash:
            raise WrongRoot("the Root is not the one that the invite names")
        new = verify_root(sealed, self.root, self._run)
        if now is not None and new.expires > now + ROOT_AHEAD:
            ahead = figure((new.expires - now) / 86_400_000)
            raise TooFarAhead(f"the Root expires in {ahead} days; at most two years are admitted")
        self._adopt(new, sealed)
        return new

    def _known_root(self, sealed: bytes) -> Root | None:
        """Return the Root of the chain that these bytes are a copy of (rule 1); None: they are of none."""
        if sealed in self.roots:
            return self.chain[self.roots.index(sealed)]
        if not self.roots:
            return None
        offered = decode_unverified(sealed)
        for root, kept in zip(self.chain[1:], self.roots[1:], strict=True):
            one = decode_unverified(kept)
            if (one.kind, one.run, one.payload) == (offered.kind, offered.run, offered.payload):
                return root
        return None

    def check_root(self, now: int) -> None:
        """Raise `RootExpired` if the newest Root has expired (rule 2)."""
        if now >= self._current_root().expires:
            raise RootExpired("the run's Root has expired: the operator must sign a new one")

    def update_runspec(self, sealed: bytes) -> Verified[RunSpec]:
        """Verify and adopt the RunSpec (rule 4). Raises `BadSignature`, `Mismatch` (a second RunSpec), `Malformed`."""
        runspec = self.message(sealed, "runspec", RunSpec)
        if runspec.value.run != self._run:
            raise Mismatch("the RunSpec is of another run")
        if self.runspec is not None and runspec.value != self.runspec.value:
            raise Mismatch("a second RunSpec for the same run")
        self.runspec = runspec
        return runspec

    def offer_head(self, sealed: bytes, now: int) -> Verified[Head]:
        """Verify a Head (rule 5). A Head of the trusted (era, version) is adopted at once, a newer one only by
        `update_version`. Raises `RootExpired`, `BadSignature`, `Malformed`, `Rollback`, `ExpiredHead`, `TooFarAhead`,
        `Mismatch`."""
        self.check_root(now)
        if len(sealed) > HEAD_BYTES:
            raise Malformed(f"a Head of {len(sealed)} bytes, at most {HEAD_BYTES} are accepted")
        verified = self._heads.get(sealed) or self.message(sealed, "head", Head)
        _remember(self._heads, {sealed: verified}, _HEADS_KEPT)
        head = verified.value
        if now >= head.expires:
            raise ExpiredHead(f"the Head of version {head.version} expired {figure((now - head.expires) / 1000)} s ago")
        check_bounds(head, now)
        version = None if self.version is None else self.version.value
        if version is not None and (head.era, head.version) < (version.era, version.version):
            raise Rollback(f"the Head goes back to version {head.version} from {version.version}")
        newest = None if self.head is None else self.head.value
        if newest is not None and within_bounds(newest, now):
            if order(head) < order(newest):
                raise Rollback(f"the Head goes back to {order(head)} from {order(newest)}")
            if order(head) == order(newest) and head != newest:
                raise Mismatch("two different Heads with one sequence number")
        if self._names_current_version(head) and head != newest:  # a copy with other signatures is not written again
            self.head = verified
        return verified

    def update_version(self, head_sealed: bytes, version_sealed: bytes, now: int) -> Verified[Version]:
        """Adopt a Head and the Version it names, both or neither (rule 6). Raises as `offer_head`."""
        head = self.offer_head(head_sealed, now)
        if document_hash(version_sealed) != head.value.version_hash:
            raise Mismatch("the Version is not the one that the Head names")
        version = self._verify_document(version_sealed, "version", _reader(Version))
        if (version.value.era, version.value.version) != (head.value.era, head.value.version):
            raise Mismatch("the Version's era and number are not the Head's")
        self.head, self.version = head, version
        return version

    def restore(self, version_sealed: bytes, head_sealed: bytes, now: int) -> None:
        """Restore the Version and Head that this node trusted before a restart. An expired Head still prevents
        rollback. A Head of an older Version, or beyond the bounds of rule 5, is not restored. Raises
        `BadSignature`, `Malformed`."""
        self.version = self._verify_document(version_sealed, "version", _reader(Version))
        head = self.message(head_sealed, "head", Head) if head_sealed else None
        if head is not None and within_bounds(head.value, now) and self._names_current_version(head.value):
            self.head = head

    def edge_index(self, data: bytes, head: Verified[Head]) -> Verified[EdgeIndex]:
        """Verify the EdgeIndex of a Head (rule 7). Raises `Mismatch`, `Malformed`."""
        try:
            index = verify_named(data, head.value.index_hash, _reader(EdgeIndex))
        except BadSignature:
            raise Mismatch("the EdgeIndex is not the one that the Head names") from None
        if (index.value.era, index.value.version) != (head.value.era, head.value.version):
            raise Mismatch("the EdgeIndex's era and number are not the Head's")
        return index

    def unknown(self, index: Verified[EdgeIndex]) -> list[bytes]:
        """Return the hashes of the index's Edges that are not verified yet; only these need to be fetched."""
        return [digest for digest in index.value.edges if digest not in self._edges]

    def edges(self, index: Verified[EdgeIndex], fetched: Mapping[bytes, bytes]) -> list[Verified[Edge]]:
        """Verify and return the Edges of an index, in its order (rule 7). `fetched`: hash -> sealed bytes of the
        `unknown` ones. Raises `Mismatch`, `BadSignature`, `Malformed`, `Stale`."""
        if set(self.unknown(index)) - fetched.keys():
            raise Stale("a newer Root was adopted while Edges were fetched: they are verified anew")
        edges = {}
        for digest in index.value.edges:
            known = self._edges.get(digest)
            edges[digest] = self.edge(fetched[digest], index) if known is None else self._fits(known, index)
        _remember(self._edges, edges, MAX_EDGES)
        return list(edges.values())

    def edge(self, sealed: bytes, index: Verified[EdgeIndex]) -> Verified[Edge]:
        """Verify one Edge of an index (rule 7). Raises `Mismatch`, `BadSignature`, `Malformed`."""
        if document_hash(sealed) not in index.value.edges:
            raise Mismatch("the EdgeIndex does not name this Edge")
        return self._fits(self._verify_document(sealed, "edge", _reader(Edge)), index)

    def stored_edge(self, sealed: bytes) -> Verified[Edge]:
        """Verify an Edge from this node's store, by the policy role's keys in any Root of the chain. It identifies a
        stored payload and advances nothing. Raises `BadSignature`, `Malformed`."""
        for root in reversed(self.chain):
            try:
                edge = self._verify_document(sealed, "edge", _reader(Edge), root)
            except NotSigned:
                continue
            if root is self.root:
                self._edges[document_hash(sealed)] = edge
            return edge
        raise NotSigned("the policy's keys of no Root signed this Edge")

    def message(self, sealed: bytes, kind: str, type_: type[T]) -> Verified[T]:
        """Verify a document by the keys that the newest Root names for its kind. Raises `BadSignature`, `Malformed`."""
        return self._verify_document(sealed, kind, lambda payload: decode(payload, type_))

    def open_kept(self, sealed: bytes, kind: str) -> bytes:
        """Verify a document of a kind that stays valid when its role's keys change (rule 9); return its payload. Raises
        `BadSignature` (`Unproven` for a former key) and `Malformed`."""
        return open_kept(sealed, kind, self.chain)

    def _verify_document(
        self, sealed: bytes, kind: str, read: Callable[[bytes], T], by: Root | None = None
    ) -> Verified[T]:
        """Verify and decode. `by`: the Root whose keys count; None: the newest."""
        root = by or self._current_root()
        role = root.roles.get(ROLES[kind])
        if role is None:
            raise BadSignature(f"the Root names no keys that may sign a {kind}")
        try:
            return verify(sealed, kind, self._run, role.keys, role.threshold, read)
        except BadSignature as error:
            raise NotSigned(str(error)) from None

    def _fits(self, edge: Verified[Edge], index: Verified[EdgeIndex]) -> Verified[Edge]:
        """Check an Edge's era, version and root against an index (rule 7); the callers check signature and hash."""
        place = edge.value.era, edge.value.version
        if place > (index.value.era, index.value.version):
            raise Mismatch("the Edge leads past the version that the index is for")
        version = None if self.version is None else self.version.value
        if version is not None and place == (version.era, version.version) and edge.value.root != version.root:
            raise Mismatch("the Edge leads to another root than the Version's")
        return edge

    def _current_root(self) -> Root:
        if self.root is None:
            raise BadSignature("no Root is known yet")
        return self.root

    def _adopt(self, new: Root, sealed: bytes) -> None:
        for verified in (self._heads, self._edges):
            verified.clear()  # these were verified under the Root before
        old = self.root
        if old is not None and old.roles["channel"] != new.roles["channel"]:
            self.head = None
        if old is not None and old.roles["policy"] != new.roles["policy"]:
            self.head = self.version = None
        self.chain.append(new)
        self.roots.append(sealed)

    def _names_current_version(self, head: Head) -> bool:
        version = self.version
        if version is None or (head.era, head.version) != (version.value.era, version.value.version):
            return False
        if head.version_hash != document_hash(version.sealed):
            raise Mismatch("two different Versions with one number")
        return True


def check_bounds(head: Head, now: int) -> None:
    """Raise `TooFarAhead` for a Head beyond the bounds of rule 5."""
    checks = (
        ("lives for", head.expires - head.issued, HEAD_LIFE),
        ("was issued ahead of now by", head.issued - now, HEAD_AHEAD),
        ("has a sequence ahead of now by", head.sequence - now, SEQUENCE_AHEAD),
    )
    for what, actual, most in checks:
        if actual > most:
            told, bound = apart(actual / 60_000, most / 60_000)
            raise TooFarAhead(f"the Head of version {head.version} {what} {told} min; at most {bound} min are admitted")


def within_bounds(head: Head, now: int) -> bool:
    """Tell whether rule 5's bounds admit the Head."""
    try:
        check_bounds(head, now)
    except TooFarAhead:
        return False
    return True


def order(head: Head) -> tuple[int, int, int]:
    """Return the sort key of a Head, which never falls within a run: (era, version, sequence)."""
    return head.era, head.version, head.sequence


def _reader(type_: type[D]) -> Callable[[bytes], D]:
    """Return a decoder of documents of a type that raises `Malformed` in place of the errors of `weights`."""

    def read(data: bytes) -> D:
        try:
            return type_.from_bytes(data)
        except BadPayload as error:
            raise Malformed(str(error)) from error

    return read


def _remember(kept: dict[bytes, T], newer: Mapping[bytes, T], most: int) -> None:
    """Add `newer` to `kept`, and drop the oldest beyond `most`."""
    kept |= newer
    while len(kept) > most:
        del kept[next(iter(kept))]
