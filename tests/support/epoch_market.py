"""A run's market of short epochs on the fake clock: the coordinator's own core, behind the method `market`."""

from collections.abc import Callable, Iterable

import anyio

from echo2.coordinator.market.entries import EpochAnnounced, NewEntry
from echo2.coordinator.market.epoch_terms import BadTerms
from echo2.coordinator.market.epochs import (
    announce,
    close_epoch,
    draw,
    open_ask,
    open_epoch,
    payable,
    release,
    seal_ask,
    vest,
)
from echo2.coordinator.market.market_state import MarketState
from echo2.ledger.ledger_entries import accrued_account, unvested_account
from echo2.p2p.errors import Unreachable
from echo2.protocol.market import EpochTerms, MarketRequest, MarketResponse, Place
from echo2.protocol.sealed_asks import BadAsk
from tests.support.market import BEACON, Book, announced

LONG = 60_000
"""Milliseconds of an epoch. In its last fifths but one asks are sealed, in the last one they are opened."""


class EpochMarket:
    """`requests`: all that were answered, with their times. `lied`: places told in place of the true ones. `down`:
    raised in place of an answer. `loses`: the field of requests that are lost before they arrive."""

    def __init__(self, run: bytes, now: Callable[[], int], currency: str = "USD", long: int = LONG) -> None:
        self.book, self.now, self.currency, self.long = Book(), now, currency, long
        self.book.state = MarketState(run)
        self.requests: list[tuple[int, MarketRequest]] = []
        self.nodes: set[str] = set()
        self.lied: dict[str, tuple[Place, int | None]] = {}
        self.window = long // 5
        self.down: Exception | None = None
        self.loses = ""

    async def run(self) -> None:
        """Announce, open and close epochs until cancelled."""
        while True:
            self.announce()
            await anyio.sleep(2 * self.window / 1000)
            self.open()
            await anyio.sleep((self.long - 2 * self.window) / 1000)

    def announce(self) -> None:
        """Fix the terms of the next epoch."""
        closes = self.now() + self.window
        self._add(
            announce(self.book.state, self.now(), announced(self.book.state.epoch + 1, closes, milliseconds=self.long))
        )

    def open(self) -> None:
        """Close the epoch that runs, and open the announced one."""
        state = self.book.state
        if state.open is not None:
            for make in (close_epoch, vest, release):
                self._add(make(state, self.now()))
        self._draw()
        self._add(open_epoch(state, self.now(), self.nodes))

    def _draw(self) -> None:
        """Draw the lottery of the announced epoch once its asks have closed."""
        state = self.book.state
        if state.announced is not None and self.now() > state.announced.closes and state.beacon is None:
            self._add(draw(state, self.now(), BEACON))

    def sent(self, field: str) -> list[MarketRequest]:
        """Return the requests that state a field."""
        return [request for _, request in self.requests if getattr(request, field) is not None]

    def asks(self) -> Iterable[int]:
        """Return all asks that were opened, in order."""
        return [request.ask for _, request in self.requests if request.ask is not None]

    def answer(self, node: str, request: MarketRequest) -> MarketResponse:
        self.requests.append((self.now(), request))
        self.nodes.add(node)
        if self.down is not None:
            raise self.down
        if self.loses and getattr(request, self.loses) is not None:
            raise Unreachable("the request is lost")
        refused = ""
        try:
            if request.sealed is not None:
                self._add(seal_ask(self.book.state, self.now(), node, request.epoch, request.sealed))
            elif request.ask is not None:
                self._draw()
                self._add(open_ask(self.book.state, self.now(), node, request.epoch, request.ask, request.salt))
        except (BadAsk, BadTerms) as error:
            refused = str(error)
        return self._answer(node, refused)

    def _answer(self, node: str, refused: str) -> MarketResponse:
        state, balances = self.book.state, self.book.balances
        coming, running = state.announced, state.open
        place, active_at = self.lied.get(node, ("none", None))
        return MarketResponse(
            currency=self.currency,
            coming=None if coming is None else self._terms(coming),
            running=None if running is None else self._terms(running.terms),
            refused=refused, sealed=state.sealed.get(node), ask=state.asks.get(node), place=place,
            active_at=active_at, rank=None if active_at is None else 1, accrued=balances[accrued_account(node)],
            unvested=balances[unvested_account(node)], payable=balances[payable(node)],
        )  # fmt: skip

    def _terms(self, terms: EpochAnnounced) -> EpochTerms:
        names = ("epoch", "closes", "milliseconds", "need", "reserve")
        return EpochTerms(opens=terms.closes + self.window, **{name: getattr(terms, name) for name in names})

    def _add(self, entry: NewEntry | None) -> None:
        self.book.add(entry)
