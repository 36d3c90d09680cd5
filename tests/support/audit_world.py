"""A run in which leases are drawn to be audited: nodes of different subnets, of which Alice and Bob are proven."""

from pathlib import Path
from typing import Any

import msgspec

from echo2.coordinator.metrics.audit_counts import audit_view
from echo2.coordinator.metrics.views import AuditView
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.engines.engine import SampleScore
from echo2.protocol.leases import Lease, Receipt
from tests.support.canary_world import CanaryWorld
from tests.support.group_world import ALICE, BOB, group, honest_scores
from tests.support.twin_world import PROVEN


class AuditWorld(CanaryWorld):
    """A world without canaries, in which each lease is drawn unless `audits` is given."""

    def __init__(self, folder: Path, **terms: Any) -> None:
        super().__init__(folder, **({"canaries": 0.0, "audits": 1.0} | terms))

    def prove(self, *nodes: bytes, groups: int = PROVEN) -> None:
        """Let nodes become proven, and the learner make a step: what was drawn meanwhile is no longer leased."""
        super().prove(*nodes, groups=groups)
        self.learner_at(self.version + 1)

    @property
    def view(self) -> AuditView:
        """The audits so far, as status and page show them."""
        return audit_view(self.group_service.database)

    def pair(self) -> tuple[Lease, Lease]:
        """Give Alice a lease, and Bob its twin."""
        first = self.given(ALICE)
        audit = self.given(BOB)
        assert self.kind(audit) == "audit"
        return first, audit

    def refused(self, lease: Lease, texts: list[str]) -> Receipt:  # type: ignore[override]
        """Let the node of a lease bring a group of these texts, which the scorer finds wrong."""
        self.submit(group(lease, texts), lease.node)
        return self.found_wrong(next(one for one in self.group_service.list_undecided() if one.lease.id == lease.id))

    def found_wrong(self, waiting: Undecided) -> Receipt:
        """Let the scorer find a group wrong."""
        scores = honest_scores(waiting.submission)
        return self.decide(
            waiting, [SampleScore(logprobs=one.logprobs, margins=[1.0] * len(one.margins)) for one in scores]
        )

    def facts(self, lease: Lease) -> dict[str, object]:
        """Return what the ledger says of the end of a lease."""
        entry = self.group_service.ledger.find(f"lease:{lease.id.hex()}")
        assert entry is not None
        decoded: dict[str, object] = msgspec.msgpack.decode(entry.facts)
        return decoded

    def learned(self, lease: Lease) -> bool:
        """Tell whether the group of a lease is in the buffer."""
        query = "SELECT 1 FROM buffer WHERE lease = ?"
        return self.group_service.database.one(query, (lease.id,)) is not None
