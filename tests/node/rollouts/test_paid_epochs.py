"""`echo2-node receipts verify` of a run that pays money: price and pay follow from the epoch's close, or are named."""

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from echo2.node.rollouts.receipts import list_submissions, verify_receipts
from echo2.node.trust.ledger_store import LedgerStore
from echo2.node.trust.pay_witness import own_epoch
from echo2.p2p.identity import peer_id, public_bytes
from tests.support.paid_node import PRICE, PaidNode


@pytest.fixture
def node(tmp_path: Path) -> PaidNode:
    return PaidNode(tmp_path)


def test_the_pay_of_an_epoch_holds_offline(node: PaidNode) -> None:
    for number in range(3):
        node.receive(number)
    node.prove()
    node.promise(PRICE, 10_000)
    checked = verify_receipts(node.home, None)
    assert (checked.good, checked.faults, checked.epochs) == (3, [], 1)
    assert ", and the pay of 1 epoch from price and work" in checked.sentence()


def test_an_epoch_without_its_proof_is_not_judged(node: PaidNode) -> None:
    node.receive(price=PRICE + 1)
    assert (verify_receipts(node.home, None).faults, verify_receipts(node.home, None).epochs) == ([], 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"price": PRICE + 1}, f"pays {PRICE} per RE, and receipt"), ({"weight": 3001}, "and its receipts state 3001")],
)
def test_a_receipt_whose_price_or_work_differs_is_named(node: PaidNode, changes: dict[str, object], said: str) -> None:
    node.receive(**changes)
    node.prove()
    (fault,) = verify_receipts(node.home, None).faults
    assert said in fault


def test_a_promise_that_was_not_kept_is_named(node: PaidNode) -> None:
    node.receive()
    node.prove()
    node.promise(PRICE + 1, 10_000)
    (fault,) = verify_receipts(node.home, None).faults
    assert f"pays {PRICE} per RE, and the run had promised {PRICE + 1}" in fault


def test_a_close_that_was_altered_on_disk_is_named(node: PaidNode) -> None:
    node.receive()
    node.prove()
    with closing(LedgerStore(node.folder / "ledger.sqlite")) as store:
        (closed,) = store.epochs().values()
        altered = msgspec.structs.replace(closed.proof, canonical=closed.proof.canonical[:-1] + b"\x00")
        store.put_epoch(1, type(closed)(altered, closed.size), None)
    checked = verify_receipts(node.home, None)
    assert checked.epochs == 0
    assert checked.faults[0].startswith("epoch 1: entry ")


def test_of_closes_beyond_the_bound_the_own_row_stays_as_it_was_proved(node: PaidNode) -> None:
    """An epoch of ten thousand nodes has a close of megabytes, and a year has 35,000 of them."""
    node.receive()
    node.prove()
    with closing(LedgerStore(node.folder / "ledger.sqlite")) as store:
        (closed,) = store.epochs().values()
        own = own_epoch(1, closed, peer_id(public_bytes(node.key)), store.root_of)
        store.put_epoch(1, closed, own, most=len(closed.proof.canonical) // 2)
        assert store.epochs() == {}
        assert store.paid_epochs() == [own]
        store.want_epochs([1])
        assert store.wanted_epochs(9) == [], "it was proved, and is not fetched again"
    checked = verify_receipts(node.home, None)
    assert (checked.faults, checked.epochs) == ([], 1)
    node.promise(PRICE + 1, 10_000)
    (fault,) = verify_receipts(node.home, None).faults
    assert f"the run had promised {PRICE + 1}" in fault


def test_a_close_that_says_nothing_of_its_node_stays_whatever_its_size(node: PaidNode) -> None:
    node.receive()
    node.prove()
    with closing(LedgerStore(node.folder / "ledger.sqlite")) as store:
        (closed,) = store.epochs().values()
        store.put_epoch(1, closed, None, most=1)
        assert set(store.epochs()) == {1}


def test_the_list_has_what_a_receipt_states(node: PaidNode) -> None:
    node.receive()
    (row,) = list_submissions(node.home, 9)
    assert (row["weight"], row["epoch"], row["price"], row["entry"] > 0) == (1000, 1, PRICE, True)
