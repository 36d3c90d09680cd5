"""The market's gate of leases: the nodes that get one, and the price at which a group is accepted.

Rules
1. Only the active nodes of the open epoch get leases, of any kind: all of them are paid work. Others are told why: no
   ask (`no-ask`), standby with the ask that would be active (`standby`), or what else (`not-active`).
2. An active node gets leases while its accepted work, its open leases and the next one are within what it is paid for
   in this epoch (`promised`). A group that is not decided counts with the mean weight of the node's accepted groups,
   else of all. Without anything open it gets one lease while anything is left: else a small promise could never be
   used. Until the run has an accepted group no weight is known, and a node has one lease at a time.
"""

from typing import Final

from echo2.coordinator.epochs.epoch_clock import EpochClock
from echo2.coordinator.epochs.market_service import MarketService
from echo2.coordinator.epochs.market_terms import MarketTerms
from echo2.coordinator.epochs.presence import Presence
from echo2.coordinator.leases.paid_work import PricedEpoch
from echo2.coordinator.leases.timely_grants import TimelyGrants
from echo2.coordinator.market.market_state import OpenEpoch
from echo2.coordinator.market.prices import PricedNode
from echo2.p2p.identity import peer_id
from echo2.p2p.limits.origin import Origin
from echo2.protocol.money_text import amount_text
from echo2.protocol.refusals import refusal
from echo2.protocol.requests import Refusal
from echo2.runtime.figures import figure

EPOCH_RETRY_MS: Final = 5_000
"""Milliseconds after which a node asks again while an epoch is about to open."""
LONGEST_RETRY_MS: Final = 60_000


class LeaseGate:
    """The market's side of a lease request (coordinator/leases/paid_work.py)."""

    def __init__(
        self,
        service: MarketService,
        terms: MarketTerms,
        presence: Presence,
        clock: EpochClock,
        timely: TimelyGrants,
    ) -> None:
        self._service, self._terms, self._presence, self._clock = service, terms, presence, clock
        self.timely = timely

    def refusal_for(self, node: bytes, origin: Origin, now: int) -> Refusal | None:
        """Return why a node gets no lease now; None: as far as pay goes, it may have one."""
        peer = peer_id(node)
        self._clock.turn_over.finish_opening()
        self._presence.note(peer, origin.party, now, self._service.kind(peer), for_work=True)
        if not self._service.read():
            return self._not_active(now, "the coordinator reads its ledger")
        open_, place = self._service.state.open, self._service.price_of(peer)
        if open_ is None or place is None or not self._service.is_active(peer):
            return self._left_out(peer, open_, now)
        open_leases, mean = self._open_leases(node), self._mean_weight(node)
        if open_leases and not mean:
            return refusal("too-many-leases", retry_after=1_000, held=open_leases, most=1)
        if self._remaining_promise(peer, place, open_leases, mean) <= 0:
            return refusal("promised", retry_after=self._wait(now), epoch=open_.terms.epoch)
        return None

    def before_verdict(self) -> None:
        """Open the next epoch where one was just closed (turn_over.py, rule 2)."""
        self._clock.turn_over.finish_opening()

    def price_of(self, node: bytes) -> PricedEpoch | None:
        """Return the price of a node's work that is accepted now. Nothing is read here: a verdict asks, whose entries
        and those of others may be undone."""
        if not self._service.ready:
            return None
        open_, place = self._service.state.open, self._service.price_of(peer_id(node))
        return None if open_ is None or place is None else PricedEpoch(open_.terms.epoch, int(place.price))

    def _left_out(self, peer: str, open_: OpenEpoch | None, now: int) -> Refusal:
        state = self._service.state
        if peer not in state.asks:
            return refusal("no-ask", retry_after=self._wait(now), currency=self._terms.currency)
        if open_ is None:
            return self._not_active(now, "no epoch is open yet; the next one takes its ask")
        standby = self._service.standing_by(peer)
        if standby is not None:
            ask, epoch = f"{amount_text(standby.active_at)} {self._terms.currency}", open_.terms.epoch
            return refusal("standby", retry_after=self._wait(now), epoch=epoch, rank=standby.rank, active_at=ask)
        return self._not_active(now, self.why_out(peer, open_))

    def why_out(self, peer: str, open_: OpenEpoch) -> str:
        """Return why a node with an ask is neither active nor on standby in an epoch, as part of a sentence."""
        state, reserve = self._service.state, open_.terms.reserve
        ask, rate = state.asks.get(peer), self.rate(peer)
        if ask is None:
            return "it had no ask when the epoch opened"
        if not rate:
            return "it has no measured rate yet: the next epoch takes it as a newcomer"
        if ask * 1000 > reserve * rate:
            most, currency = reserve * rate // 1000, self._terms.currency
            return (
                f"at {figure(rate / 1000)} RE per hour its ask of {amount_text(ask)} {currency} per hour is above the "
                f"highest price, {amount_text(reserve)} per RE; one of at most {amount_text(most)} per hour is not"
            )
        if open_.plan.market.binding:
            budget = amount_text(open_.plan.budget, self._terms.currency)
            return f"the epoch's budget, {budget}, does not reach to it, or it came after the epoch opened"
        return "it came after the epoch opened, or enough others cost less: the next one takes its ask"

    def rate(self, peer: str) -> int:
        """Return the rate of a node that counts, milli-RE per hour; 0: none does."""
        state = self._service.state
        known, benchmark = state.measurements.get(peer), state.benchmarks.get(peer, 0)
        return benchmark if known is None else known.rate(benchmark)

    def _not_active(self, now: int, why: str) -> Refusal:
        return refusal("not-active", retry_after=self._wait(now), epoch=self._service.state.epoch, why=why)

    def _wait(self, now: int) -> int:
        """Return when a refused node asks again: when the epoch ends, or soon."""
        open_ = self._service.state.open
        left = 0 if open_ is None else self._clock.ends(open_) - self._clock.at(now)
        return min(LONGEST_RETRY_MS, max(EPOCH_RETRY_MS if self._terms.epoch > 2 * EPOCH_RETRY_MS else 1_000, left))

    def _remaining_promise(self, peer: str, place: PricedNode, open_leases: int, mean: int) -> int:
        """Return what a node may still be leased of its promise, milli-RE (rule 2)."""
        left = int(place.most) - sum(one.weight for one in self._service.state.records.get(peer, ()))
        return left - (open_leases + 1) * mean if open_leases else left

    def _open_leases(self, node: bytes) -> int:
        return int(self._service.database.value("SELECT count(*) FROM lent WHERE node = ?", (node,)))

    def _mean_weight(self, node: bytes) -> int:
        """Return the mean weight of a node's accepted groups, else of all; 0: there is none yet."""
        for holder in (node, b""):
            query = "SELECT sum(weight), sum(groups) FROM sums WHERE node = ? AND verdict = 'accepted'"
            weight, groups = self._service.database.all(query, (holder,))[0]
            if groups:
                return int(weight) // int(groups)
        return 0
