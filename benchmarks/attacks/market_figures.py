"""Attacks on pay that need the market's core alone: what each gains, in seeded markets. Pure; the same seed, the same
figures.

Rules
1. An attack is compared with the same owner's honest conduct, in the same market. A node pays for the hours in
   which it computes.
2. A figure stands beside its bound, and is within it or not. Bounds are those of the rules of the market, and where no
   rule bounds an attack (an owner of several nodes), the figure that the design accepts.
3. All is played by the product's own entries (benchmarks/plays/market_play.py) or prices (seeded_markets.py).
"""

import hashlib
import heapq
import random
import statistics
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

from benchmarks.plays.market_play import (
    LIFE,
    QUARTER,
    TURNAROUND,
    MarketPlay,
    PlayedEpoch,
    PlayTerms,
    steady,
)
from benchmarks.plays.seeded_markets import (
    RESERVE,
    MarketSetting,
    SeededMarket,
    all_ask_high,
    drawn_offers,
    false_asks,
    one_asks_high,
)
from echo2.coordinator.epochs.free_places import FREE_OF_PARTY
from echo2.coordinator.market.owner_cap import OWNER_CAP_SHARE
from echo2.coordinator.market.prices import MILLI
from echo2.coordinator.market.throughput import HOUR, LeasedGroup, Throughput

MARKETS: Final = 20
"""Seeded markets per figure."""
EPOCHS: Final = 24
"""Of a quarter of an hour, in the attacks that take time."""
ATTACKER: Final = "attacker"
BEGIN: Final = 3
"""The epoch in which a measured node begins its attack: by then it has done more than the 30 groups of `READY`."""
CHEAP: Final = Fraction(3, 5)
DEAR: Final = Fraction(3, 2)
ACCEPTED: Final = 1.0
"""Per cent, where no rule of prices excludes a gain (docs/adr/0048-a-market-of-entries.md)."""
FRESH_ASKS: Final = (Fraction(4, 5), Fraction(9, 10), Fraction(1), Fraction(3, 2), Fraction(3))
"""Asks of keys that are always new, of the median cost; the last is the reserve price."""
CANARY: Final = 8_000
"""Milli-RE of a canary, which is not paid."""
GROUND: Final = 10_000
"""Keys that are made for an epoch."""
GROUND_EPOCHS: Final = 8
HONEST_NEWCOMERS: Final = 12
NOTHING: Final = 0.01
"""Per cent: what a one-node owner may gain."""


class MarketFigure(NamedTuple):
    """An attack's figure and its bound, both in `unit`. `note`: a second figure, in words."""

    attack: str
    figure: float
    bound: float
    unit: str
    note: str = ""

    @property
    def within(self) -> bool:
        """True where the attack stays within its bound."""
        return self.figure <= self.bound


def figures(seed: int = 0, markets: int = MARKETS) -> list[MarketFigure]:
    """Return the figures of all attacks."""
    return [attack(seed, markets) for attack in ATTACKS]


def false_ask(seed: int = 0, markets: int = MARKETS) -> MarketFigure:
    """A node asks other than its cost."""
    gains = [
        market.gain(place, false_asks(place))
        for market in _drawn(MarketSetting(cap=OWNER_CAP_SHARE), seed, markets)
        for place in _tried(market, seed)
    ]
    return _gained("a node asks other than its cost", gains, NOTHING)


def two_keys(seed: int = 0, markets: int = MARKETS) -> MarketFigure:
    """One of an owner's two keys asks high, to lift the other's price."""
    setting = MarketSetting(cap=OWNER_CAP_SHARE, owned=2)
    gains = [
        market.gain(place, one_asks_high(market, place))
        for market in _drawn(setting, seed, markets)
        for place in _tried(market, seed)
    ]
    return _gained("one of an owner's two keys asks high", gains, ACCEPTED)


def fleet_of_half(seed: int = 0, markets: int = MARKETS) -> MarketFigure:
    """An owner of half of the supply: the share of the need for which it is paid."""
    setting = MarketSetting(cap=OWNER_CAP_SHARE, owned=20)
    drawn = _drawn(setting, seed, markets)
    shares, gains = [], []
    for market in drawn:
        tries = all_ask_high(market, 0)
        shares += [market.share(market.market(percent), 0) for percent in [{}, *tries]]
        gains.append(market.gain(0, tries))
    note = (
        f"all its asks raised gain {statistics.mean(map(float, gains)):.1f} % of its costs in the mean, "
        f"{float(max(gains)):.0f} % at most: the cap bounds its share, and the reserve price what it can ask"
    )
    return MarketFigure(
        "a fleet of half of the supply",
        100 * float(max(shares)),
        float(100 * OWNER_CAP_SHARE),
        "% of the need paid to it",
        note,
    )


def burst(seed: int = 0, markets: int = MARKETS) -> MarketFigure:
    """A newcomer is three times as fast until it is measured, then as fast as it is. Such a node keeps some others out
    for a while, which then are no incumbents: so its price moves by chance, by the incumbents' advantage at most."""
    gains, dear, epochs = list[float](), list[float](), list[int]()
    for number in range(markets):
        for cost, each in ((CHEAP, gains), (DEAR, dear)):
            scene = _Scene(seed + number, cost=cost)
            honest, played = scene.honest(), scene.played(scene.burst)
            each.append(100 * (scene.profit(played) - scene.profit(honest)) / scene.costs)
            if cost == CHEAP:
                quick = [rate >= 1.25 * scene.rate for rate in played.rates[BEGIN:]]
                epochs.append(quick.index(False) if False in quick else len(quick))
    note = (
        f"one whose cost is above the price, active by its burst alone, gains {statistics.mean(dear):.1f} %; "
        f"measured within a quarter of the true rate after {statistics.mean(epochs):.1f} epochs of 15 minutes"
    )
    return _gained("a newcomer is three times as fast until it is measured", gains, ACCEPTED, note)


def squatting(seed: int = 0, markets: int = MARKETS) -> MarketFigure:
    """A measured node keeps its place among the active ones and does nothing: its leases expire, or it takes none."""
    pays, expiring, leaseless = list[int](), list[int](), list[int]()
    for number in range(markets):
        scene = _Scene(seed + number)
        for idle, epochs in ((_expired, expiring), (_no_lease, leaseless)):
            played = scene.played(_after_being_measured(scene, idle))
            pays.append(sum(one.pay(ATTACKER) for one in played.epochs[BEGIN:]))
            epochs.append(sum(played.active[BEGIN:]))
    note = (
        f"one whose leases expire is active for {statistics.mean(expiring):.1f} of {EPOCHS - BEGIN} epochs, one that "
        f"takes none for {statistics.mean(leaseless):.1f}, unless the coordinator states that it is not present"
    )
    return MarketFigure("a node idles at its full ask", float(max(pays)), 0.0, "nano units paid for idle epochs", note)


def slow_walk(seed: int = 0, markets: int = MARKETS) -> MarketFigure:
    """A node hands each group in at the end of its lease, one lease at a time."""
    shares, epochs = [], []
    for number in range(markets):
        scene = _Scene(seed + number)
        honest, slow = scene.honest(), scene.played(_after_being_measured(scene, _late))
        shares.append(100 * _paid(slow) / max(1, _paid(honest)))
        epochs.append(sum(slow.active[BEGIN:]))
    note = f"it stays active for {statistics.mean(epochs):.1f} of {EPOCHS - BEGIN} epochs"
    bound = 100 * TURNAROUND / LIFE
    return MarketFigure(
        "a node hands in at the end of each lease",
        statistics.mean(shares),
        bound,
        "% of what honest work is paid",
        note,
    )


def reserve_probing(seed: int = 0, markets: int = MARKETS) -> MarketFigure:
    """A node raises its ask by a quarter each epoch until it is not active, then begins again at its cost."""
    gains = []
    for number in range(markets):
        scene = _Scene(seed + number)
        honest, probing = scene.honest(), scene.played(_after_being_measured(scene, _working), probes=True)
        gains.append(100 * (scene.profit(probing) - scene.profit(honest)) / scene.costs)
    return _gained("a node probes how high it may ask", gains, NOTHING)


def always_new(seed: int = 0, markets: int = MARKETS) -> MarketFigure:
    """A node comes with a fresh key in each epoch, which costs a canary once it is drawn: its best ask, against the
    mean price that others are paid for the same work."""
    best, dearest = list[float](), list[float]()
    for number in range(markets):
        scene = _Scene(seed + number)
        tries = [scene.gain_of_new_keys(times, EPOCHS // 4) for times in FRESH_ASKS]
        best.append(max(tries))
        dearest.append(tries[-1])
    note = f"at the reserve price {statistics.mean(dearest):.1f} %"
    return _gained("keys that are always new ask what pays best", best, ACCEPTED, note)


def ground_lottery(seed: int = 0, markets: int = MARKETS) -> MarketFigure:
    """A newcomer makes many keys, and asks under those whose lots are the least by the beacon that it knows: of the
    epoch before. Beside: what it would take if it knew the beacon that is drawn."""
    blind, knowing = (
        [_Scene(seed + number).share_of_ground_keys(ahead) for number in range(markets)] for ahead in (0, 1)
    )
    fair = 100 * FREE_OF_PARTY / (FREE_OF_PARTY + HONEST_NEWCOMERS)
    note = f"its share of the newcomers is {fair:.0f} %; with the beacon known: {100 * statistics.mean(knowing):.0f} %"
    return MarketFigure(
        f"a newcomer makes {GROUND:,} keys and takes those with the best lots", 100 * statistics.mean(blind),
        fair * 3 / 2, "% of the newcomers' places", note,
    )  # fmt: skip


def unopened(seed: int = 0, markets: int = MARKETS) -> MarketFigure:
    """A node opens its ask only if that pays, once it has seen all others; else the one before stands."""
    gains = []
    for market in _drawn(MarketSetting(cap=OWNER_CAP_SHARE), seed, markets):
        for place in _tried(market, seed):
            # The ask that stands and the sealed one: any two of the tries. The best of both is the best of each.
            gains.append(market.gain(place, [{place: percent} for percent in (80, 90, 100, 110, 125)]))
    return _gained("a node does not open its ask after it has seen the others'", gains, NOTHING)


ATTACKS: Final[tuple[Callable[[int, int], MarketFigure], ...]] = (
    false_ask, two_keys, burst, squatting, fleet_of_half, slow_walk, reserve_probing, always_new,
    ground_lottery, unopened,
)  # fmt: skip


class _Played(NamedTuple):
    """An attacker's epochs. `active`: whether it was. `rates`: as measured after each."""

    epochs: list[PlayedEpoch]
    active: list[bool]
    rates: list[float]


_Conduct = Callable[[int, int], Iterable[LeasedGroup]]
"""(epoch, when it opened) -> the ends of the attacker's leases in it."""


class _Scene:
    """A measured fleet of 40 nodes, of which half is needed, and an attacker of the median size who begins as a
    newcomer. `cost`: of the median; at `CHEAP` it is active by right."""

    def __init__(self, seed: int, cost: Fraction = CHEAP) -> None:
        self._seed, self._cost_share = seed, cost
        offers = drawn_offers(MarketSetting(), seed)
        self._asks = {f"node{place:02}": offer.ask for place, offer in enumerate(offers)}
        self._rates = {f"node{place:02}": offer.rate for place, offer in enumerate(offers)}
        self.rate = int(statistics.median(offer.rate for offer in offers))
        middle = statistics.median(offer.cost for offer in offers)
        self._cost = int(middle * self.rate * cost)
        """Per hour."""
        self.costs = (EPOCHS - BEGIN) * self._cost * QUARTER // HOUR
        """Of the epochs of the attack."""
        self._reserve_ask = RESERVE * self.rate // MILLI
        self.terms = PlayTerms(need=sum(self._rates.values()) // 2, reserve=RESERVE)

    def honest(self) -> _Played:
        """Play the attacker's honest conduct, once for all scenes of this seed and cost."""
        return _honest(self._seed, self._cost_share)

    def played(self, conduct: _Conduct, probes: bool = False) -> _Played:
        """Play the attacker among the honest fleet. `probes`: whether its asks probe the price."""
        play = self._begun({ATTACKER: self.rate})
        played, ask = _Played([], [], []), self._cost
        for number in range(EPOCHS):
            if probes and number >= BEGIN:
                ask = min(self._reserve_ask, ask * 5 // 4) if played.active[-1] else self._cost
            leases = self._leases(lambda begin, number=number: conduct(number, begin))  # type: ignore[misc]
            asks = {**(self._asks if number == 0 else {}), ATTACKER: ask}
            one = play.epoch(self.terms, [*self._rates, ATTACKER], asks, leases)
            played.epochs.append(one)
            played.active.append(ATTACKER in one.active)
            played.rates.append(float(play.state.measurements.get(ATTACKER, Throughput()).mean))
        return played

    def gain_of_new_keys(self, times: Fraction, epochs: int) -> float:
        """Return what a fresh key of each epoch gains beyond the mean price and its canary, per cent of the cost of an
        epoch's work. `times`: its ask, of the median cost."""
        play, paid, work, others, cost, drawn = self._begun({}), 0, 0, [0, 0], self._cost / CHEAP, 0
        for epoch in range(epochs):
            fresh = f"fresh{epoch}"
            play.benchmarked({fresh: self.rate})
            asks = {**self._asks, fresh: min(self._reserve_ask, int(cost * times))}
            one = play.epoch(self.terms, [*self._rates, fresh], asks, self._leases(lambda at: steady(self.rate, at)))
            paid, work, drawn = paid + one.pay(fresh), work + one.work(fresh), drawn + (fresh in one.active)
            others = [others[0] + one.spent - one.pay(fresh), others[1] + sum(row.work for row in one.closed.nodes)]
        canaries = drawn * CANARY * cost / self.rate
        honest = Fraction(others[0] * work, max(1, others[1] - work))
        return float(100 * (paid - honest - canaries) / (epochs * cost / 4))

    def share_of_ground_keys(self, ahead: int) -> float:
        """Return the share of the newcomers' places that the best of many keys get. `ahead`: epochs whose beacon is
        known ahead of its draw; 0: the last that is known is that of the epoch before."""
        honest = [f"fresh{place}" for place in range(HONEST_NEWCOMERS)]
        play, terms = self._begun(dict.fromkeys(honest, self.rate)), self.terms._replace(newcomers=200)
        places, won = 0, 0
        for epoch in range(1, GROUND_EPOCHS + 1):
            keys, beacon = [f"{epoch}/{number}" for number in range(GROUND)], play.beacon(epoch - 1 + ahead)
            ground = _least_lots(keys, beacon)
            play.benchmarked(dict.fromkeys(ground, self.rate))
            fresh = [*honest, *ground]
            asks = dict.fromkeys(fresh if epoch == 1 else ground, self._cost)
            play.open(terms, [*self._rates, *fresh], {**(self._asks if epoch == 1 else {}), **asks})
            active = set(play.active)
            places, won = places + len(active.intersection(fresh)), won + len(active.intersection(ground))
            play.close(play.now + QUARTER)
        return won / max(1, places)

    def burst(self, epoch: int, begin: int) -> list[LeasedGroup]:
        """Return the groups of a node that is three times as fast before epoch `BEGIN`."""
        return steady((3 if epoch < BEGIN else 1) * self.rate, begin)

    def profit(self, played: _Played) -> int:
        """Return pay less costs in the epochs of the attack, nano units."""
        return _paid(played) - sum(played.active[BEGIN:]) * self._cost * QUARTER // HOUR

    def _leases(self, conduct: Callable[[int], Iterable[LeasedGroup]]) -> Callable[[str, int], Iterable[LeasedGroup]]:
        """Return the leases of all: honest ones of the fleet, whose speed differs by a tenth, and those of others."""
        chance = random.Random(self._seed)
        drawn = {node: int(rate * chance.uniform(0.9, 1.1)) for node, rate in self._rates.items()}
        return lambda node, begin: steady(drawn[node], begin) if node in drawn else conduct(begin)

    def _begun(self, newcomers: Mapping[str, int]) -> MarketPlay:
        """Return a play whose fleet is measured already."""
        play = MarketPlay(self._seed)
        play.measure(self._rates)
        play.benchmarked(newcomers)
        return play


@lru_cache
def _honest(seed: int, cost: Fraction) -> _Played:
    """Play honest conduct in a scene. Callers only read what is returned."""
    scene = _Scene(seed, cost)
    return scene.played(lambda epoch, begin: steady(scene.rate, begin))


def _least_lots(keys: Iterable[str], beacon: bytes) -> list[str]:
    """Return as many keys as have places in an epoch, those with the least lots."""
    return heapq.nsmallest(FREE_OF_PARTY, keys, lambda key: hashlib.sha256(beacon + key.encode()).digest())


def _paid(played: _Played) -> int:
    """Return the attacker's pay from the epoch on in which it attacks."""
    return sum(one.pay(ATTACKER) for one in played.epochs[BEGIN:])


def _work(played: _Played) -> int:
    return sum(one.work(ATTACKER) for one in played.epochs[BEGIN:])


def _drawn(setting: MarketSetting, seed: int, markets: int) -> list[SeededMarket]:
    return [SeededMarket(setting, seed + number) for number in range(markets)]


def _tried(market: SeededMarket, seed: int) -> list[int]:
    """Return two nodes of a market: one that is active, and one that is not, where there are such."""
    active = {node.node for node in market.true.nodes}
    inside = [place for place, offer in enumerate(market.offers) if offer.node in active]
    outside = [place for place, offer in enumerate(market.offers) if offer.node not in active]
    chance = random.Random(seed)
    return [chance.choice(some) for some in (inside, outside) if some]


def _gained(attack: str, gains: Iterable[Fraction | float], bound: float, note: str = "") -> MarketFigure:
    each = [float(gain) for gain in gains]
    greatest = f"at most {max(each):.2f} %"
    return MarketFigure(
        attack, statistics.mean(each), bound, "% of its costs gained, mean", f"{greatest}; {note}" if note else greatest
    )


def _after_being_measured(scene: _Scene, conduct: Callable[[int, int], Iterable[LeasedGroup]]) -> _Conduct:
    """Return honest conduct until epoch `BEGIN`, then another one: (rate, when the epoch opened) -> ends of leases."""
    return lambda epoch, begin: (_working if epoch < BEGIN else conduct)(scene.rate, begin)


def _working(rate: int, begin: int) -> list[LeasedGroup]:
    return steady(rate, begin)


def _no_lease(rate: int, begin: int) -> list[LeasedGroup]:
    return []


def _expired(rate: int, begin: int) -> list[LeasedGroup]:
    """Return leases that fill an epoch and expire."""
    return [LeasedGroup(at, None, at + LIFE, 0, False) for at in range(begin, begin + QUARTER - LIFE + 1, LIFE)]


def _late(rate: int, begin: int) -> list[LeasedGroup]:
    """Return groups that are handed in when their leases end, one after the other."""
    weight = rate * TURNAROUND // HOUR
    return [
        LeasedGroup(at, at + LIFE - 1, at + LIFE, weight, True) for at in range(begin, begin + QUARTER - LIFE + 1, LIFE)
    ]
