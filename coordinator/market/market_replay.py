"""Compute an epoch's entries again from the entries before them. Pure.

Rules
1. `epoch.opened`, `epoch.closed`, `vested`, `released` and `forfeited` follow from the state before them, from `at`,
   and from the facts that are their input: the nodes that are present, and a forfeit's node, lease, amount and reason.
2. An entry that states other facts or postings than those is wrong; so is one that the rules refuse.
3. All other kinds of the market state facts alone: they have no postings, and `MarketState.take` checks them.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from coordinator.accounts.ledger import Entry
from coordinator.market.entries import FACTS, EpochOpened, Forfeited, NewEntry
from coordinator.market.epoch_terms import BadTerms
from coordinator.market.epochs import close_epoch, forfeit, open_epoch, release, vest
from coordinator.market.market_state import MarketState
from protocol.sealed_asks import BadAsk


class NotReproduced(Exception):
    """Entry `seq` is not what the entries before it lead to."""

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(f"ledger entry {seq}: {why}")
        self.seq = seq


def _opened(state: MarketState, entry: Entry) -> NewEntry:
    return open_epoch(state, entry.at, msgspec.msgpack.decode(entry.facts, type=EpochOpened).present)


def _closed(state: MarketState, entry: Entry) -> NewEntry:
    return close_epoch(state, entry.at)


def _forfeited(state: MarketState, entry: Entry) -> NewEntry:
    fact = msgspec.msgpack.decode(entry.facts, type=Forfeited)
    return forfeit(state, entry.at, fact.node, fact.amount, fact.why, fact.lease)


_FOLLOWS: Final[dict[str, Callable[[MarketState, Entry], NewEntry | None]]] = {
    "epoch.opened": _opened,
    "epoch.closed": _closed,
    "vested": lambda state, entry: vest(state, entry.at),
    "released": lambda state, entry: release(state, entry.at),
    "forfeited": _forfeited,
}


def check_entry(state: MarketState, entry: Entry) -> None:
    """Check an entry against the state before it (rules 1 to 3). Raises `NotReproduced`."""
    if entry.kind not in FACTS:
        return
    try:
        again = _FOLLOWS[entry.kind](state, entry) if entry.kind in _FOLLOWS else None
    except (BadTerms, BadAsk, msgspec.MsgspecError) as error:
        raise NotReproduced(entry.seq, f"{entry.kind}: {error}") from error
    if entry.kind not in _FOLLOWS:
        if entry.postings:
            raise NotReproduced(entry.seq, f"{entry.kind} has postings")
        return
    if again is None or (again.key, again.postings) != (entry.key, entry.postings):
        raise NotReproduced(entry.seq, f"{entry.kind} moves other amounts than follow from the entries before it")
    if msgspec.msgpack.encode(again.facts) != entry.facts:
        raise NotReproduced(entry.seq, f"{entry.kind} states other facts than follow from the entries before it")


def replayed(run: bytes, entries: Iterable[Entry]) -> MarketState:
    """Return the state after entries, each checked. Raises `NotReproduced`."""
    state = MarketState(run)
    for entry in entries:
        check_entry(state, entry)
        try:
            state.take(entry)
        except (BadTerms, BadAsk) as error:
            raise NotReproduced(entry.seq, f"{entry.kind}: {error}") from error
    return state
