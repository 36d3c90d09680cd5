"""The entries about canaries keep their bytes, and the pay of several canaries is released in order."""

import json
from pathlib import Path

import msgspec

from echo2.coordinator.accounts.accounting import Accounting
from echo2.coordinator.accounts.vesting import AT_ONCE
from echo2.coordinator.database.database import Database
from echo2.coordinator.verdicts.lease_outcomes import CountedOutcome
from echo2.ledger.ledger_entries import ESCROW, accrued_account, transfer, unvested_account
from echo2.ledger.ledger_facts import CanaryVested
from echo2.p2p.identity import peer_id
from tests.support.group_world import ALICE

END = CountedOutcome(
    node=peer_id(ALICE), lease=bytes(range(16)), era=1, version=7, sent=1_000, expires=2_000, received=1_500,
    code="canary", rollouts=2, tokens_in=10, tokens_out=20, weight=234, trainable=False,
    submission_hash=bytes(32), rules=3, sampled=20, near_ties=1, audited="canary",
    prompt=5, turns=[[10], [10]], costs=3,
)  # fmt: skip
VESTED = CanaryVested(node=peer_id(ALICE), lease=bytes(range(16)), weight=234)


def test_the_facts_of_a_canarys_entries_keep_their_bytes(repository: Path) -> None:
    vector = json.loads((repository / "tests/vectors/canaries.json").read_text())
    for name, facts in (("lease.accepted", END), ("canary.vested", VESTED)):
        assert msgspec.msgpack.encode(facts).hex() == vector[name]
        assert msgspec.msgpack.decode(bytes.fromhex(vector[name]), type=type(facts)) == facts


def test_a_key_without_canaries_is_paid_nothing_and_many_are_paid_in_slices(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "run.sqlite")
    accounting = Accounting(database)
    vesting, peer = accounting.vesting, peer_id(ALICE)
    assert vesting.release(ALICE, 0) == 0
    accounting.ledger.issue_points(0, 100)
    database.do("PRAGMA foreign_keys = OFF")
    with database.transaction():
        for number in range(AT_ONCE + 3):
            accounting.ledger.append(0, "work", f"k{number}", VESTED, transfer(ESCROW, unvested_account(peer), 2))
            vesting.put(number.to_bytes(16), ALICE, 2, 0)
    assert [vesting.release(ALICE, 1) for _ in range(3)] == [AT_ONCE, 3, 0]
    assert accounting.ledger.balance(unvested_account(peer)) == 0
    assert accounting.ledger.balance(accrued_account(peer)) == 2 * (AT_ONCE + 3)
    accounting.ledger.verify()
    database.close()
