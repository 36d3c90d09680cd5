"""Rows about pay that are computed: figures with their bounds, and frauds of an operator with what found them."""

import re
from pathlib import Path

import pytest

from benchmarks.attacks import market_figures, pay_rows
from benchmarks.attacks.operator_frauds import FRAUDS, FraudCheck, by_nodes, by_replay
from benchmarks.attacks.pay_rows import COMPUTED
from benchmarks.attacks.told_ledger import LedgerCopy, Operator, Story
from echo2.coordinator.accounts.head_signing import entry_proof
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.node.trust.ledger_witness import (
    LedgerFork,
    NotProved,
    ReceiptProof,
    WitnessedHead,
    check_next,
    check_receipt,
    is_lost,
)
from echo2.protocol.leases import Receipt
from echo2.protocol.ledger_heads import GrownHead
from echo2.protocol.restored_logs import LogChain


@pytest.mark.parametrize("sentence", pay_rows._MARKET)
@pytest.mark.slow_for("a newcomer is three times as fast until it is measured")
def test_a_figure_of_the_market_is_under_its_own_sentence_and_within_its_bound(sentence: str) -> None:
    assert pay_rows._MARKET[sentence](0, 1).attack == sentence


def test_every_figure_has_a_row() -> None:
    assert set(pay_rows._MARKET.values()) == set(market_figures.ATTACKS)


@pytest.mark.parametrize("sentence", FRAUDS)
@pytest.mark.slow_for("the operator accuses a node to keep its money")
def test_each_form_of_a_fraud_is_found_at_its_entry(sentence: str) -> None:
    row = COMPUTED[sentence].row(sentence, True)
    assert row.outcome == "held", row.note
    assert row.tried >= 3
    assert re.search(r"names entry \d+", row.note)
    assert row.text == "held"


def test_a_form_that_nothing_finds_breaks_the_row_and_is_named() -> None:
    check = FraudCheck()
    check.note("the first", "a head")
    check.note("the second", None)
    finding = check.finding("3 nano units")
    assert not finding.prevented
    assert finding.note == "NOT FOUND: the second; the first: a head; 3 nano units"


def test_an_honest_history_is_found_in_nothing(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    honest = operator.told()
    again = operator.told()
    assert again.entries == honest.entries
    assert by_replay(again) is None
    assert by_nodes(honest, again) is None


def witnessed(copy: LedgerCopy, number: int) -> WitnessedHead:
    one = copy.heads[number]
    return WitnessedHead(one.head, one.sealed)


def receipt_of(copy: LedgerCopy, seq: int) -> Receipt:
    """Return the receipt that a node got for an entry."""
    entry = copy.entries[seq - 1]
    return Receipt(
        run=bytes(32), node=bytes(32), lease=bytes.fromhex(entry.key.partition(":")[2]), era=1, version=1,
        submission_hash=bytes(32), verdict="accepted", code="ok", reason="", trainable=True, weight=0, entry=seq,
        entry_hash=entry.hash, at=entry.at,
    )  # fmt: skip


@pytest.mark.parametrize("story", [Story(friend=True), Story(lost=5)])
def test_a_node_takes_no_head_of_another_history_and_tells_that_its_receipts_are_lost(
    tmp_path: Path, story: Story
) -> None:
    """The node's own code finds what the rows say it finds."""
    operator = Operator(tmp_path)
    honest, other = operator.told(), operator.told(story)
    with pytest.raises((LedgerFork, NotProved)):
        check_next(
            witnessed(honest, 1),
            witnessed(other, 2),
            GrownHead(sealed=other.heads[2].sealed),
            LogChain(honest.heads[0].head.log),
        )
    seq = 90
    receipt = receipt_of(honest, seq)
    size = other.heads[2].head.size
    with Database.read(other.database) as database:
        ledger = Ledger(database)
        proof, root = entry_proof(ledger, seq, size), ledger.tree.root(size)
    assert proof is not None
    proved = ReceiptProof(proof, size)
    with pytest.raises(NotProved):
        check_receipt(receipt, proved, {size: root}.get)
    assert is_lost(receipt, proved, {size: root}.get)
