"""Exactly one external transfer per payment, whatever the provider does, and no fault that ends in silence."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.payouts.payout_book import LedgerBook, read
from echo2.coordinator.payouts.payout_plan import PayoutLimits, PlannedPayment, SendingLimits
from echo2.coordinator.payouts.payout_sender import IN_A_ROW, PayoutSender
from echo2.coordinator.payouts.plan_files import PlanFile
from echo2.coordinator.rails.payment_states import PaymentTerms
from echo2.coordinator.rails.rail import Quote, RailAnswer
from echo2.ledger.payout_facts import PLANNED, UNITS_PER_HUNDREDTH, commitment, paid_account, payable, payment_id
from echo2_rails.https_rail import HttpsRail
from tests.support import payout_provider
from tests.support.payout_provider import Provider
from tests.support.payout_world import fund, node
from tests.support.quick_disk import quick_folder

HOUR, DAY = 3600_000, 24 * 3600_000
RUN, ME = b"r" * 32, b"p" * 16
TERMS = PaymentTerms(resend=20 * HOUR, patience=7 * DAY)
ALL = PayoutLimits(10**12, 10**12, 1)


class World:
    """Payments of 1.00 to many nodes, in a real ledger. `now`: ms."""

    def __init__(self, folder: Path, payments: int) -> None:
        self.now = 1_000 * DAY
        self.database = Database.open(folder / "run.sqlite", self.now)
        self.ledger = Ledger(self.database)
        self.book = LedgerBook(self.ledger, lambda: self.now)
        nodes = [node(number + 1) for number in range(payments)]
        fund(self.ledger, dict.fromkeys(nodes, 150))
        rows = [
            PlannedPayment(payment_id(RUN, 1, one), one, 100 * UNITS_PER_HUNDREDTH, commitment("a", ME * 2))
            for one in nodes
        ]
        self.plan = PlanFile(
            run=RUN, plan=1, rail="https", currency="USD", head=1, head_hash=bytes(32), payments=rows
        )  # fmt: skip
        self.book.write(PLANNED, self.plan.entry_facts())
        self.accounts = {row.payment: f"acct_{row.node}" for row in rows}
        self.waited = 0.0

    def sender(self, rail: object, provider: bytes = ME) -> PayoutSender:
        async def sleep(seconds: float) -> None:
            self.waited += seconds

        return PayoutSender(rail, self.book, TERMS, provider, lambda: self.now, sleep)  # type: ignore[arg-type]

    async def send(self, rail: object) -> None:
        limits = SendingLimits(ALL, self.book.payouts.payments.values(), self.now)
        await self.sender(rail).send(self.plan, self.accounts, limits)

    async def reconcile(self, rail: object, state: str = "") -> None:
        """Ask about the payments in a state; empty: about all."""
        asked = [one for one in self.book.payouts.payments.values() if state in ("", one.state)]
        await self.sender(rail).reconcile(asked, self.accounts)

    def states(self) -> Counter[str]:
        return Counter(one.question or one.state for one in self.book.payouts.payments.values())


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as made:
        yield made


async def lived_through(folder: Path, payments: int, seed: int) -> tuple[World, Provider]:
    """Send a plan to a provider with faults of all kinds, and reconcile it for three weeks."""
    world = World(folder, payments)
    provider = Provider(random.Random(seed), lambda: world.now, rate=0.3, ends=0.05)
    rail = HttpsRail(provider, "USD")
    with world.database.transaction():
        for _ in range(200):
            await world.send(rail)
            if len(world.book.payouts.payments) == payments:
                break
        for _ in range(18):  # while the provider remembers the keys
            world.now += HOUR
            await world.reconcile(rail, "sent")
        for _ in range(20):
            world.now += DAY
            await world.reconcile(rail)
    return world, provider


@pytest.mark.parametrize("payments", [400, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.slow_but("400")
async def test_each_payment_is_one_transfer_and_each_fault_ends_in_an_answer_or_a_question(
    folder: Path, payments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payout_provider, "FAULTS", tuple(f for f in payout_provider.FAULTS if f != "refused"))
    world, provider = await lived_through(folder, payments, seed=17)
    assert provider.moves == Counter(dict.fromkeys((one.payment.hex() for one in world.plan.payments), 1))
    assert all(provider.calls[fault] for fault in payout_provider.FAULTS)
    states = world.states()
    assert sum(states.values()) == payments
    assert states["sent"] == 0
    strange = provider.strange
    assert states["amount"] == strange["other-amount"] > 0
    assert states["returned"] == strange["returned-late"] > 0
    assert states["silence"] == strange["silent"] > 0
    assert states["confirmed"] == strange[""]
    gone = payments - states["returned"]
    assert world.ledger.balance(paid_account("https")) == gone * 100 * UNITS_PER_HUNDREDTH
    assert world.ledger.verify() == world.ledger.tip()
    assert read(world.ledger).payments == world.book.payouts.payments


async def test_a_refused_payment_is_returned_and_moves_nothing(folder: Path) -> None:
    world, provider = await lived_through(folder, 300, seed=3)
    assert provider.refusals
    for one in world.book.payouts.payments.values():
        moves = provider.moves[one.key]
        assert moves == (0 if one.key in provider.refusals else 1)
        if one.key in provider.refusals:
            assert one.state == "returned"
            assert world.ledger.balance(payable(one.sent.node)) == 150 * UNITS_PER_HUNDREDTH


class Crash(Exception):
    """The process dies."""


class Dying:
    """A rail that dies at a call, before or after it reached the provider."""

    def __init__(self, rail: HttpsRail, chance: random.Random) -> None:
        self._rail, self._chance = rail, chance

    async def quote(self, account: str, amount: int) -> Quote:
        return await self._rail.quote(account, amount)

    async def send(self, idempotency_key: str, account: str, amount: int) -> RailAnswer:
        fate = self._chance.random()
        if fate < 0.1:
            raise Crash
        answer = await self._rail.send(idempotency_key, account, amount)
        if fate < 0.2:
            raise Crash
        return answer

    async def status(self, idempotency_key: str) -> RailAnswer:
        if self._chance.random() < 0.1:
            raise Crash
        return await self._rail.status(idempotency_key)

    async def cancel(self, idempotency_key: str) -> RailAnswer:
        return await self._rail.cancel(idempotency_key)


async def test_a_process_that_dies_anywhere_sends_nothing_twice(folder: Path) -> None:
    world = World(folder, 100)
    provider = Provider(random.Random(5), lambda: world.now, rate=0.2)
    rail = Dying(HttpsRail(provider, "USD"), random.Random(6))
    died = 0
    for _ in range(500):
        try:
            await world.send(rail)
        except Crash:
            died += 1
            world.book = LedgerBook(world.ledger, lambda: world.now)
            continue
        if world.states()["confirmed"] + world.states()["returned"] == 100:
            break
        world.now += HOUR // 8
    assert died > 10
    assert set(provider.moves.values()) == {1}
    assert len(provider.moves) + len(provider.refusals) == 100


class Told:
    """A rail that gives the same answers again and again."""

    def __init__(self, send: RailAnswer, status: RailAnswer) -> None:
        self.answers = {"send": send, "status": status}
        self.calls: list[tuple[str, str]] = []

    async def quote(self, account: str, amount: int) -> Quote:
        return Quote(0)

    async def send(self, idempotency_key: str, account: str, amount: int) -> RailAnswer:
        self.calls.append(("send", idempotency_key))
        return self.answers["send"]

    async def status(self, idempotency_key: str) -> RailAnswer:
        self.calls.append(("status", idempotency_key))
        return self.answers["status"]

    async def cancel(self, idempotency_key: str) -> RailAnswer:
        return self.answers["status"]


async def test_a_provider_that_is_down_puts_few_payments_in_doubt(folder: Path) -> None:
    world = World(folder, 50)
    down = Told(RailAnswer("unknown", why="502"), RailAnswer("unknown", why="502"))
    passed = await world.sender(down).send(world.plan, world.accounts, SendingLimits(ALL, [], world.now))
    assert passed.sent == IN_A_ROW
    assert "502" in passed.ended
    assert world.states() == {"sent": IN_A_ROW}


async def test_an_unknown_payment_is_sent_again_under_the_same_key_alone_and_not_after_the_key_is_forgotten(
    folder: Path,
) -> None:
    world = World(folder, 1)
    lost = Told(RailAnswer("unknown"), RailAnswer("unknown"))
    await world.send(lost)
    absent = Told(RailAnswer("unknown"), RailAnswer("absent"))
    await world.reconcile(absent)
    keys = {key for _, key in lost.calls + absent.calls}
    assert keys == {world.plan.payments[0].payment.hex()}
    assert [call for call, _ in absent.calls].count("send") >= 1
    world.now += 20 * HOUR
    late = Told(RailAnswer("done", 100), RailAnswer("absent"))
    await world.reconcile(late)
    assert [call for call, _ in late.calls] == ["status"]
    assert world.states() == {"absent": 1}


async def test_busy_is_waited_for_as_long_as_the_provider_asks_and_at_most_a_minute_each(folder: Path) -> None:
    world = World(folder, 1)
    await world.send(Told(RailAnswer("busy", wait=7), RailAnswer("taken")))
    assert world.waited == 7
    await world.reconcile(Told(RailAnswer("busy"), RailAnswer("busy", wait=3000)))
    assert world.waited == 7 + 6 * 60


async def test_another_provider_is_not_asked_about_a_payment(folder: Path) -> None:
    world = World(folder, 1)
    await world.send(Told(RailAnswer("taken"), RailAnswer("taken")))
    other = Told(RailAnswer("absent"), RailAnswer("absent"))
    passed = await world.sender(other, b"q" * 16).reconcile(list(world.book.payouts.payments.values()), world.accounts)
    assert other.calls == []
    assert passed.skipped == 1


async def test_a_limit_holds_payments_back_and_a_later_day_sends_them(folder: Path) -> None:
    world = World(folder, 5)
    rail = Told(RailAnswer("done", 100), RailAnswer("done", 100))
    for wanted in (2, 4, 5):
        limits = SendingLimits(PayoutLimits(200, 10**6, 1), world.book.payouts.payments.values(), world.now)
        await world.sender(rail).send(world.plan, world.accounts, limits)
        assert world.states() == {"confirmed": wanted}
        world.now += DAY
    assert [call for call, _ in rail.calls] == ["send"] * 5


async def test_a_payment_that_is_stopped_comes_back(folder: Path) -> None:
    world = World(folder, 1)
    await world.send(Told(RailAnswer("taken"), RailAnswer("taken")))
    (payment,) = world.book.payouts.payments.values()
    assert world.ledger.balance(payable(payment.sent.node)) == 50 * UNITS_PER_HUNDREDTH
    await world.sender(Told(RailAnswer("unknown"), RailAnswer("returned", 100))).cancel(payment)
    assert world.states() == {"returned": 1}
    assert world.ledger.balance(payable(payment.sent.node)) == 150 * UNITS_PER_HUNDREDTH
