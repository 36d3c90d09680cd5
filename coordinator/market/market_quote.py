"""The cost of work by the asks and measurements of a ledger: what an epoch would pay now, and by other terms. Pure.

Money is in nano units, work in milli-RE, rates in milli-RE per hour, prices per RE.

Rules
1. Nodes are those that were present when the newest epoch opened, with the asks and rates that stand now; suspended
   ones are left out. Benchmarked nodes count as newcomers, as at an opening.
2. Terms are those of the newest epoch that was announced, and what the operator changes of them. Forfeits raise the
   budget, as at an opening.
3. Pay is expected: each active node delivers what its rate counts for, for a whole epoch. Late groups of nodes that
   have left are paid from the budget besides, and are not in it.
4. A learner's step costs the mean price times the work of its groups, each of the mean weight of the newest accepted
   ones.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.market.entries import EpochAnnounced, EpochClosed, EpochOpened, StatedEnd
from echo2.coordinator.market.epoch_terms import check_terms
from echo2.coordinator.market.market_replay import NotReproduced, replay_market
from echo2.coordinator.market.market_state import MarketState
from echo2.coordinator.market.prices import MILLI
from echo2.coordinator.market.throughput import HOUR
from echo2.ledger.ledger_entries import Entry
from echo2.runtime.errors import LocalFault

RECENT_GROUPS: Final = 1000
"""Accepted groups of which the mean weight is taken."""
VARIED_TERMS: Final = (
    ("reserve price", "reserve", (Fraction(4, 5), Fraction(5, 4))),
    ("budget", "budget", (Fraction(1, 2), Fraction(2))),
    ("need", "need", (Fraction(1, 2), Fraction(3, 2))),
)
"""Terms of which other values are quoted too: name, field, factors."""


class SpentEpoch(NamedTuple):
    """A closed epoch. `budget`: budget with forfeits. `work`: accepted and paid."""

    epoch: int
    milliseconds: int
    budget: int
    spent: int
    work: int
    binding: bool


class MarketHistory(NamedTuple):
    """The market after a ledger's entries. `at`: time of the newest entry, ms. `terms`: announced last. `group_weight`:
    mean of the newest accepted groups; None: there was none."""

    state: MarketState
    at: int
    terms: EpochAnnounced
    present: list[str]
    spent: list[SpentEpoch]
    group_weight: Fraction | None


class QuotedMarket(NamedTuple):
    """A market that was quoted. `price`: mean per RE; None: nobody is active. `pay`: pay of an epoch."""

    name: str
    nodes: int
    rate: int
    short: int
    price: Fraction | None
    pay: Fraction
    binding: bool

    def step(self, work: Fraction | None) -> Fraction | None:
        """Return the cost of a learner's step of `work` milli-RE (rule 4)."""
        return None if self.price is None or work is None else self.price * work / MILLI


class QuoteChanges(NamedTuple):
    """The terms that the operator changes; None: as announced."""

    need: int | None = None
    reserve: int | None = None
    budget: int | None = None


class _Notes:
    """Notes entries that the state has taken."""

    def __init__(self) -> None:
        self.at = 0
        self.terms: EpochAnnounced | None = None
        self.opened: EpochOpened | None = None
        self.opened_terms: EpochAnnounced | None = None
        self.spent: list[SpentEpoch] = []
        self.weights = deque[int](maxlen=RECENT_GROUPS)

    def note_entries(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield entries, and note each once it was checked and taken."""
        for entry in entries:
            yield entry
            self._note(entry)

    def _note(self, entry: Entry) -> None:
        self.at = max(self.at, entry.at)
        if entry.kind == "epoch.announced":
            self.terms = msgspec.msgpack.decode(entry.facts, type=EpochAnnounced)
        elif entry.kind == "epoch.opened":
            self.opened = msgspec.msgpack.decode(entry.facts, type=EpochOpened)
            self.opened_terms = self.terms
        elif entry.kind == "epoch.closed":
            self._note_close(entry)
        elif entry.kind == "lease.accepted":
            self.weights.append(msgspec.msgpack.decode(entry.facts, type=StatedEnd).weight)

    def _note_close(self, entry: Entry) -> None:
        fact = msgspec.msgpack.decode(entry.facts, type=EpochClosed)
        assert self.opened is not None
        assert self.opened_terms is not None
        self.spent.append(
            SpentEpoch(
                fact.epoch, entry.at - fact.since, self.opened_terms.budget + self.opened.forfeits,
                sum(row.pay for row in fact.nodes), sum(row.work for row in fact.nodes), fact.binding,
            )
        )  # fmt: skip


def history(run: bytes, entries: Iterable[Entry]) -> MarketHistory:
    """Return the market after a run's entries, each checked. Raises `LocalFault`."""
    notes = _Notes()
    try:
        state = replay_market(run, notes.note_entries(entries))
    except NotReproduced as fault:
        raise LocalFault(f"{fault}: export the ledger and check it with `echo2-coord ledger verify`") from fault
    if notes.terms is None or notes.opened is None:
        raise LocalFault(
            "no epoch of a market was opened in this ledger; a run without a market pays in points (docs/money.md): "
            "`echo2-coord market simulate` shows what one would cost"
        )
    weight = Fraction(sum(notes.weights), len(notes.weights)) if notes.weights else None
    return MarketHistory(state, notes.at, notes.terms, notes.opened.present, notes.spent, weight)


def quote_markets(past: MarketHistory, changes: QuoteChanges) -> list[QuotedMarket]:
    """Return the market as it would open now, then with single terms changed. Raises `BadTerms`."""
    terms = change_terms(past.terms, changes)
    rows = [("as it would open now", terms)]
    for name, field, steps in VARIED_TERMS:
        for step in steps:
            other = int(getattr(terms, field) * step)
            other = other if field == "need" else max(1, other)
            rows.append((f"{name} times {float(step):g}", _with(terms, **{field: other})))
    return [_quote(past, name, one) for name, one in rows]


def change_terms(terms: EpochAnnounced, changes: QuoteChanges) -> EpochAnnounced:
    """Return terms as the operator changes them. Raises `BadTerms`."""
    given = {name: value for name, value in changes._asdict().items() if value is not None}
    other = _with(terms, **given)
    check_terms(other, other.closes - 1)
    return other


def _with(terms: EpochAnnounced, **changes: int) -> EpochAnnounced:
    return msgspec.structs.replace(terms, **changes)


def _quote(past: MarketHistory, name: str, terms: EpochAnnounced) -> QuotedMarket:
    state = past.state
    here = [node for node in past.present if not state.is_barred(node, past.at)]
    plan = state.plan_for(terms, here, terms.budget + state.forfeits, past.at)
    nodes = plan.market.nodes
    work = sum((one.expected for one in nodes), Fraction(0))
    pay = sum((one.price * one.expected for one in nodes), Fraction(0)) / MILLI
    rate = int(work * HOUR / terms.milliseconds)
    short = max(0, terms.need - rate)
    return QuotedMarket(name, len(nodes), rate, short, MILLI * pay / work if work else None, pay, plan.market.binding)
