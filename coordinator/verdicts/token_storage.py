"""Retention of tokens in run.sqlite: for how long they are stored, how many bytes in all, and how many of refused
groups per party.

Rules
1. The content of a group is stored for the challenge window after the lease's end, so that a verdict can be computed
   again. Content means its submission, other bytes submitted for its lease, the scorer's log-probabilities, and the
   prompt and seeds of its lease.
2. Of refused groups and of other bytes, at most `MOST_REFUSED` bytes are stored per party (p2p/limits/origin.py).
   Beyond that only the hash is stored: forged bytes cost nothing to make, but fill the disk.
3. After the window the content is deleted (`forget`), whether or not the node has confirmed its receipt. Only tokens
   that the learner may still draw are kept longer; the room for leases bounds them.
4. Of a refused group the sample and the position that decided it stay for `EXCERPTS`, at most `EXCERPT` bytes, where
   its key has accepted work. Keys without accepted work are free, and leave nothing.
5. The row of a lease stays for its receipt, with a nonce that no request can name. A lease that ended without a
   submission has no receipt: its row is deleted. The ledger states the end of every lease, in an entry of its own or as
   one of many (coordinator/accounts/lease_ends.py).
6. Beyond `store.rollout_bytes` the content of groups is deleted before the window ends, the earliest end of a lease
   first (`make_room`). Some groups stay whatever they take: one of a version that is still leased, which the learner,
   an audit or a canary may need, unless it was refused; one whose twin has no verdict yet; one of a day in quarantine;
   one whose check waits; and a refused one that its node may still appeal (reviews.py).
"""

import contextlib
import itertools
import struct
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.accounts.decided import BY_PASS, Decided
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.schema import STORED_BYTES
from echo2.coordinator.learner.age import oldest_fresh
from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease, Submission
from echo2.runtime.units import DAY

EXCERPT: Final = 10_000
EXCERPT_TOKENS: Final = 2_000
"""Most tokens of an excerpt, the deciding one the last of them."""
EXCERPTS: Final = 30 * DAY
"""Milliseconds."""
FORGOTTEN_EXCERPTS: Final = 32
CHALLENGE_WINDOW_MS: Final = DAY
"""The challenge window, milliseconds."""
MOST_REFUSED: Final = 64 << 20
"""Bytes per party."""
DELETED_LEASES_SLICE: Final = 32
"""Most leases whose content is deleted in one transaction: few enough that no request is delayed."""
SLICE_BYTES: Final = 2 << 20
"""Most bytes of their submissions, unless a single submission is larger."""
LOOKED_AT_ONCE: Final = 512
"""Leases of which one call of `make_room` asks whether they are needed. Those that ended without a group count too:
there may be many of them, as of keys that return nothing."""

_ENDED_LEASES_QUERY = (
    "SELECT l.id, l.party, s.lease, s.at, v.verdict, b.era, b.version, a.lease FROM leases l"
    " LEFT JOIN submissions s ON s.lease = l.id LEFT JOIN verdicts v ON v.lease = l.id"
    " LEFT JOIN buffer b ON b.lease = l.id LEFT JOIN set_aside a ON a.lease = l.id"
    " WHERE l.state NOT IN ('open', 'received') AND l.sealed != x'' AND l.expires < ? ORDER BY l.expires"
)
_STORED_GROUPS_QUERY = (
    "SELECT l.id, l.party, s.lease, v.verdict, l.expires, CASE WHEN s.lease IS NULL THEN"
    " NOT EXISTS (SELECT 1 FROM evidence e WHERE e.lease = l.id AND e.payload != x'') ELSE v.lease IS NULL END"
    " OR (v.verdict != 'refused' AND (l.era, l.version) >= (?, ?))"
    " OR EXISTS (SELECT 1 FROM reviews r WHERE r.lease = l.id AND r.state = 'waiting')"
    " OR EXISTS (SELECT 1 FROM quarantine q WHERE q.lease = l.id)"
    " OR EXISTS (SELECT 1 FROM leases o WHERE o.position = l.position AND o.attempt = l.attempt"
    " AND o.state IN ('open', 'received'))"
    f" OR (v.verdict = 'refused' AND v.code IN ({', '.join(map(repr, sorted(BY_PASS)))}) AND s.received IS NOT NULL"
    " AND EXISTS (SELECT 1 FROM accounts a WHERE a.node = l.node AND a.accepted > 0)"
    " AND NOT EXISTS (SELECT 1 FROM reviews r WHERE r.lease = l.id AND r.by = 'appeal'))"
    " FROM (SELECT id, party, expires, node, era, version, position, attempt FROM leases"
    " WHERE state NOT IN ('open', 'received') AND sealed != x'' AND expires >= ? ORDER BY expires LIMIT ?) l"
    " LEFT JOIN submissions s ON s.lease = l.id LEFT JOIN verdicts v ON v.lease = l.id ORDER BY l.expires"
)


class Excerpt(msgspec.Struct, frozen=True, kw_only=True):
    """The place that decided a refused group. `first`: position in the rollout of the first of `tokens`. `position`:
    position of the deciding sampled token; None: the sample as a whole. `logprob`: claimed of it; None: there is
    none."""

    sample: int
    position: int | None
    seed: bytes
    first: int
    tokens: list[int]
    logprob: float | None


def excerpt_of(payload: bytes, lease: Lease, sample: int, position: int | None) -> bytes | None:
    """Return the encoded excerpt of a stored submission; None where it has no such sample."""
    try:
        rollouts = decode(payload, Submission).rollouts
    except Malformed:
        return None
    if not sample < min(len(rollouts), len(lease.seeds)):
        return None
    rollout = rollouts[sample]
    end = len(rollout.tokens) if position is None else _index_of(rollout.turns, position) + 1
    first = max(0, end - EXCERPT_TOKENS)
    claimed = None if position is None else rollout.logprobs[4 * position : 4 * position + 4]
    excerpt = Excerpt(
        sample=sample, position=position, seed=lease.seeds[sample], first=first, tokens=rollout.tokens[first:end],
        logprob=struct.unpack("<f", claimed)[0] if claimed and len(claimed) == 4 else None,
    )  # fmt: skip
    packed = msgspec.msgpack.encode(excerpt)
    return packed if len(packed) <= EXCERPT else None


def _index_of(turns: Sequence[int], position: int) -> int:
    """Return the position in a rollout of its sampled token `position`."""
    start = 0
    for number, length in enumerate(turns):
        if number % 2 == 0:
            if position < length:
                return start + position
            position -= length
        start += length
    return start - 1


class _Decided(NamedTuple):
    """A lease that ended. `submitted`: its id if it has a submission, else None. `needed`: whether rule 6 keeps its
    content, or there is none to delete."""

    id: bytes
    party: str
    submitted: bytes | None
    verdict: str | None
    expires: int
    needed: int


class _Ended(NamedTuple):
    """A lease that ended. `submitted`: its id if it has a submission, else None. `at`: when that was received. `era`,
    `version`: version of its row in the buffer, None without one. `aside`: its id if its group was set aside, else
    None."""

    id: bytes
    party: str
    submitted: bytes | None
    at: int | None
    verdict: str | None
    era: int | None
    version: int | None
    aside: bytes | None


def stored_bytes(database: Database) -> int:
    """Return the bytes of all stored groups (rule 6)."""
    return int(database.value("SELECT value FROM tallies WHERE name = ?", (STORED_BYTES,)))


class TokenStorage:
    """The stored tokens, and their number of bytes per party."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._from = 0
        """Expiry of the lease at which `make_room` goes on, ms: it found those before needed."""

    def room(self, lease: bytes, nbytes: int) -> bool:
        """Tell whether `nbytes` more bytes that earned nothing may be stored for the party of this lease. After the
        lease's content was deleted, no bytes may be stored: they would stay for ever."""
        row = self._database.one(
            "SELECT l.sealed = x'', coalesce(r.nbytes, 0) FROM leases l"
            " LEFT JOIN refused_tokens r ON r.party = l.party WHERE l.id = ?",
            (lease,),
        )
        return row is not None and not row[0] and row[1] + nbytes <= MOST_REFUSED

    def on_decided(self, end: Decided) -> None:
        """Keep what is kept of a refused group, in the transaction of its verdict."""
        if not end.is_refused:
            return
        if end.sample is not None:
            self.decided_at(end.lease.id, end.sample, end.position, end.now)
        self.on_refusal(end.lease.id)

    def on_refusal(self, lease: bytes) -> None:
        """Keep the stored tokens of a refused group, or only its hash (rule 2). Part of the caller's transaction."""
        query = "SELECT length(payload) FROM submissions WHERE lease = ?"
        nbytes = self._database.value(query, (lease,))
        if nbytes is None:
            return
        if self.room(lease, nbytes):
            self._count(lease, nbytes)
        else:
            self._database.do("UPDATE submissions SET payload = NULL WHERE lease = ?", (lease,))
            self._database.do("DELETE FROM compared WHERE lease = ?", (lease,))

    def decided_at(self, lease: bytes, sample: int, position: int | None, now: int) -> None:
        """Note the place that decided a refused group (rule 4). Part of the caller's transaction."""
        row = (lease, sample, position, now)
        self._database.do("INSERT OR IGNORE INTO excerpts VALUES (?, ?, ?, ?, x'')", row)

    def _keep_excerpt(self, lease: bytes) -> None:
        """Cut the excerpt out of a group that is about to be deleted (rule 4)."""
        row = self._database.one(
            "SELECT e.sample, e.position, s.payload, l.document, coalesce(a.accepted, 0) FROM excerpts e"
            " JOIN submissions s ON s.lease = e.lease JOIN leases l ON l.id = e.lease"
            " LEFT JOIN accounts a ON a.node = l.node WHERE e.lease = ?",
            (lease,),
        )
        if row is None:
            return
        sample, position, payload, document, worked = row
        packed = excerpt_of(payload, decode(document, Lease), sample, position) if payload and worked else None
        if packed is None:
            self._database.do("DELETE FROM excerpts WHERE lease = ?", (lease,))
        else:
            self._database.do("UPDATE excerpts SET tokens = ? WHERE lease = ?", (packed, lease))

    def forget_excerpts(self, now: int) -> int:
        """Delete the oldest excerpts whose time has passed; return how many."""
        query = "DELETE FROM excerpts WHERE lease IN (SELECT lease FROM excerpts WHERE at < ? ORDER BY at LIMIT ?)"
        return self._database.do(query, (now - EXCERPTS, FORGOTTEN_EXCERPTS))

    def other_bytes(self, lease: bytes, digest: bytes, data: bytes, now: int) -> None:
        """Store the first other bytes that were submitted for a lease, or only their hash (rule 2). Part of the
        caller's transaction."""
        kept = data if self.room(lease, len(data)) else b""
        query = "INSERT OR IGNORE INTO evidence VALUES (?, ?, ?, ?)"
        if self._database.do(query, (lease, digest, now, kept)):
            self._count(lease, len(kept))

    def forget(self, covered: Collection[bytes], step: int, era: int, staleness: int, ended_before: int) -> int:
        """Delete the content of at most `DELETED_LEASES_SLICE` leases whose window has passed, oldest first (rule 3);
        return how many.

        `covered`, `step`: the draws and the step of a *durable* checkpoint. Tokens are deleted that were drawn before
        it or can never be drawn after it (too old, or set aside). `ended_before`: ms. A call reads only the deleted
        leases and those that the learner may still draw."""
        drawn, oldest = frozenset(covered), oldest_fresh(step, staleness)

        def has_ended(one: _Ended) -> bool:
            if one.at is not None and one.at >= ended_before:
                return False
            spent = one.era is None or one.era < era or one.version is None or one.version < oldest
            return spent or one.id in drawn or one.aside is not None

        with contextlib.closing(self._database.each(_ENDED_LEASES_QUERY, (ended_before,))) as rows:
            gone = list(itertools.islice(filter(has_ended, itertools.starmap(_Ended, rows)), DELETED_LEASES_SLICE))
        return self._forget_slice(gone)

    def make_room(self, most: int, step: int, era: int, staleness: int) -> int:
        """Delete the content of at most `DELETED_LEASES_SLICE` groups that nothing needs, the oldest first, until all
        take `most` bytes (rule 6); return how many. `step`: see `forget`."""
        if stored_bytes(self._database) <= most:
            self._from = 0
            return 0
        asked = (era, oldest_fresh(step, staleness), self._from, LOOKED_AT_ONCE)
        looked_at = [_Decided(*row) for row in self._database.all(_STORED_GROUPS_QUERY, asked)]
        gone = [one for one in looked_at if not one.needed]
        if not gone:
            self._from = looked_at[-1].expires + 1 if len(looked_at) == LOOKED_AT_ONCE else 0
        return self._forget_slice(gone[:DELETED_LEASES_SLICE], most)

    def _forget_slice(self, gone: Sequence[_Ended | _Decided], most: int = 0) -> int:
        """Delete the content of the first of these leases in one transaction; return of how many. `most`: bytes of all
        stored groups at which to end."""
        forgotten = nbytes = 0
        with self._database.transaction():
            for one in gone:
                nbytes += self._size(one.id)
                if forgotten and (nbytes > SLICE_BYTES or (most and stored_bytes(self._database) <= most)):
                    break
                self._forget(one)
                forgotten += 1
        return forgotten

    def _size(self, lease: bytes) -> int:
        query = "SELECT length(payload) FROM submissions WHERE lease = ?"
        return self._database.value(query, (lease,)) or 0

    def _forget(self, one: _Ended | _Decided) -> None:
        length = "SELECT length(payload) FROM evidence WHERE lease = ?"
        nbytes = self._database.value(length, (one.id,)) or 0
        if one.submitted is None:  # other tokens of a turn are evidence without a submission
            if nbytes:
                self._uncount(one.party, nbytes)
            if isinstance(one, _Decided):  # within the window its lease stays
                self._database.do("UPDATE evidence SET payload = x'' WHERE lease = ?", (one.id,))
                return
            self._database.do("DELETE FROM evidence WHERE lease = ?", (one.id,))
            self._database.do("DELETE FROM leases WHERE id = ?", (one.id,))
            return
        if one.verdict == "refused":
            nbytes += self._size(one.id)
        if nbytes:
            self._uncount(one.party, nbytes)
        self._keep_excerpt(one.id)
        self._database.do("UPDATE evidence SET payload = x'' WHERE lease = ? AND payload != x''", (one.id,))
        self._database.do("UPDATE submissions SET payload = NULL, scores = NULL WHERE lease = ?", (one.id,))
        self._database.do("DELETE FROM episode_scores WHERE lease = ?", (one.id,))
        self._database.do("DELETE FROM compared WHERE lease = ?", (one.id,))
        self._database.do("UPDATE buffer SET behaviour = NULL WHERE lease = ?", (one.id,))
        document: bytes = self._database.value("SELECT document FROM leases WHERE id = ?", (one.id,))
        bare = encode(msgspec.structs.replace(decode(document, Lease), prompt=[], seeds=[one.id]))
        query = "UPDATE leases SET document = ?, sealed = x'', nonce = id WHERE id = ?"
        self._database.do(query, (bare, one.id))

    def _count(self, lease: bytes, nbytes: int) -> None:
        self._database.do(
            "INSERT INTO refused_tokens SELECT party, ? FROM leases WHERE id = ?"
            " ON CONFLICT DO UPDATE SET nbytes = nbytes + excluded.nbytes",
            (nbytes, lease),
        )

    def _uncount(self, party: str, nbytes: int) -> None:
        self._database.do("UPDATE refused_tokens SET nbytes = nbytes - ? WHERE party = ?", (nbytes, party))
        self._database.do("DELETE FROM refused_tokens WHERE party = ? AND nbytes <= 0", (party,))
