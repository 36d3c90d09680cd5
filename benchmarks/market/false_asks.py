"""The gain from a false ask, and the run's payments beyond the costs, in seeded markets of 40 nodes.

The markets are those of benchmarks/plays/seeded_markets.py, and half of the supply is needed. In each market some
nodes try asks from half to two and a half times their cost while all others ask their true cost. The gain is the best
profit of the node's owner less the true ask's, over the node's cost. "Large": one node has 15 times its throughput, so
that the cap limits it; it is one of those that try.
"""

import random
import statistics
from fractions import Fraction
from typing import Final, NamedTuple

from benchmarks.harness import bench
from benchmarks.plays.seeded_markets import FALSE_PERCENT, NODES, MarketSetting, SeededMarket, false_asks
from echo2.coordinator.market.owner_cap import OWNER_CAP_SHARE

TRIED: Final = 2
"""Nodes per market that try false asks."""
BAR: Final = 0.01
"""Per cent of the cost."""
BINDS: Final = Fraction(9, 10)

SETTINGS: Final = {
    "pivot": MarketSetting("pivot"),
    "pivot, cap of 40 %": MarketSetting("pivot", OWNER_CAP_SHARE),
    "pivot, large": MarketSetting("pivot", large=15),
    "pivot, large, cap": MarketSetting("pivot", OWNER_CAP_SHARE, large=15),
    "pivot, owners of 4 nodes": MarketSetting("pivot", owned=4),
    "pivot, owners of 20 nodes, cap": MarketSetting("pivot", OWNER_CAP_SHARE, owned=20),
    "pivot, budget binds": MarketSetting("pivot", budget=BINDS),
    "pivot, cap, budget binds": MarketSetting("pivot", OWNER_CAP_SHARE, BINDS),
    "uniform": MarketSetting("uniform"),
    "paybid": MarketSetting("paybid"),
    "random, paid its ask": MarketSetting("random"),
}


class Outcome(NamedTuple):
    """`gain`, `overpaid`: per cent, of each tried node and each market."""

    gain: list[float]
    overpaid: list[float]


def studied(setting: MarketSetting, markets: int) -> Outcome:
    """Return gains and overpayment over seeded markets."""
    gain, overpaid = [], []
    for seed in range(markets):
        market = SeededMarket(setting, seed)
        if setting.budget is None:
            overpaid.append(float(market.overpaid))
        for place in [0, *random.Random(seed).sample(range(1, setting.nodes), TRIED - 1)]:
            gain.append(float(market.gain(place, false_asks(place))))
    return Outcome(gain, overpaid)


def claims(markets: int) -> list[bench.Claim]:
    """Print the table; return the claims."""
    outcomes = {name: studied(setting, markets) for name, setting in SETTINGS.items()}
    rows = [
        (name, statistics.mean(one.gain), statistics.quantiles(one.gain, n=20)[-1], max(one.gain),
         statistics.mean(one.overpaid) if one.overpaid else "-")
        for name, one in outcomes.items()
    ]  # fmt: skip
    print(
        f"{markets} markets of {NODES} nodes; {TRIED} of each try {len(FALSE_PERCENT)} false asks; "
        "per cent of their cost; overpaid: per cent beyond the costs of the cheapest nodes\n"
    )
    bench.table(("price", "gain, mean", "p95", "greatest", "overpaid, mean"), rows)
    worst = statistics.mean(outcomes["pivot"].gain)
    capped = statistics.mean(outcomes["pivot, large, cap"].gain)
    return [
        bench.Claim("market false ask", worst, "the true ask (per cent of cost)", BAR, at_most=True),
        bench.Claim("market false ask, cap", capped, "the true ask (per cent of cost)", BAR, at_most=True),
    ]
