"""The summary of a demo's market: active nodes, nodes on standby, earnings, payments. Pure: from the ledger alone."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from echo2.coordinator.market.entries import EpochClosed, EpochOpened
from echo2.coordinator.market.market_state import MarketState
from echo2.ledger.ledger_entries import Entry
from echo2.ledger.payout_facts import KINDS, Payouts, SentPayment, payable
from echo2.protocol.money_text import amount_text

PLACES = ("active", "standby", "out")
HEADINGS = ("node", "ask per hour", *PLACES, "RE", "earned")
PAID_HEADINGS = ("payable", "paid", "payment")


@dataclass
class PlayedMarket:
    """The market of a run as its ledger tells it. Amounts: 10^-9 of the currency. `work`: milli-RE. `places`: epochs
    of each node, by place. `balances`: what is payable."""

    epochs: int = 0
    asks: dict[str, int] = field(default_factory=dict)
    pay: Counter[str] = field(default_factory=Counter)
    work: Counter[str] = field(default_factory=Counter)
    balances: Counter[str] = field(default_factory=Counter)
    places: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    payments: list[SentPayment] = field(default_factory=list)


def played_market(run: bytes, entries: Iterable[Entry]) -> PlayedMarket:
    """Return the market of a run. `entries`: all of its ledger."""
    state, payouts, played = MarketState(run), Payouts(), PlayedMarket()
    for entry in entries:
        state.take(entry)
        played.asks |= state.asks
        for account, amount in entry.postings:
            played.balances[account] += amount
        if entry.kind in KINDS:
            payouts.take(entry)
        if entry.kind == "epoch.opened":
            for node, place in _places(state, msgspec.msgpack.decode(entry.facts, type=EpochOpened).present):
                played.places[node][place] += 1
        elif entry.kind == "epoch.closed":
            for row in msgspec.msgpack.decode(entry.facts, type=EpochClosed).nodes:
                played.pay[row.node] += row.pay
                played.work[row.node] += row.work
    played.epochs, played.payments = state.epoch, list(payouts.payments.values())
    return played


def market_lines(played: PlayedMarket, names: Mapping[str, str], currency: str) -> list[str]:
    """Return the table that is printed at the end. `names`: names of nodes, by peer id."""
    paying = bool(played.payments)
    rows = [[*HEADINGS, *(PAID_HEADINGS if paying else ())]]
    for node in sorted(played.asks, key=lambda one: played.asks[one]):
        row = [
            names.get(node, node), amount_text(played.asks[node]), *(str(played.places[node][one]) for one in PLACES),
            f"{played.work[node] / 1000:,.1f}", amount_text(played.pay[node]),
        ]  # fmt: skip
        rows.append([*row, *(_payment_cells(played, node) if paying else [])])
    total = f"{'epochs':<10}{played.epochs}, earned {amount_text(played.pay.total(), currency)} in all"
    return [total, *_align_rows(rows)]


def _payment_cells(played: PlayedMarket, node: str) -> list[str]:
    payments = [one for one in played.payments if one.sent.node == node]
    amount = sum(one.sent.amount for one in payments if one.state != "returned")
    states = ", ".join(one.state for one in payments) or "none"
    return [amount_text(played.balances[payable(node)]), amount_text(amount), states]


def _align_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"{'':<10}{row[0]:<{widths[0]}}"
        + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]


def _places(state: MarketState, present: Iterable[str]) -> list[tuple[str, str]]:
    if state.open is None:
        return []
    market = state.open.plan.market
    active = {one.node.decode() for one in market.nodes}
    standby = {one.node.decode() for one in market.activation.standby}
    return [(node, "active" if node in active else "standby" if node in standby else "out") for node in present]
