"""The method `market`: nodes seal and open asks, and learn where they stand.

Rules
1. The rules of asks are those of the market (market/asks.py). Its refusals stand in the answer, beside all else.
   The same ask sealed or opened once more is no fault: the answer to the first may be lost.
2. Keys without accepted work seal asks as far as there are places for them (free_places.py).
"""

from typing import Final

import msgspec

from echo2.coordinator.epochs.epoch_clock import EpochClock
from echo2.coordinator.epochs.free_places import FreePlaces
from echo2.coordinator.epochs.lease_gate import LeaseGate
from echo2.coordinator.epochs.market_service import MarketService
from echo2.coordinator.epochs.market_terms import MarketTerms
from echo2.coordinator.epochs.presence import Kind, Presence
from echo2.coordinator.market.entries import EpochAnnounced
from echo2.coordinator.market.epoch_terms import BadTerms
from echo2.coordinator.market.epochs import open_ask, payable, seal_ask
from echo2.ledger.ledger_entries import accrued_account, unvested_account
from echo2.p2p.identity import peer_id
from echo2.p2p.limits.origin import Origin
from echo2.protocol.market import EpochTerms, MarketRequest, MarketResponse
from echo2.protocol.sealed_asks import BadAsk

MOST_SENTENCE: Final = 400


class AskRequests:
    """The market's answers to nodes."""

    def __init__(
        self,
        service: MarketService,
        terms: MarketTerms,
        presence: Presence,
        clock: EpochClock,
        gate: LeaseGate,
        free: FreePlaces,
    ) -> None:
        self._service, self._terms, self._presence = service, terms, presence
        self._clock, self._gate, self._free = clock, gate, free

    def answer(self, node: bytes, request: MarketRequest, now: int, origin: Origin) -> MarketResponse:
        """Take what a node seals or opens, and return where it stands."""
        peer = peer_id(node)
        refused = "" if self._service.read() else "the coordinator reads its ledger: ask again in a few seconds"
        if not refused and request.epoch:
            try:
                self._take(peer, request, now, origin)
            except (BadAsk, BadTerms) as error:
                refused = str(error)
        self._presence.note(peer, origin.party, now, self._service.kind(peer))
        return self._answer_ask(peer, refused[:MOST_SENTENCE])

    def _take(self, peer: str, request: MarketRequest, now: int, origin: Origin) -> None:
        state, at = self._service.state, self._clock.at(now)
        if request.sealed is not None and state.sealed.get(peer) != request.sealed:
            new = seal_ask(state, at, peer, request.epoch, request.sealed)
            if self._service.kind(peer) != Kind.WORKER:
                self._free.take(peer, origin.party or peer, request.epoch, now, stands=peer in state.asks)
            self._service.append(new)
        if request.ask is not None and not self._is_open(peer, request):
            self._clock.draw(at)
            self._service.append(open_ask(state, at, peer, request.epoch, request.ask, request.salt))

    def _is_open(self, peer: str, request: MarketRequest) -> bool:
        """Tell whether this very ask was opened before."""
        entry = self._service.ledger.find(f"opened:{peer}:{request.epoch}")
        return entry is not None and self._service.state.asks.get(peer) == request.ask

    def _answer_ask(self, peer: str, refused: str) -> MarketResponse:
        state, ledger = self._service.state, self._service.ledger
        response = MarketResponse(
            currency=self._terms.currency,
            coming=None if state.announced is None else self._wire(state.announced),
            running=None if state.open is None else self._wire(state.open.terms),
            refused=refused,
            sealed=state.sealed.get(peer),
            ask=state.asks.get(peer),
            rate=self._gate.rate(peer),
            accrued=ledger.balance(accrued_account(peer)),
            unvested=ledger.balance(unvested_account(peer)),
            payable=ledger.balance(payable(peer)),
        )
        return self._add_place(peer, response)

    def _add_place(self, peer: str, response: MarketResponse) -> MarketResponse:
        """Return the answer with the node's place in the epoch that runs."""
        open_ = self._service.state.open
        if open_ is None:
            return response
        place, standby = self._service.price_of(peer), self._service.standing_by(peer)
        if place is not None and self._service.is_active(peer):
            return msgspec.structs.replace(response, place="active", price=int(place.price), most=int(place.most))
        if standby is not None:
            return msgspec.structs.replace(response, place="standby", rank=standby.rank, active_at=standby.active_at)
        if place is not None:
            why = "it is in its run-off: groups that it still has are paid at the price before"
            return msgspec.structs.replace(response, place="out", why=why, price=int(place.price), most=int(place.most))
        if response.ask is None:
            return msgspec.structs.replace(response, why="no ask of this node stands")
        return msgspec.structs.replace(response, place="out", why=self._gate.why_out(peer, open_))

    def _wire(self, terms: EpochAnnounced) -> EpochTerms:
        return EpochTerms(
            epoch=terms.epoch, closes=terms.closes, opens=self._terms.opens(terms), milliseconds=terms.milliseconds,
            need=terms.need, reserve=terms.reserve,
        )  # fmt: skip
