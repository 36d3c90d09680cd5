"""Verdicts on the tokens of moved leases: they are paid and wait for another node, or are refused.

Rules
1. The tokens are judged as a group's are (verification.py, rule 3), by the pass of the scorer under their version, and
   with the first node's log-probabilities. Samples without tokens take no part.
2. If they hold, the first node is paid for them at once (moving.py, rule 6), by an entry `begun.paid`, whatever
   becomes of the second lease. They go on to another node if that is still in time.
3. If they do not, an entry `begun.refused` says so, which counts as a refused group of the key, and the code is a
   strike as it is for a group (coordinator/accounts/strikes.py). The position is leased anew, whole.
4. A verdict, its entry, its pay and the next state of the moved lease are one transaction. A second verdict changes
   nothing.
5. Near-ties of these tokens are held to `close-choices` alone, and not counted over a key's groups: what a key may have
   of them is bounded by its budget of expired leases.
"""

import blake3
import structlog

from echo2.coordinator.accounts.accounting import Accounting
from echo2.coordinator.accounts.pay import PayRule
from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.kinds.begun_table import MovedGroup
from echo2.coordinator.leases.kinds.moving import WAIT, is_in_time
from echo2.coordinator.leases.lease_table import LeaseTable
from echo2.coordinator.leases.lease_terms import Progress
from echo2.coordinator.verification.verification import Verdict
from echo2.ledger.ledger_entries import ESCROW, accrued
from echo2.ledger.ledger_facts import BegunOutcome
from echo2.p2p.identity import peer_id
from echo2.protocol.leases import Lease

log = structlog.get_logger("coordinator")
TALLY = "INSERT INTO tallies VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = value + ?2"
MOVED, MOVED_TOKENS, FINISHED_TOKENS = "moved leases", "moved tokens", "finished tokens"
"""Tallies: leases whose tokens were paid; their tokens; those of them whose groups another node has finished."""


class PartialVerdicts:
    """The ends of moved leases."""

    def __init__(self, database: Database, leases: LeaseTable, accounting: Accounting, pay: PayRule) -> None:
        self._database, self._leases, self._pay = database, leases, pay
        self._ledger, self._accounts, self._strikes = accounting.ledger, accounting.accounts, accounting.strikes
        self._costs = accounting.costs

    def decide(self, lease: Lease, verdict: Verdict, progress: Progress, now: int) -> None:
        """Decide the tokens of a moved lease (rules 2 and 3)."""
        with self._database.transaction():
            group, record = self._leases.begun.unverified(lease.id), self._leases.find(lease.id)
            if group is None or record is None:
                return
            if verdict.accepted:
                self._accept(record.lease, group, progress, now)
            else:
                self._refuse(record.lease, group, verdict.code, now)

    def _accept(self, lease: Lease, group: MovedGroup, progress: Progress, now: int) -> None:
        begun = [len(one.tokens) for one in self._leases.begun.tokens(lease.id, len(lease.seeds))]
        total, tokens = self._pay.begun(self._costs.now.costs, len(lease.prompt), begun), sum(begun)
        self._pay.fund(self._ledger, now, total)
        self._append(now, "begun.paid", lease, "moved", begun, total)
        self._database.do(TALLY, (MOVED, 1))
        self._database.do(TALLY, (MOVED_TOKENS, tokens))
        for holder in (lease.node, b""):
            self._database.do(
                "INSERT INTO sums VALUES (?, 'moved', 'moved', 0, 0, 0, ?, ?) ON CONFLICT DO UPDATE SET"
                " tokens = tokens + excluded.tokens, weight = weight + excluded.weight",
                (holder, tokens, total),
            )
        self._database.do("UPDATE nodes SET weight = weight + ? WHERE key = ?", (total, lease.node))
        self._leases.begun.verified(lease.id, now)
        log.info("tokens of a lost lease hold", lease=lease.id.hex(), tokens=tokens, weight=total)
        if not self._is_wanted(group, progress):
            self._return(group, now)

    def _refuse(self, lease: Lease, group: MovedGroup, code: str, now: int) -> None:
        begun = self._leases.begun.tokens(lease.id, len(lease.seeds))
        evidence = blake3.blake3(b"".join(one.logprobs for one in begun)).digest()
        self._append(now, "begun.refused", lease, code, [len(one.tokens) for one in begun], 0)
        self._leases.begun.refused(lease.id)
        self._leases.positions.ended(group.position, group.attempt, group.reasons, code, now)
        self._strikes.refused(lease.node, code, evidence, now)
        log.warning("tokens of a lost lease refused", lease=lease.id.hex(), code=code)

    def tick(self, progress: Progress | None, now: int) -> None:
        """Return the positions whose moved leases no node has taken (moving.py, rule 4). Call every second or so."""
        for group in self._leases.begun.waiting():
            stale = progress is not None and not self._is_wanted(group, progress)
            if stale or not 0 <= now - group.since < WAIT:
                with self._database.transaction():
                    self._return(group, now)

    def _return(self, group: MovedGroup, now: int) -> None:
        self._leases.begun.end(group.lease)
        self._leases.positions.ended(group.position, group.attempt, group.reasons, "expired", now)

    def _is_wanted(self, group: MovedGroup, at: Progress) -> bool:
        terms = self._leases.terms
        return terms.move and group.era == at.era and is_in_time(group.version, at.step, terms.staleness)

    def _append(self, now: int, kind: str, lease: Lease, code: str, begun: list[int], weight: int) -> None:
        facts = BegunOutcome(
            node=peer_id(lease.node), lease=lease.id, era=lease.era, version=lease.version, code=code,
            tokens=begun, weight=weight, prompt=len(lease.prompt), costs=self._costs.now.entry,
        )  # fmt: skip
        postings = self._pay.moves(ESCROW, accrued(facts.node), weight)
        entry = self._ledger.append(now, kind, f"begun:{lease.id.hex()}", facts, postings)
        self._accounts.take(entry)
