"""The pay of a node for an epoch, against its receipts and the run's promise; over the market's own entries."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from echo2.ledger.epoch_facts import ClosedNode
from echo2.ledger.ledger_entries import Entry
from echo2.node.trust.ledger_witness import NotProved, ReceiptProof
from echo2.node.trust.pay_witness import OwnEpoch, close_key, faults, own_epoch
from echo2.protocol.leases import Receipt
from echo2.protocol.market import MarketResponse
from tests.support.entry_proofs import proved_under, root_of
from tests.support.market import Book, cheap

NODE = "a"
WORK = 3_000


@pytest.fixture(scope="module")
def book() -> Book:
    """Two nodes work in an epoch of which both are active, and it is closed."""
    book = Book()
    opened = cheap(book)
    for place in range(3):
        book.lease(NODE, opened + place, opened + 10 + place, 1000)
    book.close(opened + 900_000)
    return book


def closing(entries: Sequence[Entry]) -> tuple[ReceiptProof, Callable[[int], bytes | None]]:
    """Return the proof of the close, and the root under which it holds."""
    (closed,) = [entry.seq for entry in entries if entry.key == close_key(1)]
    return proved_under(entries, closed), root_of(entries)


def own(book: Book) -> OwnEpoch:
    closed, root = closing(book.entries)
    return own_epoch(1, closed, NODE, root)


def receipts(book: Book, **changes: Any) -> list[Receipt]:
    """Return the receipts of the node's three groups. `changes`: fields of the first one."""
    row = own(book).row
    assert row is not None
    entries = [entry for entry in book.entries if entry.kind == "lease.accepted"]
    fields: dict[str, Any] = {
        "run": bytes(32), "node": bytes(32), "era": 1, "version": 1, "submission_hash": bytes(32),
        "verdict": "accepted", "code": "ok", "reason": "", "trainable": True, "weight": 1000, "entry_hash": bytes(32),
        "at": 1, "epoch": 1, "price": row.price,
    }  # fmt: skip
    all_three = [Receipt(lease=bytes([one.seq]) * 16, entry=one.seq, **fields) for one in entries]
    return [msgspec.structs.replace(all_three[0], **changes), *all_three[1:]]


def promised(book: Book, **changes: Any) -> MarketResponse:
    row = own(book).row
    assert row is not None
    fields: dict[str, Any] = {"price": row.price, "most": 10**9} | changes
    return MarketResponse(currency="USD", coming=None, running=None, **fields)


def test_the_pay_of_an_honest_epoch_follows_from_price_work_and_promise(book: Book) -> None:
    epoch = own(book)
    assert epoch.row is not None
    assert (epoch.row.work, epoch.row.active) == (WORK, True)
    assert epoch.row.pay == epoch.accrued + epoch.unvested > 0
    assert faults(epoch, receipts(book), promised(book)) == faults(epoch, receipts(book), None) == []


def test_work_that_counts_later_or_here_alone_is_no_fault(book: Book) -> None:
    later = receipts(book, code="quarantine", weight=10**6)
    assert faults(own(book), later, promised(book)) == []
    assert faults(own(book), receipts(book)[:1], promised(book)) == []
    assert faults(own(book), receipts(book, price=None), promised(book)) == []


RECEIPTS: dict[str, tuple[dict[str, Any], str]] = {
    "another price": ({"price": 1}, "and receipt .* states 1"),
    "more work than was counted": ({"weight": 1001}, "counts 3000 milli-RE of this node, and its receipts state 3001"),
    "a group of a later epoch": ({"entry": 10**6}, "which was closed before its entry 1000000"),
}


@pytest.mark.parametrize("case", RECEIPTS)
def test_a_receipt_that_differs_is_named(book: Book, case: str) -> None:
    changes, said = RECEIPTS[case]
    (fault,) = faults(own(book), receipts(book, **changes), promised(book))
    assert fault.startswith("epoch 1 (entry") or "is of epoch 1 (entry" in fault
    assert re.search(said, fault)


def test_a_price_below_the_promised_one_is_named(book: Book) -> None:
    row = own(book).row
    assert row is not None
    (fault,) = faults(own(book), receipts(book), promised(book, price=row.price + 1))
    assert f"pays {row.price} per RE, and the run had promised {row.price + 1}" in fault


def _row(book: Book, **changes: Any) -> OwnEpoch:
    """Return the epoch with a false row, whose pay is posted as it says."""
    epoch = own(book)
    assert epoch.row is not None
    row: ClosedNode = msgspec.structs.replace(epoch.row, **changes)
    return epoch._replace(row=row, accrued=row.pay - row.unvested, unvested=row.unvested)


def test_pay_that_does_not_follow_is_named_to_the_unit(book: Book) -> None:
    row = own(book).row
    assert row is not None
    fair = row.price * WORK // 1000
    for pay, wrong in ((fair - 1, 1), (fair, 0), (fair + 3, 0), (fair + 4, 1)):
        assert len(faults(_row(book, pay=pay), receipts(book), promised(book))) == wrong
    assert "follows an amount from" in faults(_row(book, pay=fair - 1), receipts(book), promised(book))[0]


def test_pay_up_to_the_promise_is_fair(book: Book) -> None:
    row = own(book).row
    assert row is not None
    half = row.price * 1500 // 1000
    assert faults(_row(book, pay=half), receipts(book), promised(book, most=1500)) == []
    assert faults(_row(book, pay=half - 1), receipts(book), promised(book, most=1500)) != []


def test_pay_that_is_not_posted_is_named(book: Book) -> None:
    (fault,) = faults(own(book)._replace(accrued=0), receipts(book), promised(book))
    assert "posts" in fault


def test_a_close_without_this_node_is_named_where_a_receipt_states_a_price(book: Book) -> None:
    closed, root = closing(book.entries)
    other = own_epoch(1, closed, "nobody", root)
    assert other.row is None
    assert len(faults(other, receipts(book), None)) == 3
    assert faults(other, receipts(book, price=None)[:1], None) == []


def altered(proof: ReceiptProof, **changes: Any) -> ReceiptProof:
    return ReceiptProof(msgspec.structs.replace(proof.proof, **changes), proof.size)


def test_a_proof_that_does_not_hold_is_refused(book: Book) -> None:
    closed, root = closing(book.entries)
    for one in (proved_under(book.entries, 1), altered(closed, canonical=b"x"), altered(closed, entry=1),
                altered(closed, path=[]), ReceiptProof(closed.proof, closed.size - 1)):  # fmt: skip
        with pytest.raises(NotProved):
            own_epoch(1, one, NODE, root)
    with pytest.raises(NotProved, match=r"is not the entry `epoch\.closed` of epoch 2"):
        own_epoch(2, closed, NODE, root)


def with_rows(entry: Entry, rows: Sequence[Any]) -> Entry:
    facts = msgspec.msgpack.decode(entry.facts) | {"nodes": list(rows)}
    return entry._replace(facts=msgspec.msgpack.encode(facts))


@pytest.mark.parametrize("rows", [["no row"], [[NODE]], [[NODE, -1, "x", 0, 0, 0, 0]]])
def test_a_close_with_rows_that_are_none_is_refused(book: Book, rows: list[Any]) -> None:
    entries = [with_rows(one, rows) if one.kind == "epoch.closed" else one for one in book.entries]
    closed, root = closing(entries)
    with pytest.raises(NotProved, match="do not decode"):
        own_epoch(1, closed, NODE, root)


def test_a_node_that_stands_twice_is_refused(book: Book) -> None:
    row = own(book).row
    assert row is not None
    entries = [with_rows(one, [row, row]) if one.kind == "epoch.closed" else one for one in book.entries]
    closed, root = closing(entries)
    with pytest.raises(NotProved, match="this node 2 times"):
        own_epoch(1, closed, NODE, root)
