"""The facts of a ledger entry about the end of a lease, with what its group was judged by. Pure.

The ledger has one entry for each end, under the key `key_of`; coordinator/verdicts/lease_entries.py writes it.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from echo2.coordinator.leases.lease_rows import LeaseRecord
from echo2.coordinator.verification.evidence_table import EvidenceStep
from echo2.coordinator.verification.near_ties import NearTieCount
from echo2.coordinator.verification.submitted_group import ClaimedRollout
from echo2.ledger.ledger_facts import VERDICT_RULES
from echo2.p2p.identity import peer_id
from echo2.protocol.group_weights import GroupLengths, Turns
from echo2.protocol.leases import Lease


class LeaseOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a ledger entry about the end of a lease. Times in ms, `weight` in milli-RE. `audited`: how the group
    was audited: "exact", by T1 and T2 in an exact class; "evidence", in another class, with the evidence against its
    node below `AUDITED_EVIDENCE` after it; "canary", equal to a known answer; "rerun", equal to an accepted group of
    another node; empty: it was not (audited_work.py).
    `prompt`, `turns`: prompt and turns of an accepted group, its GroupLengths. `costs`: number of the entry by whose
    Costs its weight was computed; 0: by none (accounts/cost_tables.py)."""

    node: str
    lease: bytes
    era: int
    version: int
    sent: int
    expires: int
    received: int | None
    code: str
    rollouts: int
    tokens_in: int
    tokens_out: int
    weight: int
    trainable: bool
    submission_hash: bytes | None
    rules: int = 1
    audited: str = ""
    prompt: int = 0
    turns: list[list[int]] = []
    costs: int = 0


class Earned(NamedTuple):
    """The fields of a LeaseOutcome that only an accepted group has."""

    rollouts: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    weight: int = 0
    trainable: bool = False
    audited: str = ""
    prompt: int = 0
    turns: Turns = ()
    costs: int = 0


NOTHING_EARNED: Final = Earned()


class EvidencedOutcome(LeaseOutcome, frozen=True, kw_only=True):
    """The end of a lease that names a Calibration: with its hash, those of `EvidenceHashes`, and the day's peak of E
    (coordinator/verification/evidence_table.py, rule 3)."""

    calibration: bytes
    tokens: bytes
    before: bytes
    after: bytes
    peak: int


class PairedOutcome(EvidencedOutcome, frozen=True, kw_only=True):
    """The end of a lease whose group was passed twice: with its `VersionCount`."""

    newer: int
    older: int


class CountedOutcome(LeaseOutcome, frozen=True, kw_only=True):
    """The end of a lease of an exact class, by a group that is good in itself: with its `NearTieCount`."""

    sampled: int
    near_ties: int


Basis = EvidenceStep | NearTieCount
"""The evidence that a verdict counts, or the near-ties."""


def lengths_of(lease: Lease, rollouts: Sequence[ClaimedRollout]) -> GroupLengths:
    return GroupLengths(len(lease.prompt), [list(rollout.turns) for rollout in rollouts])


def audited_by(basis: Basis | None) -> str:
    """Return how an accepted group was audited; empty: it was not."""
    if not isinstance(basis, EvidenceStep):
        return "exact"
    return "evidence" if basis.low else ""


def outcome(
    record: LeaseRecord,
    received: int | None,
    submission_hash: bytes | None,
    code: str,
    basis: Basis | None = None,
    earned: Earned = NOTHING_EARNED,
) -> LeaseOutcome:
    """Return the facts of the end of a lease. `received`: ms; None: no group came. `earned`: pay of an accepted
    group."""
    lease = record.lease
    stated: dict[str, Any] = {
        "node": peer_id(lease.node),
        "lease": lease.id,
        "era": lease.era,
        "version": lease.version,
        "sent": lease.sent,
        "expires": record.expires,
        "received": received,
        "code": code,
        "submission_hash": submission_hash,
        "rules": VERDICT_RULES,
        **earned._asdict(),
    }
    if basis is None:
        return LeaseOutcome(**stated)
    if isinstance(basis, NearTieCount):
        return CountedOutcome(**stated, sampled=basis.sampled, near_ties=basis.near_ties)
    stated |= {"calibration": lease.calibration or b"", **basis.hashes._asdict(), "peak": basis.peak}
    return EvidencedOutcome(**stated) if basis.versions is None else PairedOutcome(**stated, **basis.versions._asdict())


def key_of(lease: bytes) -> str:
    """Return the key of the ledger's entry about the end of a lease."""
    return f"lease:{lease.hex()}"
