"""`echo2-coord payout plan | send | reconcile | report`: a run's payments in money, by its files and ledger. `approve`
needs no run folder (payout_approvals.py).

Rules
1. Without `do` a command shows what it would do: it writes nothing, signs nothing, and asks a provider for a quote at
   most.
2. Rails of money are refused with a sentence until a Root has the role `payout`; the rail of points always.
3. A plan's files are durable before its entry. Only the newest plan can be sent. Nothing is planned where an approved
   plan is there that a ledger lacks which was never restored.
   After a restore nothing is planned or sent before `restored` (coordinator/accounts/payout_hold.py), which is refused
   for payments that the run's files name and the ledger lacks (lost_payments.py): `put_back` puts them back, their
   nodes' pay is withheld, or --why names the key.
   Nor is anything while nodes have yet to tell that run.sqlite is no older copy (payment_witnesses.py), unless the plan
   says so.
4. One command at a time works in a run's `payouts/`.
5. Each answer of a provider is kept, for the operator alone (answer_record.py).
"""

import contextlib
import functools
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.accounts import fork_evidence, payout_hold, run_logs
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.payouts import (
    lost_payments,
    payment_witnesses,
    payout_book,
    payout_checks,
    payout_plan,
    payout_report,
    plan_files,
)
from echo2.coordinator.payouts.answer_record import open_record
from echo2.coordinator.payouts.payout_book import PayoutBook
from echo2.coordinator.payouts.payout_plan import (
    ChosenPayments,
    KnownPayees,
    NodeBalances,
    Payee,
    PayoutLimits,
    SendingLimits,
)
from echo2.coordinator.payouts.payout_sender import PayoutSender
from echo2.coordinator.payouts.plan_files import PayoutFolder, PlanFile
from echo2.coordinator.rails import points_rail, registry
from echo2.coordinator.run import setup
from echo2.coordinator.run.keys import PAYOUT
from echo2.coordinator.settings import config
from echo2.coordinator.settings.payout_config import PayoutSection
from echo2.ledger.payout_facts import (
    CONFIRMED,
    PAYOUT_RESTORED_KIND,
    PLANNED,
    RETURNED,
    UNITS_PER_HUNDREDTH,
    PayoutEnded,
    Payouts,
    SentPayment,
)
from echo2.protocol.authority import Root
from echo2.runtime.errors import LocalFault
from echo2.runtime.figures import number_of
from echo2.runtime.lock import AlreadyLocked, lock_folder
from echo2.runtime.units import DAY

MOST_WHY: Final = 300
"""Characters of the operator's words about a payment."""
WATCH_DAYS: Final = 60
"""Days for which a payment that was final is asked about again."""
Clock = Callable[[], int]


class _Run(NamedTuple):
    place: RunFolder
    settings: PayoutSection
    roots: tuple[bytes, ...]
    chain: tuple[Root, ...]

    @property
    def limits(self) -> PayoutLimits:
        one = self.settings
        return PayoutLimits(one.day_limit, one.node_limit, one.minimum)


def _open_run(home: Path) -> _Run:
    """Return a run whose money may be paid out (rule 2). Raises `LocalFault`."""
    place = RunFolder(home)
    settings = config.load(place.config).payout
    if settings.rail == "points":
        raise LocalFault(points_rail.SENTENCE)
    roots, chain, _, _ = setup.read_documents(place)
    if PAYOUT not in chain[-1].roles:
        raise LocalFault(payout_checks.NO_ROLE)
    return _Run(place, settings, roots, chain)


@contextlib.contextmanager
def _alone(folder: PayoutFolder) -> Iterator[None]:
    folder.path.mkdir(mode=0o700, exist_ok=True)
    try:
        lock = lock_folder(folder.path)
    except AlreadyLocked as error:
        raise LocalFault(f"another `echo2-coord payout` works in {folder.path}: let it end first") from error
    with lock:
        yield


async def plan(home: Path, clock: Clock, *, do: bool, unwitnessed: bool = False) -> list[str]:
    """Plan payments of what the ledger has as payable; write files and entry with `do`. `unwitnessed`: also while
    payments wait for nodes. Raises `LocalFault`."""
    run, folder = _open_run(home), PayoutFolder(home)
    with _alone(folder):
        wait = (await payment_witnesses.ask(home)).wait
        if wait and not unwitnessed:
            raise LocalFault(f"nothing is planned: {wait}; {payment_witnesses.GO_ON}")
        with Database.read(run.place.database) as database:
            folder.check_restored(payout_hold.held_since(database))
            if why := fork_evidence.evidence(database):
                raise LocalFault(f"nothing is planned: evidence of a fork is known: {why}")
            waits = payout_book.waits(Ledger(database))
            accounts = folder.payees(clock(), {node: wait.since for node, wait in waits.items()})
            payees = KnownPayees(accounts, folder.coming(clock()), waits, folder.withheld())
            newest = payout_book.read(Ledger(database))
            if payout_hold.held_since(database) is None:
                folder.check_known(newest.number)
            planned, chosen = _choose_payments(run, folder, payees, newest, database, clock())
            planned = msgspec.structs.replace(planned, unwitnessed=bool(wait))
            balances = Ledger(database).balances()
        owed = payout_plan.owed_to_nodes(balances)
        unknown = payout_report.unknown_payees(folder.named_nodes(), balances)
        if not chosen.payments:
            return unknown + _nothing(chosen, owed, run.settings.currency, do=do)
        fee = await _largest_fee(run, planned, payees.accounts, clock)
        lines = payout_report.describe_new_plan(planned, chosen, owed, fee, do=do)
        lines += unknown + payout_report.describe_replacement(newest.plan, do=do)
        if not do:
            return [*lines, "nothing was written: --yes writes the plan"]
        with payout_book.open_book(home, clock) as (payments_book, _):
            where = folder.write(planned, payees.accounts, run.roots)
            await payments_book.record(PLANNED, planned.entry_facts())
    return [*lines, f"written: {where}; each approver runs `echo2-coord payout approve {where} --keys FOLDER --yes`"]


def _nothing(chosen: ChosenPayments, owed: NodeBalances, currency: str, *, do: bool) -> list[str]:
    """Return who is owed what though there is no payment to plan. Raises `LocalFault` where one was to be written."""
    why = "; ".join(sorted({one.why for one in chosen.left_out})[:5]) or "no node has anything payable"
    if do:
        raise LocalFault(f"there is nothing to pay out: {why}")
    return [*payout_report.unpaid(chosen, owed, currency), f"there is nothing to pay out: {why}"]


def _choose_payments(
    run: _Run, folder: PayoutFolder, payees: KnownPayees, payouts: Payouts, database: Database, now: int
) -> tuple[PlanFile, ChosenPayments]:
    row = database.one("SELECT number, size, sealed FROM ledger_heads ORDER BY number DESC LIMIT 1")
    if row is None:
        raise LocalFault("the ledger has no signed head yet: the coordinator signs one within a quarter of an hour")
    ledger = Ledger(database)
    number = folder.next_number(payouts.number)
    owed = payout_plan.payable_at(ledger.balances(), ledger.entries(after=row[1]))
    check = registry.account_check(run.settings)
    chosen = payout_plan.choose(
        run.chain[-1].run, number, owed, payees, payouts.payments.values(), run.limits, now, check
    )
    one = run.settings
    digest = hashlib.sha256(row[2]).digest()
    return PlanFile(
        run=run.chain[-1].run, plan=number, rail=one.rail, currency=one.currency, head=row[0], head_hash=digest,
        payments=chosen.payments,
    ), chosen  # fmt: skip


async def _largest_fee(run: _Run, plan: PlanFile, payees: Mapping[str, Payee], clock: Clock) -> int | None:
    """Return the fee of a plan's largest payment, minor units; None: the rail is of files, and knows of none."""
    if run.settings.rail in registry.FILES:
        return None
    largest = max(plan.payments, key=lambda one: one.amount)
    async with registry.open_rail(run.settings, PayoutFolder(run.place.path).path, clock) as rail:
        quote = await rail.quote(payees[largest.node].account, largest.amount // UNITS_PER_HUNDREDTH)
    return quote.fee


async def send(home: Path, clock: Clock, *, do: bool) -> list[str]:
    """Send the newest plan, as far as the limits allow; without `do` only check it. Raises `LocalFault`."""
    run, folder = _open_run(home), PayoutFolder(home)
    with _alone(folder), payout_book.open_book(home, clock) as (payments_book, database):
        folder.check_restored(payout_hold.held_since(database))
        newest = payments_book.payouts.plan
        if newest is None:
            raise LocalFault("there is no plan: make one with `echo2-coord payout plan --yes`")
        where = folder.plan_folder(newest.planned.plan)
        planned, approval = plan_files.read_plan(where), plan_files.read_approval(where)
        accounts = plan_files.read_accounts(where, planned.payments)
        reasons = payout_checks.refusals(
            planned, approval, payments_book.payouts, database, run.chain, run.settings.rail, clock(),
            await payment_witnesses.ask(home),
        )  # fmt: skip
        if reasons:
            raise LocalFault(f"plan {planned.plan} is not sent: " + "; ".join(reasons))
        waits = payout_book.waits(Ledger(database))
        limits = SendingLimits(run.limits, payments_book.payouts.payments.values(), clock(), waits, folder.withheld())
        if not do:
            return [*payout_report.describe_plan(planned), "nothing forbids it; nothing was sent: --yes sends it"]
        before = registry.written_files(run.settings, folder.path)
        async with _sender(run, folder, payments_book, clock) as sender:
            done = payout_report.describe_pass(await sender.send(planned, accounts, limits))
        files = registry.written_files(run.settings, folder.path) - before
        return [*done, *(f"file        {path}: hand it on once" for path in sorted(files))]


async def reconcile(home: Path, clock: Clock, *, do: bool) -> list[str]:
    """Ask what became of payments; without `do` only count them, and check what the rail is to read. Raises
    `LocalFault`."""
    run, folder = _open_run(home), PayoutFolder(home)
    with _alone(folder), payout_book.open_book(home, clock) as (payments_book, _):
        watched = _watched_payments(payments_book, clock())
        accounts = _accounts(folder, watched)
        if not do:
            registry.check_rail(run.settings, folder.path)
            asked = number_of(len(watched), "payment")
            unknown = _unknown_outcomes(run, folder, payments_book)
            return [*unknown, f"{asked} would be asked about; nothing was asked: --yes does"]
        async with _sender(run, folder, payments_book, clock) as sender:
            done = payout_report.describe_pass(await sender.reconcile(watched, accounts))
        return [*done, *_unknown_outcomes(run, folder, payments_book)]


def _unknown_outcomes(run: _Run, folder: PayoutFolder, payments_book: PayoutBook) -> list[str]:
    """Return the keys that the operator's file of outcomes names, and that are of no payment of the run."""
    path, keys = registry.stated_outcomes(run.settings, folder.path)
    known = {one.key for one in payments_book.payouts.payments.values()}
    return payout_report.unknown_outcomes(path, sorted(set(keys) - known))


async def cancel(home: Path, clock: Clock, key: str, *, do: bool) -> list[str]:
    """Have the provider stop one payment. Raises `LocalFault`."""
    run, folder = _open_run(home), PayoutFolder(home)
    with _alone(folder), payout_book.open_book(home, clock) as (payments_book, _):
        payment = _find_payment(payments_book, key)
        if not do:
            return [f"payment {key} is {payment.state}; the provider was not asked to stop it: --yes does"]
        async with _sender(run, folder, payments_book, clock) as sender:
            answer = await sender.cancel(payment)
        after = payments_book.payouts.payments[payment.sent.payment]
        return [f"the provider answers {answer.word} {answer.why}".rstrip(), f"payment {key} is {after.state}"]


async def settle(home: Path, clock: Clock, settled: str, why: str, *, do: bool) -> list[str]:
    """Record a person's answer to an open question, or that a payment without a final answer has ended. `settled`:
    KEY=confirmed or KEY=returned. Raises `LocalFault`."""
    _open_run(home)
    key, _, outcome = settled.partition("=")
    kind = {"confirmed": CONFIRMED, "returned": RETURNED}.get(outcome)
    if kind is None or not why.strip() or len(why) > MOST_WHY:
        raise LocalFault(
            f"--settle needs KEY=confirmed or KEY=returned, and --why a text of 1 to {MOST_WHY} characters"
        )
    with _alone(PayoutFolder(home)), payout_book.open_book(home, clock) as (payments_book, database):
        payment = _find_payment(payments_book, key)
        said = why.encode(errors="replace").decode()
        fact = PayoutEnded(
            payment=payment.sent.payment, number=payment.number + 1, node=payment.sent.node, by="operator", why=said
        )
        if not do:
            payout_book.LedgerBook(Ledger(database), clock).check(kind, fact)
            return [f"payment {key} is {payment.state}; nothing was recorded: --yes records that it is {outcome}"]
        await payments_book.record(kind, fact)
    return [f"payment {key} is {outcome}"]


def record_restoration(home: Path, why: str, *, do: bool) -> list[str]:
    """Record that the operator compared the provider's statement with a restored ledger. Raises `LocalFault`."""
    run, folder = _open_run(home), PayoutFolder(home)
    with _alone(folder), Database.read(run.place.database) as database:
        since = payout_hold.held_since(database)
        if since is None:
            return ["run.sqlite was never restored from a copy: payments wait for nothing"]
        payouts = payout_book.read(Ledger(database))
        lost = lost_payments.find_lost_payments(folder.path, payouts, run.chain)
        words = functools.reduce(lambda text, one: text.replace(one.key, ""), lost, why)
        if not why.strip() or len(words) > MOST_WHY:
            raise LocalFault(
                f"--why needs a text of 1 to {MOST_WHY} characters, besides the keys of payments: how you compared "
                "statement and ledger"
            )
        withheld = folder.withheld()
        paid_again = [one for one in lost if one.node not in withheld and one.key not in why]
        lines = payout_report.describe_lost(paid_again, run.settings.currency)
        if not do:
            return [*payout_report.since_restored(since), *lines, "nothing was recorded: --yes records that"]
        if lines:
            raise LocalFault("not recorded: " + "; ".join(lines))
        folder.write_restored(since, why.encode(errors="replace").decode())
    return ["recorded: payments may be planned and sent again"]


async def put_back(home: Path, where: Path, clock: Clock, *, do: bool) -> list[str]:
    """Put the payments of a plan that a restored ledger lacks back into it. `where`: the plan's folder, as it was sent.
    Raises `LocalFault`, `Untrusted`."""
    run, folder = _open_run(home), PayoutFolder(home)
    with _alone(folder), payout_book.open_book(home, clock) as (payments_book, database):
        if payout_hold.held_since(database) is None:
            raise LocalFault("run.sqlite was never restored by `echo2-coord restore`, so it lacks no payment")
        planned, approval = plan_files.read_plan(where), plan_files.read_approval(where)
        shared = run_logs.newest_shared(database, run_logs.read_logs(run.place, run.chain))
        reasons = payout_checks.of_lost_plan(planned, approval, database, run.chain, run.settings.rail, shared)
        if reasons:
            raise LocalFault(f"nothing of plan {planned.plan} is put back: " + "; ".join(reasons))
        ledger, provider = Ledger(database), registry.provider_of(run.settings)
        back = lost_payments.to_put_back(planned, payments_book.payouts, ledger.balances(), provider)
        lines = payout_report.put_back(planned, back, payout_book.waits(ledger), do=do)
        for fact in back.facts if do else ():
            await payments_book.record(PAYOUT_RESTORED_KIND, fact)
    return lines


def report(home: Path, clock: Clock) -> list[str]:
    """Return what was paid, what is open, and the questions. Reads the ledger alone. Raises `LocalFault`."""
    place = RunFolder(home)
    currency = config.load(place.config).payout.currency
    with Database.read(place.database) as database:
        ledger = Ledger(database)
        payouts, owed = payout_book.read(ledger), payout_plan.owed_to_nodes(ledger.balances())
    return payout_report.report(payouts.plan, payouts.payments.values(), owed, currency, clock())


@contextlib.asynccontextmanager
async def _sender(
    run: _Run, folder: PayoutFolder, payments_book: PayoutBook, clock: Clock
) -> AsyncIterator[PayoutSender]:
    provider, terms = registry.provider_of(run.settings), registry.terms_of(run.settings)
    async with registry.open_rail(run.settings, folder.path, clock) as rail:
        with open_record(folder.path, clock) as record:
            yield PayoutSender(rail, payments_book, terms, provider, clock, told=record.add, repeats=record.repeats)


def _watched_payments(payments_book: PayoutBook, now: int) -> list[SentPayment]:
    every = payments_book.payouts.payments.values()
    return [one for one in every if one.state == "sent" or one.question or now - one.changed < WATCH_DAYS * DAY]


def _accounts(folder: PayoutFolder, payments: list[SentPayment]) -> dict[bytes, str]:
    """Return the accounts of payments that may be sent again, from the files of their plans that are there."""
    accounts: dict[bytes, str] = {}
    for number in sorted({one.sent.plan for one in payments if one.state == "sent" and not one.restored}):
        where = folder.plan_folder(number)
        if (where / "plan").exists():
            accounts |= plan_files.read_accounts(where, plan_files.read_plan(where).payments)
    return accounts


def _find_payment(payments_book: PayoutBook, key: str) -> SentPayment:
    try:
        payment = payments_book.payouts.payments.get(bytes.fromhex(key))
    except ValueError:
        payment = None
    if payment is None:
        raise LocalFault(f"no payment has the key {key[:80]!r}: `echo2-coord payout report` shows those that are open")
    return payment
