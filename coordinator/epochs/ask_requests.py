"""The method `market`: nodes seal and open asks, and learn where they stand.

Rules
1. The rules of asks are those of the market (market/asks.py). What it refuses is told in the answer, beside all else.
   The same ask sealed or opened once more is no fault: the answer to the first may be lost.
2. Keys are free, and a sealed ask is an entry. So of keys without accepted work at most `FREE` seal one per epoch,
   `FREE_OF_PARTY` of one party, and each key once per `FREE_EVERY`.
"""

from collections import Counter
from typing import Final

import msgspec

from coordinator.accounts.ledger import accrued, unvested
from coordinator.epochs.epoch_clock import EpochClock
from coordinator.epochs.lease_gate import LeaseGate
from coordinator.epochs.market_service import MarketService
from coordinator.epochs.market_terms import MarketTerms
from coordinator.epochs.presence import Kind, Presence
from coordinator.market.entries import EpochAnnounced
from coordinator.market.epoch_terms import BadTerms
from coordinator.market.epochs import open_ask, payable, seal_ask
from p2p.identity import peer_id
from p2p.limits.origin import Origin
from protocol.market import EpochTerms, MarketRequest, MarketResponse
from protocol.sealed_asks import BadAsk

FREE: Final = 64
FREE_OF_PARTY: Final = 4
FREE_EVERY: Final = 3_600_000
MOST_FREE: Final = 16_384
"""Free keys that are remembered."""
MOST_SENTENCE: Final = 400


class AskRequests:
    """The market's answers to nodes."""

    def __init__(
        self, service: MarketService, terms: MarketTerms, presence: Presence, clock: EpochClock, gate: LeaseGate
    ) -> None:
        self._service, self._terms, self._presence = service, terms, presence
        self._clock, self._gate = clock, gate
        self._sealed_at: dict[str, int] = {}
        """Free key -> when it last sealed an ask."""
        self._free_epoch = 0
        self._free = Counter[str]()
        """Party -> asks that its free keys sealed for `_free_epoch`; under "": of all."""

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
        return self._told(peer, refused[:MOST_SENTENCE])

    def _take(self, peer: str, request: MarketRequest, now: int, origin: Origin) -> None:
        state, at = self._service.state, self._clock.at(now)
        if request.sealed is not None and state.sealed.get(peer) != request.sealed:
            new = seal_ask(state, at, peer, request.epoch, request.sealed)
            if self._service.kind(peer) != Kind.WORKER:
                self._count_free(peer, request.epoch, now, origin)
            self._service.append(new)
        if request.ask is not None and not self._is_open(peer, request):
            self._service.append(open_ask(state, at, peer, request.epoch, request.ask, request.salt))

    def _is_open(self, peer: str, request: MarketRequest) -> bool:
        """Tell whether this very ask was opened before."""
        entry = self._service.ledger.find(f"opened:{peer}:{request.epoch}")
        return entry is not None and self._service.state.asks.get(peer) == request.ask

    def _count_free(self, peer: str, epoch: int, now: int, origin: Origin) -> None:
        """Count a sealed ask of a key without accepted work (rule 2). Raises `BadAsk`."""
        if epoch != self._free_epoch:
            self._free_epoch, self._free = epoch, Counter()
        last = self._sealed_at.get(peer)
        if last is not None and 0 <= now - last < FREE_EVERY:
            minutes = (FREE_EVERY - (now - last)) // 60_000 + 1
            raise BadAsk(f"a node without accepted work seals one ask per hour: again in {minutes} minutes")
        if self._free[""] >= FREE or self._free[origin.party or peer] >= FREE_OF_PARTY:
            raise BadAsk("enough nodes without accepted work have asks for this epoch: seal yours for the next one")
        self._free[""] += 1
        self._free[origin.party or peer] += 1
        self._sealed_at.pop(peer, None)
        self._sealed_at[peer] = now
        if len(self._sealed_at) > MOST_FREE:
            del self._sealed_at[next(iter(self._sealed_at))]

    def _told(self, peer: str, refused: str) -> MarketResponse:
        state, ledger = self._service.state, self._service.ledger
        response = MarketResponse(
            currency=self._terms.currency,
            coming=None if state.announced is None else self._wire(state.announced),
            running=None if state.open is None else self._wire(state.open.terms),
            refused=refused,
            sealed=state.sealed.get(peer),
            ask=state.asks.get(peer),
            rate=self._gate.rate(peer),
            accrued=ledger.balance(accrued(peer)),
            unvested=ledger.balance(unvested(peer)),
            payable=ledger.balance(payable(peer)),
        )
        return self._placed(peer, response)

    def _placed(self, peer: str, response: MarketResponse) -> MarketResponse:
        """Return the answer with the node's place in the epoch that runs."""
        open_ = self._service.state.open
        if open_ is None:
            return response
        place, standby = self._service.priced(peer), self._service.standing_by(peer)
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
            need=terms.need, reserve=terms.reserve, mode=terms.mode,
        )  # fmt: skip
