"""Entries about payments are written by the coordinator that runs, and by the command itself where none does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.payouts import payout_book
from echo2.coordinator.payouts.payout_book import LedgerBook, PayoutBook, SocketBook, open_book
from echo2.coordinator.training.operator_socket import OperatorSocket
from echo2.coordinator.training.run_watch import Watch
from echo2.ledger.ledger_entries import transfer
from echo2.ledger.payout_facts import (
    CONFIRMED,
    PAYOUT_RESTORED_KIND,
    PLANNED,
    QUESTIONED,
    RETURNED,
    SENT,
    UNITS_PER_HUNDREDTH,
    PayoutEnded,
    PayoutPlanned,
    PayoutQuestioned,
    PayoutRestored,
    PayoutSent,
    paid_account,
    payable,
    payment_id,
)
from echo2.p2p.errors import Unreachable
from echo2.runtime.errors import LocalFault
from tests.support.group_world import World
from tests.support.operator_orders import orders
from tests.support.payout_world import fund, node

ALICE = node(1)
ID = payment_id(b"r" * 32, 1, ALICE)
PLAN = PayoutPlanned(
    plan=1,
    rail="csv",
    currency="USD",
    payments=1,
    total=100 * UNITS_PER_HUNDREDTH,
    file=bytes(32),
    head=1,
    head_hash=bytes(32),
)
SEND = PayoutSent(
    payment=ID, plan=1, node=ALICE, rail="csv", provider=bytes(16), account=bytes(32), amount=100 * UNITS_PER_HUNDREDTH
)
LOST = PayoutRestored(
    payment=payment_id(b"r" * 32, 2, ALICE), plan=2, node=ALICE, rail="csv", provider=bytes(16), account=bytes(32),
    amount=50 * UNITS_PER_HUNDREDTH, file=bytes(32),
)  # fmt: skip
END = PayoutEnded(payment=ID, number=1, node=ALICE)


@asynccontextmanager
async def coordinating(world: World, home: Path) -> AsyncIterator[None]:
    """Serve the operator's socket over a world's ledger, as a coordinator does."""
    book = LedgerBook(world.group_service.ledger, lambda: world.now)

    async def pay(kind: str, facts: str) -> int:
        return book.write(kind, payout_book.decode_facts(kind, facts))

    watch = Watch(world.group_service, lambda: world.now / 1000, lambda: None)
    socket = OperatorSocket(home, watch, orders(pay=pay))
    serving = asyncio.create_task(socket.run())
    await socket.listening.wait()
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def recorded(book: PayoutBook) -> None:
    await book.record(PLANNED, PLAN)
    await book.record(SENT, SEND)
    await book.record(CONFIRMED, END)
    with pytest.raises(LocalFault):
        await book.record(CONFIRMED, END)
    assert book.payouts.payments[ID].state == "confirmed"
    assert (book.payouts.plan.payments, book.payouts.plan.total) == (1, 100 * UNITS_PER_HUNDREDTH)
    await book.record(PAYOUT_RESTORED_KIND, LOST)
    with pytest.raises(LocalFault):
        await book.record(PAYOUT_RESTORED_KIND, LOST)
    assert (book.payouts.number, book.payouts.plan.ended, book.payouts.payments[LOST.payment].state) == (
        2,
        True,
        "sent",
    )


async def test_a_running_coordinator_writes_the_entries(world: World, tmp_path: Path) -> None:
    fund(world.group_service.ledger, {ALICE: 150})
    async with coordinating(world, tmp_path):
        with open_book(tmp_path, lambda: 0) as (book, database):
            assert isinstance(book, SocketBook)
            await recorded(book)
            assert Ledger(database).balance(paid_account("csv")) == 150 * UNITS_PER_HUNDREDTH
            assert book.payouts.payments == payout_book.read(Ledger(database)).payments
    assert world.group_service.ledger.verify() == world.group_service.ledger.tip()


async def test_a_coordinator_that_does_not_answer_leaves_nothing_half_done(world: World, tmp_path: Path) -> None:
    with open_book(tmp_path, lambda: 0) as (book, _), pytest.raises(Unreachable):
        await book.record(PLANNED, PLAN)
    assert payout_book.read(world.group_service.ledger).plan is None


async def test_without_a_coordinator_the_command_writes_them(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database:
        fund(Ledger(database), {ALICE: 150})
    with open_book(tmp_path, lambda: 7) as (book, database):
        assert isinstance(book, LedgerBook)
        await recorded(book)
        assert Ledger(database).balance(paid_account("csv")) == 150 * UNITS_PER_HUNDREDTH
    with open_book(tmp_path, lambda: 8) as (again, _):
        assert again.payouts.payments == book.payouts.payments


async def test_no_payment_makes_a_balance_negative(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database:
        fund(Ledger(database), {ALICE: 99})
        book = LedgerBook(Ledger(database), lambda: 7)
        with pytest.raises(LocalFault, match="a plan of 1000000000, where 990000000 is payable"):
            book.write(PLANNED, PLAN)
        fund(Ledger(database), {node(2): 1})
        book.write(PLANNED, PLAN)
        with pytest.raises(LocalFault, match="below zero"):
            book.write(SENT, SEND)
        assert book.payouts.payments == {}
        assert Ledger(database).balance(paid_account("csv")) == 0
        assert payout_book.read(Ledger(database)).payments == {}


async def test_money_that_came_back_moved_and_went_after_all_is_told_to_the_operator(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database:
        ledger = Ledger(database)
        fund(ledger, {ALICE: 100})
        book = LedgerBook(ledger, lambda: 7)
        for kind, fact in ((PLANNED, PLAN), (SENT, SEND), (RETURNED, END)):
            book.write(kind, fact)
        ledger.append(
            8, "balance.moved", "moved", PLAN, transfer(payable(ALICE), payable(node(2)), 100 * UNITS_PER_HUNDREDTH)
        )
        book.write(QUESTIONED, PayoutQuestioned(payment=ID, number=2, node=ALICE, question="contradiction"))
        last = PayoutEnded(payment=ID, number=3, node=ALICE, by="operator", why="it arrived: paid twice")
        with pytest.raises(LocalFault, match="it went out twice"):
            book.write(CONFIRMED, last)
        book.write(RETURNED, last)
        assert book.payouts.payments[ID].question == ""
        assert ledger.balance(payable(node(2))) == 100 * UNITS_PER_HUNDREDTH
