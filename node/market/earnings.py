"""The earnings of a node, and each term of them, in sentences and in plain values. Pure.

Rules
1. Work is in milli-RE, money in nano units of the run's currency, times are ms.
2. Pay of an epoch stands here once its close is proved; a receipt before that is pending.
3. An unknown term is said (`lacks`), never guessed.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

from echo2.node.market.forecast import LEAST_PERIODS, Forecast, forecast
from echo2.node.market.market_words import MILLI, ask_standing, place_text, re_text
from echo2.node.market.payee_file import PayeeRecord, moving, payments
from echo2.node.trust.market_store import StoredAnswer
from echo2.node.trust.pay_witness import OwnEpoch
from echo2.protocol.leases import Receipt
from echo2.protocol.market import MarketResponse
from echo2.protocol.money_text import amount_text, ask_text
from echo2.protocol.refusals import QUARANTINE
from echo2.runtime.figures import figure, number_of
from echo2.runtime.units import DAY, date, minute

HOUR: Final = 3_600_000
WORDS: Final = (
    "RE: a reference rollout, the unit of work; a point is the credit for one. Longer answers count more",
    "group: the answers to one prompt, made under one lease, with one verdict",
    "quarantine: groups of a day whose credit waits for the checks of that day to end",
)
"""The words of `--explain`, a sentence each."""
EXPLAINED_PERIODS: Final = 12
"""Epochs or days that are explained, the newest ones."""


class Electricity(NamedTuple):
    """The machine's power. `watts`: while it works. `tariff`: nano units per kWh; None: not set."""

    watts: int
    tariff: int | None = None

    @property
    def per_hour(self) -> int:
        """Nano units, rounded up; 0 without a tariff."""
        return -(-(self.tariff or 0) * self.watts // 1000)


class EarningsSources(NamedTuple):
    """All that is known here of a node's earnings. `run`: its name. `currency`: empty: points. `receipts`: accepted,
    oldest first. `epochs`: closed ones, oldest first, with what was promised. `lacks`: sentences (rule 3)."""

    run: str
    currency: str
    receipts: list[Receipt]
    epochs: list[tuple[OwnEpoch, MarketResponse | None]]
    market: StoredAnswer | None
    payee: PayeeRecord
    electricity: Electricity | None
    lacks: list[str]
    page: str = ""
    """Address of this node's own part of the run's page; empty: the run has none."""
    rank: str = ""
    """Place on it, as in 3 of 17; empty: not known."""
    joined: bool = True
    """Whether a node has joined the run here: before, nobody knows what it pays in."""

    @property
    def pending(self) -> list[Receipt]:
        """Receipts whose epoch is not closed, or not proved to be (rule 2)."""
        closed = {own.epoch for own, _ in self.epochs}
        return [one for one in self.receipts if one.epoch is None or one.epoch not in closed]

    def of_epoch(self, epoch: int) -> list[Receipt]:
        """Return the receipts of an epoch."""
        return [one for one in self.receipts if one.epoch == epoch]

    @property
    def outlook(self) -> Forecast | None:
        """Money per hour from epochs, or milli-RE per hour from the hours in which there was work."""
        if self.currency:
            paid = [own for own, _ in self.epochs if own.row is not None and own.closed > own.since]
            return forecast([Fraction(own.accrued + own.unvested, own.closed - own.since) * HOUR for own in paid])
        hours: dict[int, int] = {}
        for one in self.receipts:
            hours[one.at // HOUR] = hours.get(one.at // HOUR, 0) + one.weight
        whole = sorted(hours)[1:-1]  # the first and the last one are parts
        return forecast([Fraction(hours[hour]) for hour in whole])


def days_of(receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
    """Return accepted work by day (UTC), oldest first. `held`: held of it, in quarantine at the verdict."""
    days: dict[int, dict[str, Any]] = {}
    for one in receipts:
        day = days.setdefault(one.at // DAY, {"day": date(one.at), "groups": 0, "work": 0, "held": 0})
        day["groups"] += 1
        day["work"] += one.weight
        day["held"] += one.weight if one.code == QUARANTINE else 0
    return [days[day] for day in sorted(days)]


def plain(known: EarningsSources) -> dict[str, Any]:
    """Return everything in plain values."""
    market = known.market
    told = known.payee.told
    outlook = known.outlook
    return {
        "run": known.run,
        "currency": known.currency,
        "work": sum(one.weight for one in known.receipts),
        "days": days_of(known.receipts),
        "balances": None if market is None else {
            "at": market.at, "payable": market.answer.payable, "accrued": market.answer.accrued,
            "unvested": market.answer.unvested,
        },
        "market": None if market is None else {
            "place": market.answer.place, "why": market.answer.why, "ask": market.answer.ask,
            "active_at": market.answer.active_at, "rate": market.answer.rate, "price": market.answer.price,
            "most": market.answer.most,
        },
        "epochs": [_plain_epoch(own, promised, known.of_epoch(own.epoch)) for own, promised in known.epochs],
        "pending": {"groups": len(known.pending), "work": sum(one.weight for one in known.pending)},
        "forecast": None if outlook is None else outlook._asdict() | {"chance": str(outlook.chance)},
        "electricity": None if known.electricity is None else {
            **known.electricity._asdict(), "per_hour": known.electricity.per_hour,
        },
        "page": known.page or None,
        "rank": known.rank or None,
        "payments": None if told is None else {"rail": told.rail, "minimum": told.minimum, "fee": told.fee},
        "moving": [] if told is None else [
            {"node": one.node, "amount": one.amount, "at": one.at, "disputed": one.disputed} for one in told.moving
        ],
        "lacks": known.lacks,
    }  # fmt: skip


def lines(known: EarningsSources, *, explain: bool) -> list[str]:
    """Return sentences for people. `explain`: whether to list each term of the newest epochs, or days."""
    body = _money_lines(known) if known.currency else _points_lines(known)
    body += [*([f"rank {known.rank} on the run's page"] if known.rank else []), *([known.page] if known.page else [])]
    if explain:
        body += [*_explain_accounts(known), *WORDS]
    return [*body, *(f"not known here: {sentence}" for sentence in known.lacks)]


def _money_lines(known: EarningsSources) -> list[str]:
    currency, rows = known.currency, [f"{known.run} pays in {known.currency}"]
    if known.market is not None:
        at, answer = known.market
        rows += [
            f"payable {amount_text(answer.payable, currency)}, held back {amount_text(answer.accrued, currency)}, not "
            f"vested yet {amount_text(answer.unvested, currency)}, as the run told at {minute(at)}",
            f"{place_text(answer)}; {ask_standing(answer)}",
            f"the rate of this node that counts is {re_text(answer.rate)} per hour",
        ]
    total = sum(own.accrued + own.unvested for own, _ in known.epochs)
    pending = known.pending
    rows.append(
        f"{len(known.epochs)} closed epochs, proved by the ledger, paid {amount_text(total, currency)}; {len(pending)} "
        f"accepted groups, {re_text(sum(one.weight for one in pending))}, wait for their epoch's close or its proof"
    )
    rows.append(_outlook_line(known))
    rows += _energy_lines(known)
    rows += [] if known.payee.told is None else [*moving(known.payee.told), payments(known.payee.told)]
    return rows


def _points_lines(known: EarningsSources) -> list[str]:
    work = sum(one.weight for one in known.receipts)
    if not known.joined:
        return [f"{known.run}: nothing is known of its pay yet"]
    groups = number_of(len(known.receipts), "accepted group")
    rows = [f"{known.run} pays points, credited at the verdict: {groups}, {re_text(work)}"]
    if known.receipts:
        mean = re_text(work // len(known.receipts))
        rows.append(f"a point is the work of one reference rollout (RE); a group of this node earned {mean} on average")
    return [*rows, _outlook_line(known), *_energy_lines(known)]


def _outlook_line(known: EarningsSources) -> str:
    outlook = known.outlook
    what = "epochs" if known.currency else "hours"
    if outlook is None:
        return f"no forecast: it needs {LEAST_PERIODS} {what} of work"
    mean, low, high = (
        amount_text(one, known.currency) if known.currency else re_text(one)
        for one in (outlook.mean, outlook.low, outlook.high)
    )
    return (
        f"forecast while it works: {mean} per hour, and from {low} to {high} with a chance of "
        f"{int(100 * outlook.chance)} % (from its last {outlook.periods} {what})"
    )


def _energy_lines(known: EarningsSources) -> list[str]:
    """Return what the work takes of electricity, and what that costs."""
    electricity, outlook = known.electricity, known.outlook
    if electricity is None:
        return ["electricity: set `watts`, and `tariff` (per kWh), by `echo2-node config set` to see it here"]
    rows = [f"electricity: {electricity.watts} W while it works"]
    if outlook is not None and outlook.mean and not known.currency:
        joules = Fraction(electricity.watts * 3600 * MILLI, outlook.mean)
        used = joules * Fraction(sum(one.weight for one in known.receipts), MILLI) / 3_600_000
        rows = [
            f"{rows[0]}: a point takes {figure(float(joules / 3600))} Wh, its work so far {figure(float(used))} kWh"
        ]
    if electricity.tariff is None:
        return [*rows, "cost of it: set `tariff` (per kWh) by `echo2-node config set` to see it here"]
    cost = (
        f"cost of it: {amount_text(electricity.tariff)} per kWh, {amount_text(electricity.per_hour)} per hour of work"
    )
    if known.currency:
        rows.append(f"{cost}, so an ask below {ask_text(electricity.per_hour)} does not pay for it")
        if outlook is not None:
            left = outlook.mean - electricity.per_hour
            rows.append(f"of the forecast {amount_text(left, known.currency)} per hour are left after electricity")
    elif outlook is not None and outlook.mean:
        rows.append(f"{cost}, {amount_text(int(Fraction(electricity.per_hour * MILLI, outlook.mean)))} per point")
    else:
        rows.append(cost)
    return rows


def _explain_accounts(known: EarningsSources) -> list[str]:
    if not known.currency:
        return [
            f"{one['day']}: {number_of(one['groups'], 'group')}, {re_text(one['work'])}"
            + (f", {re_text(one['held'])} of it in quarantine at the verdict" if one["held"] else "")
            for one in days_of(known.receipts)[-EXPLAINED_PERIODS:]
        ]
    rows = []
    for own, promised in known.epochs[-EXPLAINED_PERIODS:]:
        rows += _explained_epoch(own, promised, known.of_epoch(own.epoch), known.currency)
    return rows


def _explained_epoch(
    own: OwnEpoch, promised: MarketResponse | None, receipts: Sequence[Receipt], currency: str
) -> list[str]:
    head = f"epoch {own.epoch}, closed at {minute(own.closed)} by entry {own.entry}"
    if own.row is None:
        return [f"{head}: nothing was paid"]
    row = own.row
    entries = sorted(one.entry for one in receipts)
    span = f", entries {entries[0]} to {entries[-1]}" if entries else ""
    beyond = promised is not None and promised.price is not None and row.work > promised.most
    paid = f"{re_text(promised.most)} of {re_text(row.work)}" if promised is not None and beyond else re_text(row.work)
    rows = [
        f"{head}: {amount_text(row.price, currency)} per RE x {paid} = {amount_text(row.pay, currency)}; "
        f"{amount_text(row.unvested, currency)} of it vests over 24 hours",
        f"  work: {number_of(len(receipts), 'receipt')}{span}; "
        f"leased for {row.leased // 60_000} min {row.leased // 1000 % 60} s",
    ]
    if promised is not None and promised.price is not None:
        rows.append(
            f"  promised: {amount_text(promised.price, currency)} per RE for at most {re_text(promised.most)}"
            + (": work beyond that is not paid" if beyond else "")
        )
    return [*rows, *([] if row.active else ["  run-off: paid at the price before"])]


def _plain_epoch(own: OwnEpoch, promised: MarketResponse | None, receipts: Sequence[Receipt]) -> dict[str, Any]:
    row = own.row
    return {
        "epoch": own.epoch, "entry": own.entry, "since": own.since, "closed": own.closed,
        "price": row and row.price, "work": row and row.work, "leased": row and row.leased,
        "pay": row and row.pay, "unvested": row and row.unvested, "active": row and row.active,
        "promised": None if promised is None else {"price": promised.price, "most": promised.most},
        "receipts": [{"lease": one.lease.hex(), "entry": one.entry, "work": one.weight} for one in receipts],
    }  # fmt: skip
