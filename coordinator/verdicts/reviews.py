"""Further checks of verdicts: who may ask for one, in which order they come, and what follows from their answers.

Rules
1. A node may appeal the refusal of a group of its own, and the operator may have any verdict checked again, while the
   whole group is stored (coordinator/verdicts/token_storage.py): for the challenge window where its node may appeal,
   else until it gives way to newer groups. After that nothing is left to check, and the request is refused.
2. An appeal is for refusals by the scorer's pass (`BY_PASS`). All other codes follow from the submission's bytes and
   from times, and would come out the same. Refusals that no pass can change are refused with that reason. So is every
   group that was not received: it failed T0 or came late. T0 ends at its first fault, so nothing vouches for the rest
   of the bytes, and such a group is never scored.
3. Only keys with accepted work may appeal, one group at a time. A lease is appealed once: a second appeal returns what
   is known and changes nothing.
4. Checks are made by a scorer process that did not make the verdict (coordinator/training/review_loop.py), alternately
   the oldest, and of the node with most accepted groups its oldest. So many keys with a group each, which ask for more
   than the time there is, do not let the appeal of a node that works wait until its group is no longer stored. Checks
   survive a restart.
   The group that began a day of quarantine which ended badly is checked so too, by an "audit", and so are refused
   groups that agree with another node's (audits.py, rule 7).
5. Both answers are stored, in an entry `appeal.answered`. Where a group that the pass refused is right in the second
   check, the verdict is reversed in its node's favour (coordinator/accounts/reversals.py). No check takes anything from
   a node: the operator does that, by `echo2-coord verdict reverse`.
6. A check that cannot be made is lost, with a reason: its version can no longer be loaded, or the scorer failed at it.
   One that waits until its group is deleted is lost then, not at its turn: it would keep the files of all versions from
   its own on, and its node from another appeal.
7. Rows of answered checks are deleted after `REVIEWS_KEPT_MS`; the ledger keeps the answers.
8. For a check that waits the versions from its own on are kept, at most `MOST_PINNED_VERSIONS` of them. Otherwise a few
   keys with one refused group each could have the coordinator keep a day's payloads, and the scorer the journals of a
   day's steps. A check of an older version is made where that can still be loaded, else it is lost.
"""

from typing import Final, Literal, NamedTuple

from echo2.coordinator.accounts.decided import BY_PASS
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.coordinator.verification.submitted_group import decode_stored_group
from echo2.ledger.ledger_facts import AppealAnswered
from echo2.p2p.identity import peer_id
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease
from echo2.protocol.refusals import refusal
from echo2.protocol.requests import Refusal
from echo2.runtime.units import DAY

By = Literal["appeal", "operator", "audit"]
REVIEWS_KEPT_MS: Final = 30 * DAY
"""Milliseconds."""
FORGOTTEN_AT_ONCE: Final = 32
MOST_PINNED_VERSIONS: Final = 256
"""Versions."""
APPEAL_RETRY_MS: Final = 60_000
"""Milliseconds after which a node may ask whether it can appeal another group."""
LOST_REVIEW: Final = "lost"


class Review(NamedTuple):
    """One check. `asked`, `answered`: ms. `state`: waiting, answered or lost. `code`, `reason`: its answer."""

    lease: bytes
    by: By
    node: bytes
    asked: int
    state: str
    code: str
    reason: str
    answered: int


class Reviews:
    """The table `reviews`."""

    def __init__(self, database: Database, ledger: Ledger) -> None:
        self._database = database
        self._ledger = ledger
        self._answered = 0
        """Checks that this process answered: an odd number gives the turn to the node with most accepted groups."""

    def appeal(self, node: bytes, lease: bytes, now: int) -> Refusal | None:
        """Take a node's appeal; return why not, if so (rules 1 to 3)."""
        known = self._database.one("SELECT node FROM leases WHERE id = ?", (lease,))
        if known is None:
            return refusal("unknown-lease")
        if known[0] != node:
            return refusal("not-owner")
        if self.find(lease, "appeal") is not None:
            return None
        detail = self._hindrance(node, lease)
        if detail is not None:
            return refusal("no-appeal", detail=detail)
        if self._database.one("SELECT 1 FROM reviews WHERE node = ? AND by = 'appeal' AND state = 'waiting'", (node,)):
            return refusal("one-appeal", retry_after=APPEAL_RETRY_MS)
        self._put(lease, "appeal", node, now)
        return None

    def _hindrance(self, node: bytes, lease: bytes) -> str | None:
        """Return why a node's own lease cannot be appealed; None: it can be."""
        row = self._database.one("SELECT verdict, code FROM verdicts WHERE lease = ?", (lease,))
        if row is None:
            return "there is no verdict yet"
        if row[0] != "refused":
            return "the group was accepted"
        if row[1] not in BY_PASS or not self.was_received(lease):
            return _finality_text(row[1])
        if not self._database.value("SELECT accepted FROM accounts WHERE node = ?", (node,)):
            return "no group of this node was accepted yet"
        return None if self.is_stored(lease) else "its challenge window has ended, and the group is no longer stored"

    def ask(self, lease: bytes, by: By, now: int) -> bool:
        """Ask for a check of a verdict by the operator or an audit; tell whether its group can be checked (rules 1 and
        2). A check that was asked for before is not asked for twice while it waits."""
        row = self._database.one("SELECT node FROM verdicts WHERE lease = ?", (lease,))
        if row is None or not self.can_check(lease):
            return False
        known = self.find(lease, by)
        if known is None or known.state != "waiting":
            self._database.do("DELETE FROM reviews WHERE lease = ? AND by = ?", (lease, by))
            self._put(lease, by, row[0], now)
        return True

    def can_check(self, lease: bytes) -> bool:
        """Tell whether the group of a lease can be checked: it was received, and is stored whole (rules 1 and 2)."""
        return self.is_stored(lease) and self.was_received(lease)

    def by_its_bytes(self, lease: bytes) -> str | None:
        """Return the sentence about a decided group that was never received (rule 2); None: it was, or there is no
        verdict."""
        code = self._database.value("SELECT code FROM verdicts WHERE lease = ?", (lease,))
        return None if code is None or self.was_received(lease) else _finality_text(code)

    def _put(self, lease: bytes, by: By, node: bytes, now: int) -> None:
        query = "INSERT INTO reviews VALUES (?, ?, ?, ?, 'waiting', '', '', 0)"
        self._database.do(query, (lease, by, node, now))

    def is_stored(self, lease: bytes) -> bool:
        """Tell whether the whole group of a lease is stored."""
        query = (
            "SELECT 1 FROM leases l JOIN submissions s ON s.lease = l.id"
            " WHERE l.id = ? AND l.sealed != x'' AND s.payload NOT NULL"
        )
        return self._database.one(query, (lease,)) is not None

    def was_received(self, lease: bytes) -> bool:
        """Tell whether the group of a lease came in time and passed T0 (rule 2)."""
        query = "SELECT 1 FROM submissions WHERE lease = ? AND received IS NOT NULL"
        return self._database.one(query, (lease,)) is not None

    def decided_at(self, lease: bytes) -> int:
        """Return when the verdict on a lease was given, ms."""
        return int(self._database.value("SELECT at FROM verdicts WHERE lease = ?", (lease,)) or 0)

    def find(self, lease: bytes, by: By) -> Review | None:
        """Return the check of a verdict that was asked for so; None: none was."""
        row = self._database.one("SELECT * FROM reviews WHERE lease = ? AND by = ?", (lease, by))
        return None if row is None else Review(*row)

    def of(self, lease: bytes) -> list[Review]:
        """Return the checks of a verdict."""
        return [Review(*row) for row in self._database.all("SELECT * FROM reviews WHERE lease = ?", (lease,))]

    def next(self, *, appeals: bool) -> Review | None:
        """Return the check that is due (rule 4). `appeals`: whether appeals have time left."""
        where = "" if appeals else " AND by != 'appeal'"
        most = "(SELECT accepted FROM accounts a WHERE a.node = reviews.node) DESC," if self._answered % 2 else ""
        query = f"SELECT * FROM reviews WHERE state = 'waiting'{where} ORDER BY {most} asked, lease LIMIT 1"
        row = self._database.one(query)
        return None if row is None else Review(*row)

    def oldest_version(self, era: int, newest: int) -> tuple[int, int] | None:
        """Return (era, version) of the oldest version that is kept for a waiting check (rule 8); None: none is.
        `newest`: the newest version of the present `era`."""
        query = (
            "SELECT l.era, l.version FROM reviews r JOIN leases l ON l.id = r.lease WHERE r.state = 'waiting'"
            " AND l.era = ? AND l.version > ? ORDER BY l.version LIMIT 1"
        )
        row = self._database.one(query, (era, newest - MOST_PINNED_VERSIONS))
        return None if row is None else (row[0], row[1])

    def group(self, review: Review) -> Undecided | None:
        """Read the group of a check; None: it is no longer stored, or was never received (rule 2)."""
        if not self.can_check(review.lease):
            return None
        document, payload, at = self._database.all(
            "SELECT l.document, s.payload, s.at FROM leases l JOIN submissions s ON s.lease = l.id WHERE l.id = ?",
            (review.lease,),
        )[0]
        return Undecided(decode(document, Lease), decode_stored_group(payload), at)

    def answer(self, review: Review, first: str, again: str, reason: str, now: int) -> None:
        """Store the answer of a check that waits, and its entry (rules 5 and 6), in the caller's transaction. `first`:
        the code of the verdict. `again`: that of the check, or `LOST_REVIEW`."""
        state = LOST_REVIEW if again == LOST_REVIEW else "answered"
        query = (
            "UPDATE reviews SET state = ?, code = ?, reason = ?, answered = ?"
            " WHERE lease = ? AND by = ? AND state = 'waiting'"
        )
        if not self._database.do(query, (state, again, reason, now, review.lease, review.by)):
            return
        self._answered += again != LOST_REVIEW
        fact = AppealAnswered(
            node=peer_id(review.node), lease=review.lease, by=review.by, asked=review.asked, code=first, again=again,
            reason=reason[:300],
        )  # fmt: skip
        key = f"{review.by}:{review.lease.hex()}:{review.asked}"
        self._ledger.append(now, "appeal.answered", key, fact)

    def too_late(self) -> list[Review]:
        """Return those of the checks that have waited longest whose groups are no longer stored (rule 6)."""
        query = "SELECT * FROM reviews WHERE state = 'waiting' ORDER BY asked LIMIT ?"
        oldest = (Review(*row) for row in self._database.all(query, (FORGOTTEN_AT_ONCE,)))
        return [review for review in oldest if not self.is_stored(review.lease)]

    def forget(self, now: int) -> int:
        """Delete the oldest answered checks whose time has passed (rule 7); return how many."""
        query = (
            "DELETE FROM reviews WHERE (lease, by) IN (SELECT lease, by FROM reviews WHERE state != 'waiting'"
            " AND answered < ? ORDER BY answered LIMIT ?)"
        )
        return self._database.do(query, (now - REVIEWS_KEPT_MS, FORGOTTEN_AT_ONCE))


def _finality_text(code: str) -> str:
    return f"{code} follows from the submission and its time, which a further check does not change"
