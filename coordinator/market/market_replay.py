"""Compute the market's entries again from the entries before them. Pure.

Rules
1. The key, the facts and the postings of each entry of the market follow from the state before it, from `at`, and from
   the facts that are its input: terms, benchmarks, owners, asks, beacons, the nodes that are present, a forfeit's
   lease and reason, and the key whose balance stays or moves. A forfeit's node and amount follow from its lease
   (forfeit_shares.py).
2. An entry that states another key, other facts or postings than those is wrong; so is one that the rules refuse.
3. The state after an entry is what `MarketState.take` makes of it.
4. Its form (`state`) is part of the ledger's state (ledger/ledger_state.py). Fractions are text, "7/3".
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Final

import msgspec

from echo2.coordinator.market.balance_moves import dispute, move_balance
from echo2.coordinator.market.entries import FACTS, EpochClosed, Forfeited, NewEntry
from echo2.coordinator.market.epoch_terms import BadTerms
from echo2.coordinator.market.epochs import (
    announce,
    benchmark,
    close_epoch,
    draw,
    forfeit,
    group_owners,
    open_ask,
    open_epoch,
    release,
    seal_ask,
    vest,
)
from echo2.coordinator.market.forfeit_shares import ForfeitShares
from echo2.coordinator.market.market_state import MarketState, OpenEpoch
from echo2.coordinator.market.prices import PricedNode
from echo2.coordinator.market.throughput import Throughput
from echo2.ledger.balance_waits import BALANCE_DISPUTED_KIND, holder
from echo2.ledger.ledger_entries import Entry, Tampered
from echo2.protocol.authority import RunSpec
from echo2.protocol.sealed_asks import BadAsk

MARKET: Final = "market"
"""`RunSpec.price_mode` of a run that pays money."""
_decode = msgspec.msgpack.decode


class NotReproduced(Tampered):
    """An entry is not what the entries before it lead to."""


_REPLAYS: Final[dict[str, Callable[[MarketState, int, Any], NewEntry | None]]] = {
    "measured": lambda state, at, fact: benchmark(at, fact.node, fact.rate),
    "epoch.announced": lambda state, at, fact: announce(state, at, msgspec.structs.replace(fact, rules=1)),
    "owners.grouped": lambda state, at, fact: group_owners(state, at, dict(fact.owners)),
    "ask.sealed": lambda state, at, fact: seal_ask(state, at, fact.node, fact.epoch, fact.hash),
    "ask.opened": lambda state, at, fact: open_ask(state, at, fact.node, fact.epoch, fact.ask, fact.salt),
    "epoch.drawn": lambda state, at, fact: draw(state, at, fact.beacon),
    "epoch.opened": lambda state, at, fact: open_epoch(state, at, fact.present),
    "epoch.closed": lambda state, at, fact: close_epoch(state, at),
    "vested": lambda state, at, fact: vest(state, at),
    "released": lambda state, at, fact: release(state, at),
    "forfeited": lambda state, at, fact: forfeit(state, at, fact.node, fact.amount, fact.why, fact.lease),
    BALANCE_DISPUTED_KIND: lambda state, at, fact: dispute(state, at, fact.node),
    "balance.moved": lambda state, at, fact: move_balance(state, at, fact.node),
}
"""Kind of entry -> the entry that follows from the state, its time and its facts."""


def check_entry(state: MarketState, entry: Entry) -> None:
    """Check an entry against the state before it (rules 1 and 2). Raises `NotReproduced`."""
    if entry.kind not in FACTS:
        return
    try:
        again = _REPLAYS[entry.kind](state, entry.at, _decode(entry.facts, type=FACTS[entry.kind]))
    except (BadTerms, BadAsk, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotReproduced(entry.seq, f"{entry.kind}: {error}") from error
    if again is None or again.postings != entry.postings:
        raise NotReproduced(entry.seq, f"{entry.kind} moves other amounts than follow from the entries before it")
    if again.key != entry.key:
        raise NotReproduced(entry.seq, f"it has the key {entry.key}, from its facts follows {again.key}")
    if msgspec.msgpack.encode(again.facts) != entry.facts:
        raise NotReproduced(entry.seq, f"{entry.kind} states other facts than follow from the entries before it")


class ReplayedMarket:
    """The market of a run, from its entries in order. `run`: its id."""

    def __init__(self, run: bytes) -> None:
        self.market = MarketState(run)
        self.shares = ForfeitShares()
        self._closed: list[object] = []

    def check(self, entry: Entry) -> bool:
        """Check an entry, and tell whether its key and postings are the market's to judge. Raises `NotReproduced`."""
        check_entry(self.market, entry)
        if entry.kind == "forfeited":
            try:
                self.shares.check(_decode(entry.facts, type=Forfeited), lambda node: holder(self.market.waits, node))
            except BadTerms as error:
                raise NotReproduced(entry.seq, f"{entry.kind}: {error}") from error
        return entry.kind in FACTS

    def take(self, entry: Entry) -> None:
        """Read the next entry (rule 3). Raises `NotReproduced` for one that the rules refuse."""
        try:
            self.market.take(entry)
            self.shares.take(entry)
        except (BadTerms, BadAsk, msgspec.MsgspecError) as error:
            raise NotReproduced(entry.seq, f"{entry.kind}: {error}") from error
        if entry.kind == "epoch.closed":
            self._closed = [list(msgspec.structs.astuple(row)) for row in _decode(entry.facts, type=EpochClosed).nodes]

    def state(self) -> dict[str, object]:
        """Return the state (rule 4)."""
        now = self.market
        rates = {
            node: now.measurements.get(node, Throughput()).rate(now.benchmarks.get(node, 0))
            for node in now.asks.keys() | now.measurements.keys()
        }
        return {
            "epoch": now.epoch,
            "asks": dict(sorted(now.asks.items())),
            "measured": {
                node: {**one._asdict(), "v": str(one.mean), "rate": rates[node]}
                for node, one in sorted(now.measurements.items())
            },
            "rho": {node: str(Fraction(ask, rates[node])) for node, ask in sorted(now.asks.items()) if rates[node]},
            "vesting": {node: list(map(list, tranches)) for node, tranches in sorted(now.tranches.items())},
            "open": None if now.open is None else _plan(now.open),
            "closed": self._closed,
            "replaced": {node: list(wait) for node, wait in sorted(now.waits.items())},
        }


def _plan(open_: OpenEpoch) -> dict[str, object]:
    market = open_.plan.market
    return {
        "opened": open_.opened,
        "budget": open_.plan.budget,
        "short": market.activation.short,
        "binding": market.binding,
        "active": [_row(node) for node in market.nodes],
        "run_offs": [[*_row(one.node), one.until] for one in open_.plan.run_offs],
    }


def _row(node: PricedNode) -> list[object]:
    return [node.node.decode(), str(node.price), str(node.expected), str(node.most)]


def market_of(spec: RunSpec) -> ReplayedMarket | None:
    """Return the market of a run before its first entry; None: the run pays points."""
    return ReplayedMarket(spec.run) if spec.price_mode == MARKET else None


def replay_market(run: bytes, entries: Iterable[Entry]) -> MarketState:
    """Return the state after entries, each checked as far as the market's state tells: not what a forfeit rests on.
    Raises `NotReproduced`."""
    state = MarketState(run)
    for entry in entries:
        check_entry(state, entry)
        try:
            state.take(entry)
        except (BadTerms, BadAsk) as error:
            raise NotReproduced(entry.seq, f"{entry.kind}: {error}") from error
    return state
