"""A quoted market for people, and amounts of money as an operator writes them. Pure."""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from echo2.coordinator.market.entries import EpochAnnounced
from echo2.coordinator.market.epoch_terms import MOST_PRICE
from echo2.coordinator.market.market_quote import MarketHistory, QuoteChanges, QuotedMarket
from echo2.coordinator.market.prices import MILLI
from echo2.coordinator.market.throughput import HOUR
from echo2.protocol.money_text import rounded_text as amount
from echo2.runtime.errors import LocalFault
from echo2.runtime.figures import figure, number_of

NANO: Final = 10**9
SHOWN_EPOCHS: Final = 12
"""Newest closed epochs that are shown."""
_AMOUNT: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def amount_of(text: str, option: str) -> int:
    """Return an amount in nano units. Raises `LocalFault`."""
    if not _AMOUNT.fullmatch(text):
        raise LocalFault(
            f"{option} is {text[:40]!r}: write an amount below 10^9 with at most nine decimals, as in 0.0125"
        )
    return int(Fraction(text) * NANO)


def check_changes(changes: QuoteChanges) -> None:
    """Check the operator's terms, in the words of the options. Raises `LocalFault`."""
    if changes.reserve is not None and not 0 < changes.reserve <= MOST_PRICE:
        raise LocalFault(
            f"--reserve is {amount(changes.reserve)}: a market needs its highest price per RE, above 0 and at most "
            f"{MOST_PRICE // NANO}"
        )
    if changes.budget == 0:
        raise LocalFault("--budget is 0: a market needs the amount that an epoch may pay, as in 2.50")


def lines(
    past: MarketHistory, terms: EpochAnnounced, rows: Sequence[QuotedMarket], currency: str, groups: int
) -> list[str]:
    """Return quotes, and spending against budgets. `terms`: that are quoted. `groups`: groups of a learner's step."""
    work = None if past.group_weight is None else groups * past.group_weight
    now = "" if terms == past.terms else ", with your terms"
    told = [
        f"epoch {terms.epoch}{now}: a need of {figure(terms.need / MILLI)} RE/h, at most {amount(terms.reserve)} "
        f"{currency}"
        " per RE,"
        f" {amount(terms.budget)} for {figure(terms.milliseconds / 60_000)} minutes;"
        f" {number_of(len(past.present), 'node')} present",
        f"{'':<26} {'nodes':>6} {'RE/h':>9} {'short':>9} "
        f"{'per RE':>10} {'an epoch':>10} {'an hour':>10} {'a step':>10}",
        *(_quote(one, terms.milliseconds, work) for one in rows),
        f"in {currency}, if each node delivers its measured rate; short: RE/h that the need lacks; * the budget binds",
    ]
    if work is None:
        told.append("a step: not known before a group is accepted")
    else:
        told.append(
            f"a step: of the learner, {number_of(groups, 'group')} of {figure(float(work) / groups / MILLI)} RE"
        )
    return [*told, *_spending_lines(past)]


def _quote(one: QuotedMarket, milliseconds: int, work: Fraction | None) -> str:
    hourly = one.pay * HOUR / milliseconds
    return (
        f"{one.name:<26} {one.nodes:>6} {_rate(one.rate):>9} {_rate(one.short):>9} {amount(one.price):>10} "
        f"{amount(one.pay):>10} {amount(hourly):>10} {amount(one.step(work)):>10}{' *' if one.binding else ''}"
    )


def _rate(milli: int) -> str:
    return figure(round(milli / MILLI, 2))


def _spending_lines(past: MarketHistory) -> list[str]:
    if not past.spent:
        return ["no epoch is closed yet: nothing was spent"]
    budget, spent = sum(one.budget for one in past.spent), sum(one.spent for one in past.spent)
    told = [
        "",
        f"{'closed epoch':<14} {'minutes':>8} {'budget':>10} {'spent':>10} {'share':>7} {'RE':>9} {'per RE':>10}",
    ]
    for one in past.spent[-SHOWN_EPOCHS:]:
        share = 100 * one.spent / one.budget if one.budget else 0.0
        price = Fraction(one.spent * MILLI, one.work) if one.work else None
        told.append(
            f"{one.epoch:<14} {one.milliseconds / 60_000:>8.4g} {amount(one.budget):>10} {amount(one.spent):>10} "
            f"{share:>5.1f} % {_rate(one.work):>9} {amount(price):>10}{' *' if one.binding else ''}"
        )
    told.append(f"{len(past.spent)} closed epochs spent {amount(spent)} of {amount(budget)}")
    return told
