"""Write a lease of any kind, and what each kind of lease does (coordinator/leases/kinds/__init__.py).

Rules
1. A lease, its owner and its place in the room are written in one transaction, before it is sent.
2. The Lease has no field for its kind: no node can tell one kind from another (twin_sets.py, rule 1).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from echo2.coordinator.accounts.decided import Decided
from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.lease_admission import LeaseDemand
from echo2.coordinator.leases.lease_table import LeaseTable
from echo2.coordinator.leases.lease_terms import LeaseTerms, Progress
from echo2.coordinator.leases.rollout_context import Entropy, Seal
from echo2.coordinator.leases.twin_sets import Kind
from echo2.coordinator.prompts.prompt_positions import PromptPosition
from echo2.coordinator.verification.open_classes import OpenClasses
from echo2.coordinator.verification.submitted_group import ClaimedRollout
from echo2.coordinator.verification.verification import Verdict
from echo2.engines.registry import is_exact
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease, LeaseRequest
from echo2.protocol.requests import Refusal

_INSERT: Final = (
    "INSERT INTO leases (id, node, nonce, position, era, version, sent, expires, document, sealed, attempt,"
    " connection, party, twin, counts, ahead, late_after, state)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'open')"
)


class AskedLease(NamedTuple):
    """A request whose node may have a lease. `demand`: its facts, with the lifetime of a training prompt's lease.
    `refused`: why there is no room for a plain lease; None: there is room. `on_their_way`: groups that are on their way
    to the learner."""

    demand: LeaseDemand
    request: LeaseRequest
    progress: Progress
    refused: Refusal | None
    on_their_way: int
    now: int

    @property
    def exact(self) -> bool:
        """True if the node's engine class is exact."""
        return is_exact(self.request.engine)


class LeaseKind:
    """One kind of lease. `takes_room`: whether a lease of it takes the turn and the room of its node."""

    takes_room = True

    def offer(self, asked: AskedLease) -> bytes | Refusal | None:
        """Return a sealed Lease of this kind, or why none of any further kind is given; None: the next kind may."""
        raise NotImplementedError

    def compare(self, lease: bytes, rollouts: Sequence[ClaimedRollout]) -> Verdict | None:
        """Return the verdict on a group that agrees with a known one; None: it must be scored."""
        return None

    def on_decided(self, end: Decided) -> None:
        """Change what follows for this kind from the end of a lease, in the transaction of that."""

    def take(self, terms: LeaseTerms) -> None:
        """Take other terms: leases from now on have them."""

    def forget(self, era: int, oldest: int) -> int:
        """Delete a slice of what is of no use any more; return how many. `oldest`: the oldest version that is
        leased."""
        return 0


class LeaseWriter:
    """The writer of the leases of one table."""

    def __init__(
        self, database: Database, table: LeaseTable, seal: Seal, entropy: Entropy, classes: OpenClasses
    ) -> None:
        self._database, self._table, self._admission = database, table, table.admission
        self._seal, self._entropy, self._classes = seal, entropy, classes

    def write(
        self,
        chosen: PromptPosition,
        asked: AskedLease,
        kind: Kind = "",
        seeds: list[bytes] | None = None,
        ahead: int | None = None,
    ) -> tuple[bytes, bytes]:
        """Write a lease, in the caller's transaction; return its id, and it sealed. `seeds`: seeds of a twin; None:
        they are drawn. `ahead`: see `CompletedBatch`."""
        demand, now = asked.demand, asked.now
        node, origin = demand.requester.node, demand.requester.origin
        lease = self._lease(chosen, asked, seeds)
        document = encode(lease)
        sealed = self._seal("lease", document)
        own = lease.id, node, lease.nonce, chosen.position, lease.era, lease.version, now, lease.expires
        room = chosen.attempt, *origin[:2], kind, kind != "canary", ahead, demand.lifetime.late_after
        self._database.do(_INSERT, (*own, document, sealed, *room))
        self._admission.lend(demand, lease.id, lease.era, lease.version, chosen.reasons, now)
        if kind != "canary" and demand.requester.share == "new":
            self._table.newcomers.give(lease.id, self._admission.usual_time(now), now)
        return lease.id, sealed

    def _lease(self, chosen: PromptPosition, asked: AskedLease, seeds: list[bytes] | None) -> Lease:
        demand, request, terms = asked.demand, asked.request, self._table.terms
        return Lease(
            id=self._entropy(16),
            node=demand.requester.node,
            nonce=request.nonce,
            task=chosen.prompt.task,
            task_version=chosen.prompt.task_version,
            index=chosen.prompt.index,
            prompt=chosen.prompt.tokens,
            seeds=seeds or [self._entropy(16) for _ in range(terms.group_size)],
            limit=terms.limit,
            era=request.era,
            version=request.version,
            root=request.root,
            sent=asked.now,
            expires=asked.now + demand.lifetime.lasts,
            calibration=None if asked.exact else self._classes.of(request.engine),
            ranges_asked=not asked.exact,
            at_once=demand.requester.most_open,
        )
