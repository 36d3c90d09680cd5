"""A ledger in memory for the market: entries that the core made, their balances, and the six nodes of the design."""

from collections import Counter
from fractions import Fraction
from typing import TypeVar

import msgspec

from echo2.coordinator.market.activation import Offer
from echo2.coordinator.market.entries import EpochAnnounced, NewEntry, StatedEnd
from echo2.coordinator.market.epochs import (
    announce,
    benchmark,
    close_epoch,
    draw,
    forfeit,
    open_ask,
    open_epoch,
    release,
    seal_ask,
    vest,
)
from echo2.coordinator.market.market_state import MarketState
from echo2.coordinator.market.throughput import HOUR
from echo2.ledger.ledger_entries import FUND, ORIGIN, Entry, Posting, canonical, chain_hash, check_postings
from echo2.protocol.sealed_asks import commitment

F = TypeVar("F")
NANO = 1_000_000_000
QUARTER = HOUR // 4
RUN, BEACON, SALT = b"r" * 32, b"b" * 32, b"s" * 16
# Asks in dollars per hour, lower bounds of throughput in RE per hour.
DESIGN = {
    b"A": (Fraction("0.30"), 9_000), b"B": (Fraction("0.14"), 4_500), b"C": (Fraction(2), 40_000),
    b"D": (Fraction("0.45"), 14_000), b"E": (Fraction("0.06"), 1_500), b"F": (Fraction("0.70"), 18_000),
}  # fmt: skip


def design_offers(incumbents: bytes = b"") -> list[Offer]:
    """Return the offers of the design's examples. `incumbents`: letters."""
    return [Offer(node, int(ask * NANO), 1000 * rate, node in incumbents) for node, (ask, rate) in DESIGN.items()]


class Book:
    """Entries in a chain as the ledger makes them, their balances, and the market's state after them."""

    def __init__(self) -> None:
        self.state = MarketState(RUN)
        self.entries: list[Entry] = []
        self.keys: set[str] = set()
        self.balances = Counter[str]()
        self.accepted = Counter[str]()
        """Milli-RE of accepted work per node."""

    def add(self, new: NewEntry | None) -> Entry | None:
        """Append an entry, check its postings and the balances, and let the state read it."""
        if new is None:
            return None
        check_postings(new.postings)
        seq = len(self.entries) + 1
        facts = msgspec.msgpack.encode(new.facts)
        written = canonical(seq, new.at, new.kind, new.key, new.postings, facts)
        digest = chain_hash(self.entries[-1].hash if self.entries else ORIGIN, written)
        entry = Entry(seq, new.at, new.kind, new.key, tuple(Posting(*one) for one in new.postings), facts, digest)
        assert new.key not in self.keys
        self.state.take(entry)
        self.keys.add(new.key)
        self.entries.append(entry)
        for account, amount in new.postings:
            self.balances[account] += amount
            assert account == FUND or self.balances[account] >= 0, f"{account} falls below zero by {new.kind}"
        return entry

    def lease(self, node: str, sent: int, received: int | None, weight: int = 1000, life: int = HOUR) -> None:
        """Append the end of a lease: accepted where it has a weight, else refused; None received: expired."""
        kind = "expired" if received is None else "accepted" if weight else "refused"
        end = StatedEnd(node, sent, sent + life, received, weight if received is not None else 0)
        at = sent + life if received is None else received
        if kind == "accepted":
            self.accepted[node] += weight
        self.add(NewEntry(at, f"lease.{kind}", f"lease:{len(self.entries)}", end))

    def epoch(self, at: int, present: list[str], asks: dict[str, int], **terms: object) -> int:
        """Announce an epoch, seal and open asks, and open it; return when it was opened."""
        number = self.state.epoch + 1
        self.add(announce(self.state, at, announced(number, at + 10, **terms)))
        for node, ask in asks.items():
            self.add(seal_ask(self.state, at + 1, node, number, commitment(RUN, node, number, ask, SALT)))
        self.add(draw(self.state, at + 11, BEACON))
        for node, ask in asks.items():
            self.add(open_ask(self.state, at + 11, node, number, ask, SALT))
        self.add(open_epoch(self.state, at + 12, present))
        return at + 12

    def close(self, at: int) -> None:
        """Close the epoch, vest and release."""
        self.add(close_epoch(self.state, at))
        self.add(vest(self.state, at))
        self.add(release(self.state, at))

    def facts(self, kind: str, of: type[F]) -> list[F]:
        return [msgspec.msgpack.decode(entry.facts, type=of) for entry in self.entries if entry.kind == kind]


def announced(epoch: int, closes: int, **terms: object) -> EpochAnnounced:
    """Return terms of an epoch of 15 minutes; those that are not given are roomy."""
    usual = {"need": 20_000_000, "reserve": 60_000, "budget": 10**12, "milliseconds": QUARTER}
    usual |= {"newcomers": 50, "cap": 400, "run_off": 0}
    return EpochAnnounced(epoch=epoch, closes=closes, **{**usual, **terms})  # type: ignore[arg-type]


def cheap(book: Book, need: int = 100_000, **terms: object) -> int:
    """Open an epoch of two newcomers, a at 1 and b at 2 per RE, both within the need; return when."""
    if not book.entries:
        book.add(benchmark(0, "a", 60_000))
        book.add(benchmark(0, "b", 60_000))
    asks = {} if book.state.asks else {"a": 60_000, "b": 120_000}
    at = max((entry.at for entry in book.entries), default=0) + 1
    return book.epoch(at, ["a", "b"], asks, **{"need": need, "reserve": 4_000, "cap": 1000, **terms})


def told() -> Book:
    """Return a book with every kind of entry of two epochs."""
    book = Book()
    begin = cheap(book, run_off=QUARTER)
    for number in range(100):
        book.lease("a", begin, begin + number + 1)
    book.lease("b", begin, None)
    book.close(begin + QUARTER)
    book.add(forfeit(book.state, begin + QUARTER, "a", 3_000, "a false group", b"l" * 16))
    at = cheap(book)
    book.lease("b", at, at + 9, weight=7_000)
    book.close(at + HOUR)
    return book
