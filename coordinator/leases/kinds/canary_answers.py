"""The answers of canaries in run.sqlite: those that the scorer made, and accepted groups of proven nodes (canaries.py).

Rules
1. Table `canary_answers` has the scorer's answers. Each belongs to the position and attempt of an earlier lease, whose
   prompt it has, with seeds of its own that no node has seen. Giving it as a canary writes the lease's id into its row.
   While the scorer makes it, the group of that earlier lease may become the answer of a canary: then it is not given.
2. The scorer makes an answer only if one was wanted since the last, at most `KEPT_ANSWERS` that are not given yet,
   under the newest version. The rows of versions too old to be leased, and of leases that are decided, are deleted
   (`forget`).
3. A proven node's group is drawn from the buffer's groups of the version by a random lease id, which is as good as
   uniform. A draw reads at most 2 * `LOOKED_AT` rows, whatever the buffer has and whose groups they are.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np

from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.kinds.canaries import KnownAnswer, KnownRollout
from echo2.coordinator.prompts.prompts import Prompt
from echo2.coordinator.verification.submitted_group import decode_stored_group
from echo2.engines.engine import Sample
from echo2.engines.process.messages import floats
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease

KEPT_ANSWERS: Final = 2
LOOKED_AT: Final = 16
FORGOTTEN_AT_ONCE: Final = 32
_OF_PROVEN: Final = (
    "SELECT l.id, l.node, l.position, l.attempt, l.document FROM (SELECT lease, behaviour FROM buffer"
    " WHERE era = ? AND version = ? AND lease >= ? AND lease < ? ORDER BY lease LIMIT ?) b"
    " JOIN leases l ON l.id = b.lease JOIN submissions s ON s.lease = b.lease"
    " WHERE l.node != ? AND (l.party = '' OR l.party != ?) AND b.behaviour IS NOT NULL AND s.payload IS NOT NULL"
    " AND l.sealed != x'' AND NOT EXISTS (SELECT 1 FROM leases c WHERE c.position = l.position"
    " AND c.attempt = l.attempt AND (c.twin = 'canary' OR c.node = ?)) ORDER BY b.lease"
)
_NEWEST_LEASES_QUERY: Final = (
    "SELECT l.position, l.attempt, l.document FROM (SELECT * FROM leases ORDER BY rowid DESC LIMIT ?) l"
    " WHERE l.era = ? AND l.version = ? AND l.sealed != x'' AND NOT EXISTS (SELECT 1 FROM leases c"
    " WHERE c.position = l.position AND c.attempt = l.attempt AND c.twin = 'canary')"
    " AND NOT EXISTS (SELECT 1 FROM canary_answers a WHERE a.position = l.position AND a.attempt = l.attempt)"
)
_LAST_LEASE: Final = b"\xff" * 17
"""Above every lease's id."""


class ChosenAnswer(NamedTuple):
    """An answer for a canary that is about to be given. `row`: its row if the scorer made it, else None."""

    position: int
    attempt: int
    prompt: Prompt
    seeds: list[bytes]
    row: int | None


class WantedAnswer(NamedTuple):
    """An answer that the scorer is to make, for the prompt of an earlier lease."""

    position: int
    attempt: int
    prompt: Prompt
    seeds: list[bytes]


class _ScorersAnswer(msgspec.Struct, frozen=True):
    """An answer of the scorer, as it is stored."""

    prompt: Prompt
    seeds: list[bytes]
    samples: list[Sample]


class CanaryAnswers:
    """The answers at hand. Use from the thread of the database."""

    def __init__(
        self, database: Database, accounts: Accounts, served: Collection[str], entropy: Callable[[int], bytes]
    ) -> None:
        """`served`: names of tasks without canaries. `entropy`: n -> n random bytes."""
        self._database = database
        self._accounts = accounts
        self._served = served
        self._entropy = entropy
        self._wanted = 0

    def choose(self, node: bytes, origin: Origin, era: int, version: int, now: int) -> ChosenAnswer | None:
        """Choose an answer under a version for a node; None: there is none at hand."""
        self._wanted = min(self._wanted + 1, KEPT_ANSWERS)
        return self._of_scorer(era, version) or next(self._of_proven(node, origin, era, version, now), None)

    def _of_scorer(self, era: int, version: int) -> ChosenAnswer | None:
        row = self._database.one(
            "SELECT a.id, a.position, a.attempt, a.answer FROM canary_answers a WHERE a.era = ? AND a.version = ?"
            " AND a.lease IS NULL AND NOT EXISTS (SELECT 1 FROM leases c WHERE c.position = a.position"
            " AND c.attempt = a.attempt AND c.twin = 'canary') ORDER BY a.id LIMIT 1",
            (era, version),
        )
        if row is None:
            return None
        stored = msgspec.msgpack.decode(row[3], type=_ScorersAnswer)
        return ChosenAnswer(row[1], row[2], stored.prompt, stored.seeds, row[0])

    def _of_proven(self, node: bytes, origin: Origin, era: int, version: int, now: int) -> Iterator[ChosenAnswer]:
        pivot = self._entropy(16)
        for first, last in ((pivot, _LAST_LEASE), (b"", pivot)):
            given = (era, version, first, last, LOOKED_AT, node, origin.party, node)
            for _, owner, position, attempt, document in self._database.all(_OF_PROVEN, given):
                if self._accounts.of(owner, now).rank != "proven":
                    continue
                lease = decode(document, Lease)
                if lease.calibration is None and lease.task not in self._served:
                    prompt = Prompt(lease.task, lease.task_version, lease.index, lease.prompt)
                    yield ChosenAnswer(position, attempt, prompt, lease.seeds, None)

    def on_grant(self, answer: ChosenAnswer, lease: bytes) -> None:
        """Note the canary to which an answer went, in the transaction that writes the lease."""
        if answer.row is not None:
            self._database.do("UPDATE canary_answers SET lease = ? WHERE id = ?", (lease, answer.row))
        self.count("canaries given by the scorer's answer" if answer.row is not None else "canaries given")

    def answer_of(self, lease: bytes) -> KnownAnswer | None:
        """Return the answer of a canary; None: the lease is none, or its answer is no longer stored."""
        if self._database.value("SELECT twin FROM leases WHERE id = ?", (lease,)) != "canary":
            return None
        stored = self._database.value("SELECT answer FROM canary_answers WHERE lease = ?", (lease,))
        if stored is not None:
            return KnownAnswer(
                [_known_rollout(one) for one in msgspec.msgpack.decode(stored, type=_ScorersAnswer).samples], 0
            )
        row = self._database.one(
            "SELECT s.payload, b.behaviour, e.facts FROM leases c JOIN leases l ON l.position = c.position"
            " AND l.attempt = c.attempt AND l.id != c.id JOIN buffer b ON b.lease = l.id"
            " JOIN submissions s ON s.lease = l.id JOIN verdicts v ON v.lease = l.id JOIN entries e ON e.seq = v.entry"
            " WHERE c.id = ? AND s.payload IS NOT NULL AND b.behaviour IS NOT NULL",
            (lease,),
        )
        return None if row is None else answer_of_group(*row)

    def wanted_answer(self, era: int, version: int, group_size: int) -> WantedAnswer | None:
        """Return the answer that the scorer should make under the newest version; None: it is not needed (rule 2)."""
        query = "SELECT count(*) FROM canary_answers WHERE era = ? AND version = ? AND lease IS NULL"
        if not self._wanted or self._database.value(query, (era, version)) >= KEPT_ANSWERS:
            return None
        rows = [
            WantedAnswer(position, attempt, Prompt(one.task, one.task_version, one.index, one.prompt), [])
            for position, attempt, document in self._database.all(_NEWEST_LEASES_QUERY, (4 * LOOKED_AT, era, version))
            if (one := decode(document, Lease)).task not in self._served
        ]
        if not rows:
            return None
        chosen = rows[int.from_bytes(self._entropy(8)) % len(rows)]
        return chosen._replace(seeds=[self._entropy(16) for _ in range(group_size)])

    def put(self, era: int, version: int, wanted: WantedAnswer, samples: list[Sample], now: int) -> None:
        """Store an answer that the scorer made."""
        self._wanted -= 1
        packed = msgspec.msgpack.encode(_ScorersAnswer(wanted.prompt, wanted.seeds, samples))
        row = (era, version, wanted.position, wanted.attempt, packed, now)
        query = "INSERT INTO canary_answers (era, version, position, attempt, answer, at) VALUES (?, ?, ?, ?, ?, ?)"
        self._database.do(query, row)

    def forget(self, era: int, oldest: int) -> int:
        """Delete at most `FORGOTTEN_AT_ONCE` answers that are of no use (rule 2). `oldest`: the oldest version that is
        leased."""
        return self._database.do(
            "DELETE FROM canary_answers WHERE id IN (SELECT a.id FROM canary_answers a LEFT JOIN leases l"
            " ON l.id = a.lease WHERE (a.lease IS NULL AND (a.era < ? OR a.version < ?))"
            " OR (a.lease IS NOT NULL AND coalesce(l.state, 'expired') NOT IN ('open', 'received')) LIMIT ?)",
            (era, oldest, FORGOTTEN_AT_ONCE),
        )

    def count(self, what: str) -> None:
        """Add one to a tally (coordinator/metrics/canary_counts.py)."""
        query = "INSERT INTO tallies VALUES (?, 1) ON CONFLICT DO UPDATE SET value = value + 1"
        self._database.do(query, (what,))


def _known_rollout(sample: Sample) -> KnownRollout:
    return KnownRollout(np.asarray(sample.tokens, np.int32), sample.turns, np.asarray(sample.logprobs, np.float32))


class _Ties(msgspec.Struct, frozen=True):
    near_ties: int = 0


def answer_of_group(payload: bytes, behaviour: bytes, facts: bytes) -> KnownAnswer:
    """Return an accepted group as an answer. `payload`: its submission. `behaviour`: behaviour as the buffer stores it.
    `facts`: facts of its ledger entry."""
    rollouts = decode_stored_group(payload).rollouts
    logprobs = msgspec.msgpack.decode(behaviour, type=list[bytes])
    known = [KnownRollout(one.tokens, one.turns, floats(ours)) for one, ours in zip(rollouts, logprobs, strict=True)]
    return KnownAnswer(known, msgspec.msgpack.decode(facts, type=_Ties).near_ties)
