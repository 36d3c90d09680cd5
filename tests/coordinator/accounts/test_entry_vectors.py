"""Golden vectors of the facts of ledger entries: `entries.json`, and the files of the kinds that have their own."""

import json
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.payouts.stated_accounts import AccountSet
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.ledger.costs_in_force import CostsSet
from echo2.ledger.ledger_facts import (
    LeaseCounts,
    LeasesEnded,
    QuarantineEnded,
    Remark,
    Suspended,
)
from tests.support.documents import code, tables
from tests.support.paths import ROOT

NODE = "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"
OTHER = "12D3KooW9tHtTS3incZYiykw4u5G4frbjVFqhkmJX12gSNCVeH3e"
AT = 1_700_000_000_000
LEASE, HASH = bytes(range(16)), bytes(range(32))
REMARK = Remark(node=NODE, why="seen at a fair")


def ended(code: str, received: int | None, submission: bytes | None) -> LeaseOutcome:
    return LeaseOutcome(
        node=NODE, lease=LEASE, era=1, version=7, sent=AT, expires=AT + 60_000, received=received, code=code,
        rollouts=0, tokens_in=0, tokens_out=0, weight=0, trainable=False, submission_hash=submission, rules=3,
    )  # fmt: skip


EXAMPLES: dict[str, msgspec.Struct] = {
    "lease.refused": ended("seeded-choice", AT + 9_000, HASH),
    "lease.expired": ended("expired", None, None),
    "leases.ended": LeasesEnded(ends=4, root=HASH, counts=[LeaseCounts(OTHER, 3, 0, 0), LeaseCounts(NODE, 0, 1, 1)]),
    "quarantine.ended": QuarantineEnded(
        rules=3, node=NODE, day=19_675, groups=5, weight=30_000, released=True, calibration=HASH, decided="rerun"
    ),
    "costs.set": CostsSet(costs=HASH, sealed=b"sealed Costs"),
    "node.suspended": Suspended(node=NODE, code="drift", evidence=HASH, since=AT, until=AT + 3_600_000),
    "node.vouched": REMARK,
    "node.banned": REMARK,
    "node.unbanned": REMARK,
    "node.noted": REMARK,
    "account.set": AccountSet(node=NODE, account=HASH, since=AT + 86_400_000),
}
"""Kind -> facts as they could be."""
ELSEWHERE = {
    "points.issued": "ledger", "lease.accepted": "audits", "lease.reversed": "appeals", "appeal.answered": "appeals",
    "log.restored": "restored_logs", "canary.vested": "canaries", "key.rotated": "key_rotated", "team.set": "teams",
    "payout.planned": "payouts", "payout.sent": "payouts", "payout.confirmed": "payouts",
    "payout.returned": "payouts", "payout.questioned": "payouts",
    "payout.restored": "payouts",
}  # fmt: skip
"""Kind -> the file in tests/vectors with an entry, or the facts, of that kind; market.json has those of the market."""


def vectors(name: str) -> str:
    return (ROOT / f"tests/vectors/{name}.json").read_text()


def test_the_facts_of_each_kind_are_those_of_its_golden_vector(repository: Path) -> None:
    assert json.loads(vectors("entries")) == {
        kind: msgspec.msgpack.encode(facts).hex() for kind, facts in EXAMPLES.items()
    }


@pytest.mark.parametrize("kind", EXAMPLES)
def test_facts_are_read_as_they_were_written(kind: str) -> None:
    facts = EXAMPLES[kind]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(facts), type=type(facts)) == facts


def test_each_kind_on_the_page_has_a_vector() -> None:
    page = (ROOT / "docs/protocol/ledger.md").read_text()
    (rows,) = [rows for header, *rows in tables(page) if header[0] == "Kind of entry"]
    assert {code(row[0]) for row in rows} == EXAMPLES.keys() | ELSEWHERE.keys()
    for kind, name in ELSEWHERE.items():
        named = {"lease.reversed": "LeaseReversed", "appeal.answered": "AppealAnswered"}.get(kind, kind)
        text = vectors(name)
        assert f'"{named}"' in text or named.encode().hex() in text or kind == "log.restored", kind
