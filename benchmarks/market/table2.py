"""The cost of a learner's step with and without the choice by cost, at market prices: `python -m benchmarks.market
--table2`.

After Table 2 of ECHO-2 (arXiv 2602.02192), at the machines and prices of benchmarks/ablation.py, which also leaves out
the broadcast between peers and simulates the learner. Here nodes are chosen and paid by the market: each asks its
price, and half of their supply is needed.
"""

import statistics
from typing import Final

from benchmarks.ablation import CLASSES, LEARNER_PRICE, STEP
from benchmarks.harness import bench
from benchmarks.plays.market_play import MarketPlay, PlayTerms, steady
from benchmarks.plays.price_rules import PriceRule
from echo2.coordinator.market.throughput import HOUR

NANO: Final = 10**9
RATE: Final = 1_000_000
"""Milli-RE per hour of a node of speed 1."""
EPOCHS: Final = 6
SEEDS: Final = 10
PAPER: Final = {"cheapest": 8.098, "lottery": 9.339}
ROWS: Final[dict[str, tuple[PriceRule, str]]] = {
    "cheapest, paid its ask": ("paybid", "cheapest"),
    "by lot, paid its ask": ("random", "lottery"),
    "cheapest, pivot": ("pivot", ""),
    "cheapest, uniform": ("uniform", ""),
}


def show() -> None:
    """Print the table."""
    costs = {name: step_costs(rule) for name, (rule, _) in ROWS.items()}
    full = statistics.mean(costs["cheapest, paid its ask"])
    rows = [
        (
            name, f"{statistics.mean(each):.3f} ± {statistics.stdev(each) / len(each) ** 0.5:.3f}",
            f"{statistics.mean(each) / full:.3f}",
            f"{PAPER[ROWS[name][1]] / PAPER['cheapest']:.3f}" if ROWS[name][1] else "-",
        )
        for name, each in costs.items()
    ]  # fmt: skip
    bench.table(("nodes", "cost of a step", "against the cheapest", "in ECHO-2"), rows)
    print(
        f"{sum(one.number for one in CLASSES)} nodes at "
        f"{', '.join(f'{one.number} of speed {one.speed:g} at {one.ask:g}' for one in CLASSES)}"
        f" per hour; the learner at {LEARNER_PRICE:g}; steps of {STEP:g} s; mean and standard error of {SEEDS} seeds"
    )


def step_costs(rule: PriceRule, seeds: int = SEEDS) -> list[float]:
    """Return the cost of a step for each seed, per work that the need asks for."""
    nodes = [(f"{number}-{at}", one) for number, one in enumerate(CLASSES) for at in range(one.number)]
    rates = {name: int(RATE * one.speed) for name, one in nodes}
    asks = {name: int(NANO * one.ask) for name, one in nodes}
    need, length = sum(rates.values()) // 2, int(1000 * STEP)
    terms = PlayTerms(need, 10**15 // RATE, milliseconds=length, newcomers=0)
    costs = []
    for seed in range(seeds):
        play = MarketPlay(seed, rule)
        play.measure(rates)
        spent, work = 0, 0
        for number in range(EPOCHS):
            one = play.epoch(
                terms, rates, asks if number == 0 else {}, lambda node, at: steady(rates[node], at, length)
            )
            spent, work = spent + one.spent, work + sum(row.work for row in one.closed.nodes)
        costs.append(LEARNER_PRICE * STEP / 3600 + spent / NANO * (need * length / HOUR) / work)
    return costs
