"""The basis of one verdict: what was measured, what it was held against, and which evidence is still stored.

A node is told it by the method `appeal`, the operator by `echo2-coord verdict show`. A lookup reads a few rows by their
keys, whatever the ledger's length.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from echo2.coordinator.accounts import reversals
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.verdicts.reviews import Review, Reviews
from echo2.coordinator.verdicts.token_storage import Excerpt
from echo2.coordinator.verification.evidence import DOUBT_EVIDENCE, LIFELONG_REFUSAL, REFUSAL_EVIDENCE
from echo2.coordinator.verification.evidence_table import EvidenceTable
from echo2.coordinator.verification.open_classes import OpenClasses
from echo2.coordinator.verification.verification import EXACT_THRESHOLDS
from echo2.ledger.ledger_entries import Entry
from echo2.ledger.ledger_facts import LeaseReversed
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease, Receipt

THRESHOLDS: Final = {
    "seeded-choice": "the submitted token may be worse than the seeded choice by at most "
    f"{EXACT_THRESHOLDS.margin} nats in an exact class, else by the bound of the Calibration",
    "close-choices": f"honest tokens narrowly miss the seeded choice at a rate of {EXACT_THRESHOLDS.close_rate}",
    "drift": f"a log-probability may be off by at most {EXACT_THRESHOLDS.drift_most} nats",
    "drift-median": f"log-probabilities may be off by at most {EXACT_THRESHOLDS.drift_median} nats in the median",
    "not-generated": "at least nine tenths of at least 32 tokens are wrong, under any version of the run",
    "near-ties": "an honest node reaches this count with a chance of one in a million",
    "party-near-ties": "an honest network reaches this count with a chance of one in a million",
}
MOST_KNOWN: Final = 1024
BY_EVIDENCE: Final = (
    f"refused where E reaches {REFUSAL_EVIDENCE} on a day or {LIFELONG_REFUSAL} in all,"
    f" in doubt where it reaches {DOUBT_EVIDENCE} on a day"
)


class Basis(NamedTuple):
    """The basis of a verdict. `statistic`, `threshold`: statistic and threshold for people. `stored`: "group",
    "excerpt" or "nothing". `reversal`: None while the verdict stands. `first`: facts of the ledger's entry, empty if it
    has none."""

    lease: Lease
    receipt: Receipt
    statistic: str
    threshold: str
    stored: str
    excerpt: Excerpt | None
    reviews: list[Review]
    reversal: LeaseReversed | None
    first: dict[str, Any]


class KnownStatistics:
    """The statistics of verdicts by evidence that were computed last, at most `MOST_KNOWN`. Computing one takes some
    30 ms per 8,192 tokens, and a node may ask for that of its lease as often as it likes."""

    def __init__(self) -> None:
        self._texts: OrderedDict[bytes, str] = OrderedDict()

    def of(self, lease: bytes, compute: Callable[[], str | None]) -> str | None:
        """Return the statistic of a lease, computed once while it is stored; None: `compute` returns none."""
        if (known := self._texts.get(lease)) is not None:
            return known
        if (text := compute()) is not None:
            self._texts[lease] = text
            while len(self._texts) > MOST_KNOWN:
                self._texts.popitem(last=False)
        return text


def basis_of(
    database: Database, classes: OpenClasses, lease: bytes, known: KnownStatistics | None = None
) -> Basis | None:
    """Return the basis of the verdict on a lease; None: there is no verdict. `known`: statistics computed before."""
    row = database.one(
        "SELECT l.document, v.receipt, v.at FROM verdicts v JOIN leases l ON l.id = v.lease WHERE v.lease = ?", (lease,)
    )
    if row is None:
        return None
    ledger = Ledger(database)
    document, receipt = decode(row[0], Lease), decode(decode_unverified(row[1]).payload, Receipt)
    entry, reversal = ledger.find(f"lease:{lease.hex()}"), reversals.find(ledger, lease)
    first: dict[str, Any] = {} if entry is None else msgspec.msgpack.decode(entry.facts)
    reviews, excerpt = Reviews(database, ledger), _excerpt(database, lease)
    stored = "group" if reviews.is_stored(lease) else "nothing" if excerpt is None else "excerpt"
    return Basis(
        document, receipt,
        _statistic(database, classes, document, receipt, first, row[2], known or KnownStatistics()),
        BY_EVIDENCE if _is_by_evidence(first) else THRESHOLDS.get(_first_code(receipt, first), ""),
        stored, excerpt, reviews.of(lease), _reversal(reversal), first,
    )  # fmt: skip


def _statistic(
    database: Database,
    classes: OpenClasses,
    lease: Lease,
    receipt: Receipt,
    first: dict[str, Any],
    at: int,
    known: KnownStatistics,
) -> str:
    if "sampled" in first:
        return f"{first['near_ties']} of {first['sampled']} sampled tokens narrowly miss the seeded choice"
    if not _is_by_evidence(first):
        code = _first_code(receipt, first)
        return receipt.reason if code == receipt.code else f"{code}; its figures gave way to the reason of the reversal"

    def again() -> str | None:
        tables = classes.tables(first["calibration"])
        bet = None if tables is None else EvidenceTable(database).run_again(lease.id, tables, at)
        if bet is None:
            return None
        return f"E of the day is {bet.after.daily.text()}, of all groups {bet.after.lifelong.text()}"

    gone = f"E of the day had reached 10^{first.get('peak', 0)}; the tokens are no longer stored"
    return known.of(lease.id, again) or gone


def _is_by_evidence(first: dict[str, Any]) -> bool:
    """Tell whether a verdict is one by evidence over many tokens, and not by one token beyond the bound."""
    return "calibration" in first and first["code"] != "seeded-choice"


def _first_code(receipt: Receipt, first: dict[str, Any]) -> str:
    """Return the code of the first verdict: a reversal replaces that of the Receipt."""
    return str(first.get("code", receipt.code))


def _excerpt(database: Database, lease: bytes) -> Excerpt | None:
    packed = database.value("SELECT tokens FROM excerpts WHERE lease = ?", (lease,))
    return msgspec.msgpack.decode(packed, type=Excerpt) if packed else None


def _reversal(entry: Entry | None) -> LeaseReversed | None:
    return None if entry is None else msgspec.msgpack.decode(entry.facts, type=LeaseReversed)
