"""The clock of the market: announces, opens and closes epochs when that is due.

Rules
1. `tick` is called every second or so, and does all that is due: announce the next epoch with its owners, in time for
   sealing and opening asks; draw its lottery once its asks have closed, before the first one is opened; close the one
   that runs, and open it, with estimated rates for newcomers (market/newcomer_rates.py); then vest and release. The
   last three are steps, which it makes for a moment at a time (turn_over.py).
2. An epoch is closed when the next one can open, so that none is paid without one. The last is closed when the run has
   finished; what becomes payable with time is released by each later tick that finds some, at most once per epoch's
   time.
3. The market's time never goes back, also behind a restart. Where the clock was set back, it goes on from the last
   entry's time at the clock's pace, until the clock has caught up. A clock that was set forward ends an epoch early,
   and costs nothing else.
4. Where a measured active node has left, and the rates of those that are here stay below the need at two looks, while
   others could do more, the next epoch is announced at once, and the one that runs ends early. Newcomers that leave end
   no epoch: their keys are free.
5. After a restart all goes on from the ledger. Nodes that had an ask count as here for one `Presence.WINDOW`.
6. A node that was active for a whole epoch, asked for no lease in it and has none, is not here for the next one: a
   place that is kept for nothing leaves the run short. Where all of them were idle it is the run that gave nothing,
   and all stay.
7. An epoch is opened with the nodes that are here and have an ask: no other can be active, and keys are free. Of those
   without accepted work it takes as many as there are places for them (free_places.py, rule 3).
"""

from collections.abc import Callable, Collection, Generator
from typing import NamedTuple

import structlog

from echo2.coordinator.epochs.free_places import FreePlaces
from echo2.coordinator.epochs.market_service import MarketService
from echo2.coordinator.epochs.market_terms import MarketTerms
from echo2.coordinator.epochs.presence import Kind, Presence
from echo2.coordinator.epochs.turn_over import Steps, TurnOver
from echo2.coordinator.market.entries import EpochAnnounced, NewEntry
from echo2.coordinator.market.epoch_plan import offers
from echo2.coordinator.market.epochs import announce, benchmark, draw, group_owners, open_epoch
from echo2.coordinator.market.market_state import MarketState, OpenEpoch
from echo2.coordinator.market.newcomer_rates import estimated_rate, highest_price
from echo2.coordinator.market.throughput import Throughput

log = structlog.get_logger("coordinator")
ABSENCE_LOOKS = 2
"""Looks in a row at which too few of the active nodes are here, before an epoch ends early."""


class EpochInputs(NamedTuple):
    """Inputs of the clock. `need`: milli-RE per hour. `beacon`: 32 bytes, SHA-256 of a LedgerHead over all entries,
    from the time. `owners`: node -> tag, of nodes whose owner has several. `engine`: the engine class of a node, by
    peer id. `busy`: whether a node has leases or undecided groups."""

    need: Callable[[], int]
    beacon: Callable[[int], bytes]
    owners: Callable[[Collection[str], int], dict[str, bytes]]
    engine: Callable[[str], str]
    busy: Callable[[str], bool]


class MarketTime:
    """The market's time, ms (rule 3)."""

    def __init__(self) -> None:
        self._last = 0
        self._ahead = 0

    def at(self, now: int, least: int = 0) -> int:
        """Return the market's time at the clock's `now`, at least `least`."""
        last = max(self._last, least)
        if now >= last:
            self._ahead = 0
        elif now + self._ahead < last:
            self._ahead = last - now
        self._last = now + self._ahead
        return self._last


class EpochClock:
    """The clock of a run's epochs. Only `tick` acts."""

    def __init__(
        self,
        service: MarketService,
        terms: MarketTerms,
        presence: Presence,
        inputs: EpochInputs,
        free: FreePlaces,
        on_close: Callable[[], None],
    ) -> None:
        """`on_close`: called after an epoch was closed."""
        self._service, self._terms, self._presence, self._inputs = service, terms, presence, inputs
        self._free, self._on_close = free, on_close
        self._time = MarketTime()
        self.turn_over = TurnOver(service)
        self._now = 0
        """The clock at the last tick."""
        self._looks, self._looked = 0, 0
        self._early = False
        self._settled = 0
        self._started = False

    def at(self, now: int) -> int:
        """Return the market's time."""
        terms = self._service.state.announced
        announced = 0 if terms is None else terms.closes - self._terms.asks
        return self._time.at(now, max(announced, self._service.newest))

    def ends(self, open_: OpenEpoch) -> int:
        """Return when the open epoch ends by plan, ms."""
        return open_.opened + open_.terms.milliseconds

    def tick(self, now: int, *, finished: bool = False) -> bool:
        """Do what is due (rule 1); return whether steps are left, for which it is to be called again at once.
        `finished`: the run has finished, and no verdict is to come."""
        if not self._service.read():
            return False
        self._now = now
        if not self.turn_over.under_way:
            self._begin_due(now, finished=finished)
        return self.turn_over.go_on()

    def _begin_due(self, now: int, *, finished: bool) -> None:
        state = self._service.state
        if not self._started:
            self._started = True
            self._presence.expect([(node, self._service.kind(node)) for node in state.asks], now)
        at = self.at(now)
        if finished:
            self.turn_over.begin(self._finish())
            return
        if self.turn_over.unsettled:
            self.turn_over.begin(self.turn_over.settle(at))
            return
        self._look(at, now)
        if state.announced is None and self._announcement_is_due(at):
            self._announce(at, now)
        self.draw(at)
        terms = state.announced
        if terms is not None and at > terms.closes and at >= self._opening(terms):
            self.turn_over.begin(self._turn_over(), opens=True)

    def _announcement_is_due(self, at: int) -> bool:
        open_ = self._service.state.open
        return open_ is None or self._early or at >= self.ends(open_) - 2 * self._terms.asks

    def _opening(self, terms: EpochAnnounced) -> int:
        open_ = self._service.state.open
        opens = self._terms.opens(terms)
        return opens if open_ is None or self._early else max(opens, self.ends(open_))

    def _announce(self, at: int, now: int) -> None:
        state = self._service.state
        need = self._inputs.need()
        self._service.read()
        terms = self._terms.epoch_terms(state.epoch + 1, at + self._terms.asks, need)
        owners = self._inputs.owners(self._presence.here(now), at)
        makers: list[Callable[[], NewEntry | None]] = [lambda: announce(state, at, terms)]
        if owners:
            makers.append(lambda: group_owners(state, at, owners))
        self._service.append_all(makers)
        log.info("epoch announced", epoch=terms.epoch, need=need, asks_close=terms.closes)

    def draw(self, at: int) -> None:
        """Draw the lottery of the announced epoch, if its asks have closed and it is not drawn yet."""
        state = self._service.state
        if state.announced is None or at <= state.announced.closes or state.beacon is not None:
            return
        with self._service.database.transaction():
            beacon = self._inputs.beacon(at)
            self._service.append(draw(state, at, beacon))

    def _turn_over(self) -> Steps:
        """Close the epoch that runs, and open the next one."""
        state = self._service.state
        here = self._offering_nodes(
            [node for node in self._working(self.at(self._now), self._now) if node in state.asks]
        )
        yield False
        snapshot = yield from self._close()
        self._open(self.at(self._now), here)
        yield True
        yield from self.turn_over.settle(self.at(self._now))
        yield from snapshot

    def _open(self, at: int, here: Collection[str]) -> None:
        state = self._service.state
        self._service.read()
        with self._service.database.transaction():
            for node, rate in self._estimates(here):
                self._service.append(benchmark(at, node, rate))
            self._service.append(open_epoch(state, at, here))
        self._early, self._looks = False, 0
        assert state.open is not None
        market = state.open.plan.market
        log.info(
            "epoch opened", epoch=state.epoch, active=len(market.nodes), standby=len(market.activation.standby),
            short=market.activation.short, binding=market.binding,
        )  # fmt: skip

    def _offering_nodes(self, nodes: list[str]) -> list[str]:
        """Return nodes with an ask without the free keys that have no place (rule 7)."""
        free = [node for node in nodes if self._service.kind(node) != Kind.WORKER]
        left = self._free.offered_keys((node, self._presence.party(node) or node) for node in free)
        out = set(free) - left
        return [node for node in nodes if node not in out]

    def _working(self, at: int, now: int) -> list[str]:
        """Return the nodes that are here, without those that keep a place for nothing (rule 6)."""
        open_, here = self._service.state.open, self._presence.here(now)
        if open_ is None or at < self.ends(open_):
            return here
        active = {one.node.decode() for one in open_.plan.market.nodes}
        idle = {
            node
            for node in active.intersection(here)
            if not self._presence.asked_for_work(node, open_.opened) and not self._inputs.busy(node)
        }
        return here if idle == active.intersection(here) else [node for node in here if node not in idle]

    def _close(self) -> Generator[bool, None, Steps]:
        """Close the epoch that runs, if there is one; return the steps that store a snapshot."""
        if self._service.state.open is None:
            return iter(())
        at = self.at(self._now)
        yield from self.turn_over.measure_work(at)
        snapshot = self.turn_over.close(at)
        self._on_close()
        yield True
        return snapshot

    def _estimates(self, here: Collection[str]) -> list[tuple[str, int]]:
        """Return the rates of nodes that have an ask and were never measured (rule 1)."""
        state = self._service.state
        terms = state.next_terms(state.epoch + 1)
        fresh = [node for node in sorted(here) if node in state.asks and not _is_known(state, node)]
        if not fresh:
            return []
        measured = {node: one.lower for node, one in state.measurements.items() if one.ready}
        offered = offers(sorted(here), state.asks, state.measurements, state.benchmarks, state.incumbents)
        price = highest_price(offered, terms.need, terms.reserve)
        engines = {node: self._inputs.engine(node) for node in [*measured, *fresh]}
        return [
            (
                node,
                estimated_rate(
                    state.asks[node],
                    [rate for other, rate in measured.items() if engines[other] == engines[node]],
                    list(measured.values()), terms.need, price,
                ),
            )
            for node in fresh
        ]  # fmt: skip

    def _look(self, at: int, now: int) -> None:
        """Look whether the active nodes are here (rule 4)."""
        open_ = self._service.state.open
        if open_ is None or self._early or 0 <= at - self._looked < self._terms.asks:
            return
        self._looked = at
        self._looks = self._looks + 1 if self._lacks(open_, now) else 0
        if self._looks >= ABSENCE_LOOKS:
            self._early = True
            log.warning("active nodes have left: the epoch ends early", epoch=open_.terms.epoch)

    def _lacks(self, open_: OpenEpoch, now: int) -> bool:
        """Tell whether a measured active node has left, and others could give what those that are here lack of the
        need (rule 4)."""
        state, here = self._service.state, self._presence.here(now)
        active = {one.node.decode() for one in open_.plan.market.nodes}
        rates = {
            one.node.decode(): one.rate
            for one in offers(sorted(here), state.asks, state.measurements, state.benchmarks, state.incumbents)
        }
        gone = active.difference(here)
        if not any((one := state.measurements.get(node)) is not None and one.ready for node in gone):
            return False
        lacks = sum(rates.get(node, 0) for node in active) < open_.terms.need - open_.plan.market.activation.short
        return lacks and any(node not in active for node in rates)

    def _finish(self) -> Steps:
        """Close the last epoch, and release what time makes payable (rule 2)."""
        state = self._service.state
        closes = state.open is not None
        snapshot = yield from self._close()
        at = self.at(self._now)
        if closes or (state.tranches and at - self._settled >= self._terms.epoch):
            self._settled = at
            yield from self.turn_over.settle(at)
        yield from snapshot


def _is_known(state: MarketState, node: str) -> bool:
    return node in state.benchmarks or state.measurements.get(node, Throughput()).leased > 0
