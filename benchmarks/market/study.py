"""Simulate markets of 5 to 10,000 nodes: `python -m benchmarks.market --study`, which writes docs/results/market.md and
two pictures beside it.

Each table says in its sentence what was played. Markets of one epoch are those of
benchmarks/plays/seeded_markets.py; epochs are played by benchmarks/plays/market_play.py, cheating by
benchmarks/market/cheating.py. Everything is the product's own market, and nothing of it needs an engine.
"""

import random
import statistics
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.attacks import market_figures
from benchmarks.harness import picture
from benchmarks.harness.bench import Claim
from benchmarks.harness.figure_mark import figure_mark
from benchmarks.harness.picture import Axis, Linear
from benchmarks.market import cheating
from benchmarks.market.cheating import CheatFigures, Lie
from benchmarks.plays.market_play import MarketPlay, PlayTerms, steady
from benchmarks.plays.price_rules import PriceRule
from benchmarks.plays.seeded_markets import (
    RESERVE,
    MarketSetting,
    SeededMarket,
    all_ask_high,
    drawn_offers,
    false_asks,
    one_asks_high,
)
from echo2.coordinator.accounts.vesting import VESTED_AFTER
from echo2.coordinator.market.owner_cap import OWNER_CAP_SHARE
from echo2.coordinator.market.prices import MILLI

FOLDER: Final = Path(__file__).parents[2] / "docs" / "results"
SIZES: Final = {5: 40, 10: 40, 40: 40, 200: 20, 1000: 4, 10_000: 1}
"""Nodes -> seeded markets."""
TRIED: Final = 3
"""Nodes per market that try false asks."""
RULES: Final[tuple[PriceRule, ...]] = ("pivot", "uniform", "paybid", "random")
EPOCHS: Final = 8
SEEDS: Final = 3
_STYLES: Final = ("c5", "c3", "c4", "c2", "c1", "c6")


class Table(NamedTuple):
    """A table of the page. `said`: what was played, in sentences."""

    heading: str
    said: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> list[str]:
        return [
            f"## {self.heading}", "", self.said, "",
            _cells(self.columns), "|---" * len(self.columns) + "|", *map(_cells, self.rows), "",
        ]  # fmt: skip


Gains = dict[PriceRule, dict[int, float]]
Cheats = list[tuple[Lie, float, CheatFigures]]


def write(folder: Path = FOLDER) -> list[Claim]:
    """Simulate all, write page and pictures, print the tables, and return the claims."""
    gains: Gains = {rule: {} for rule in RULES}
    cheats = list(cheating.every(SEEDS))
    tables = [_sizes(gains), _collusion(), _budget(), _thin(), _sybils(), _cheating(cheats), _attacks()]
    page = [
        "# Markets, simulated", "",
        "The product's own market (`coordinator/market`), simulated in three minutes on one core."
        " Costs per hour are log-normal (sigma 0.35), throughputs too (0.5). The reserve price is three times the"
        " median cost. Gains are per cent of a node's cost, the best of the false asks tried.", "",
        figure_mark("python -m benchmarks.market --study"), "",
        "![What a false ask gains, by rule of prices and size](market-gain.svg)", "",
        "![Profit of cheating by share of false groups](market-cheating.svg)", "",
    ]  # fmt: skip
    for table in tables:
        page += table.markdown()
        print("\n".join(table.markdown()), flush=True)
    (folder / "market.md").write_text("\n".join(page))
    (folder / "market-gain.svg").write_text(_drawn_gains(gains))
    (folder / "market-cheating.svg").write_text(_drawn_cheating(cheats))
    worst = max(figures.gain for lie, rate, figures in cheats if rate in lie.barred)
    return [
        Claim(
            "pivot, false ask, any size", max(gains["pivot"].values()), "the true ask (per cent)", 0.01, at_most=True
        ),
        Claim("profit of cheating that is seen", worst, "honest work (per cent of cost)", -0.01, at_most=True),
    ]


def _sizes(gains: Gains) -> Table:
    rows = list[list[str]]()
    for nodes, number in SIZES.items():
        for rule in RULES:
            markets = [SeededMarket(MarketSetting(rule, OWNER_CAP_SHARE, nodes=nodes), seed) for seed in range(number)]
            each = [
                float(market.gain(place, false_asks(place)))
                for seed, market in enumerate(markets)
                for place in random.Random(seed).sample(range(nodes), min(TRIED, nodes))
            ]
            gains[rule][nodes] = statistics.mean(each)
            overpaid = statistics.mean(float(market.overpaid) for market in markets)
            rows.append(
                [f"{nodes:,}", rule, str(number), f"{gains[rule][nodes]:.3f}", f"{max(each):.1f}", f"{overpaid:.1f}"]
            )
    said = (
        f"Half of the supply is needed, the cap is on, no budget binds; {TRIED} nodes of each market try 13 false "
        "asks from half to"
        " two and a half times their cost. Overpaid: beyond the costs of the cheapest nodes that reach the need."
    )
    columns = ["nodes", "prices", "markets", "gain, mean %", "greatest %", "overpaid %"]
    return Table("False asks by rule and size", said, columns, rows)


def _collusion() -> Table:
    rows = list[list[str]]()
    for owned in (2, 4, 8, 20):
        for name, cap in (("none", None), ("40 %", OWNER_CAP_SHARE)):
            markets = [SeededMarket(MarketSetting(cap=cap, owned=owned), seed) for seed in range(20)]
            places = [random.Random(seed).randrange(40 // owned) * owned for seed in range(20)]
            one = [
                float(market.gain(at, one_asks_high(market, at)[::3]))
                for market, at in zip(markets, places, strict=True)
            ]
            every = [
                float(market.gain(at, all_ask_high(market, at))) for market, at in zip(markets, places, strict=True)
            ]
            rows.append(
                [str(owned), name, *(f"{statistics.mean(some):.2f}" for some in (one, every)), f"{max(every):.0f}"]
            )
    said = (
        "An owner of some of 40 nodes raises the ask of one of them, or of all. No rule of prices excludes that; the "
        "cap bounds what it"
        " supplies, and the reserve price what it can ask. Gains are per cent of the costs of the nodes that ask more."
    )
    return Table(
        "Collusion",
        said,
        ["nodes of an owner", "cap", "one asks high, mean %", "all ask high, mean %", "greatest %"],
        rows,
    )


def _budget() -> Table:
    rows = list[list[str]]()
    for budget in (None, Fraction(3, 2), Fraction(1), Fraction(9, 10), Fraction(7, 10), Fraction(1, 2)):
        markets = [SeededMarket(MarketSetting(cap=OWNER_CAP_SHARE, budget=budget), seed) for seed in range(40)]
        gains = [
            float(market.gain(place, false_asks(place)))
            for seed, market in enumerate(markets)
            for place in random.Random(seed).sample(range(40), TRIED)
        ]
        nodes = statistics.mean(len(market.true.nodes) for market in markets)
        work = statistics.mean(float(sum(node.expected for node in market.true.nodes)) for market in markets)
        price = statistics.mean(float(market.paid) for market in markets) * MILLI / work
        bound = sum(market.true.binding for market in markets)
        rows.append([
            "none" if budget is None else f"{float(budget):g}", f"{bound} of 40", f"{nodes:.1f}", f"{price / 1e6:.3f}",
            f"{statistics.mean(gains):.3f}", f"{max(gains):.1f}",
        ])  # fmt: skip
    said = "40 nodes, `pivot`, the cap on. Budget: by the costs of the cheapest nodes that reach the need."
    columns = [
        "budget",
        "binds",
        "active nodes",
        "price per RE, thousandths",
        "gain of a false ask, mean %",
        "greatest %",
    ]
    return Table("A budget that binds", said, columns, rows)


def _thin() -> Table:
    rows = list[list[str]]()
    for nodes in (5, 10, 40):
        for need in (Fraction(3, 10), Fraction(1, 2), Fraction(4, 5)):
            markets = [
                SeededMarket(MarketSetting(cap=OWNER_CAP_SHARE, nodes=nodes, need=need), seed) for seed in range(40)
            ]
            priced = [node.price for market in markets for node in market.true.nodes]
            at_reserve = sum(price == RESERVE for price in priced) / max(1, len(priced))
            short = statistics.mean(
                max(0.0, 1 - float(sum(market.share(market.true, place) for place in range(nodes))))
                for market in markets
            )
            overpaid = statistics.mean(float(market.overpaid) for market in markets)
            rows.append(
                [str(nodes), f"{float(need):g}", f"{100 * at_reserve:.0f}", f"{overpaid:.0f}", f"{100 * short:.1f}"]
            )
    said = (
        "Few nodes beside the need: a node without which the need is not reached is paid the reserve price, which "
        "the operator"
        " publishes. Short: of the need, by the cap on what each owner supplies."
    )
    columns = ["nodes", "need, of the supply", "paid the reserve price, % of nodes", "overpaid %", "short %"]
    return Table("Thin markets", said, columns, rows)


def _sybils() -> Table:
    offers = drawn_offers(MarketSetting(), 1)
    asks, rates = (
        {f"node{at:02}": each for at, each in enumerate(some)}
        for some in ([one.ask for one in offers], [one.rate for one in offers])
    )
    rate = int(statistics.median(rates.values()))
    cost = statistics.median(one.cost for one in offers) * MILLI
    terms = PlayTerms(sum(rates.values()) // 2, RESERVE, cap=400)
    rows = list[list[str]]()
    for keys, times in ((1, 0.8), (1, 0.9), (1, 1.0), (1, 3.0), (4, 0.9), (16, 0.9), (64, 0.9)):
        play, paid, work, others, drawn = MarketPlay(1), 0, 0, [0, 0], 0
        play.measure(rates)
        for number in range(EPOCHS):
            fresh = [f"fresh{number}-{key}" for key in range(keys)]
            play.benchmarked(dict.fromkeys(fresh, rate))
            asked = dict.fromkeys(fresh, min(RESERVE * rate // MILLI, int(cost * times) * rate // MILLI))
            one = play.epoch(
                terms, [*rates, *fresh], {**asks, **asked}, lambda node, at: steady(rates.get(node, rate), at)
            )
            mine = [row for row in one.closed.nodes if row.node in asked]
            paid, work, drawn = (
                paid + sum(row.pay for row in mine),
                work + sum(row.work for row in mine),
                drawn + len(mine),
            )
            others[0] += one.spent - sum(row.pay for row in mine)
            others[1] += sum(row.work for row in one.closed.nodes) - sum(row.work for row in mine)
        honest = Fraction(others[0] * work, max(1, others[1]))
        canaries = EPOCHS * keys * 8 * cost
        shares = [paid - honest, canaries, paid - honest - canaries]
        rows.append([
            str(keys), f"{times:.1f}", f"{drawn / EPOCHS:.1f}", f"{100 * work / (work + others[1]):.1f}",
            *(f"{float(each) / EPOCHS / 1e6:.1f}" for each in shares),
        ])  # fmt: skip
    said = (
        "Each epoch of a quarter of an hour the same owner comes with fresh keys; their ask is so many times the median"
        " cost, the reserve price three times. A newcomer's price is its own ask, newcomers are drawn by lot, and where"
        " measured nodes suffice none takes part that costs more than the first of them that is not needed. Beyond:"
        " what the keys that were drawn are paid beyond the mean price of the same work. Each"
        f" key costs a canary, a group of 8 rollouts, whose pay is withheld until {VESTED_AFTER} further groups are "
        "accepted. Pay is linear in work: among measured nodes keys gain nothing."
    )
    columns = ["fresh keys", "ask", "drawn", "of the work %", "beyond, thousandths an epoch", "canaries", "gain"]
    return Table("Sybils, a canary each", said, columns, rows)


def _cheating(cheats: Cheats) -> Table:
    rows = [
        [
            lie.place, lie.name, f"{100 * lie.saving:.0f}", f"{100 * rate:.0f}", f"{one.gain:+.1f}",
            f"{100 * one.undetected:.1f}", f"{100 * one.suspended:.0f}", str(one.keys),
            "below 0" if rate in lie.barred else "",
        ]
        for lie, rate, one in cheats
    ]  # fmt: skip
    said = (
        f"{cheating.DAYS} days of a machine that makes {cheating.A_DAY} groups a day, at a price of 1.61 times its "
        "cost: what an owner gains, per cent of the"
        " honest work's cost, by a share of false groups. At most 61 % are lost, the honest profit, and more where "
        "work goes unpaid. Undetected:"
        " groups that were false and paid, of all. The exact classes' figures rest on each false group being named, "
        "as measured; in"
        " bfloat16 one statistic is bet on, which names int8 and T = 0.95 later than the product does. No lie is "
        "known that the audits alone would see."
    )
    columns = [
        "class",
        "computes with",
        "saves %",
        "false %",
        "gain %",
        "undetected %",
        "suspended, % of the time",
        "keys",
        "bar",
    ]
    return Table("Profit of cheating", said, columns, rows)


def _attacks() -> Table:
    rows = [
        [one.attack, f"{one.figure:.3g}", f"{one.bound:.3g}", one.unit, "yes" if one.within else "no", one.note]
        for one in market_figures.figures()
    ]
    said = f"`benchmarks/attacks/market_figures.py`, {market_figures.MARKETS} seeded markets of 40 nodes each."
    return Table("Attacks on the market", said, ["attack", "figure", "bound", "of", "within", "beside"], rows)


def _cells(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def _drawn_gains(gains: Gains) -> str:
    across = Axis(min(SIZES), max(SIZES), picture.LEFT, picture.RIGHT)
    high = max(gain for by_size in gains.values() for gain in by_size.values())
    up = Linear(0.0, max(1.0, 1.05 * high), picture.BOTTOM, picture.TOP)
    curves = {str(rule): [(float(nodes), gain) for nodes, gain in by_size.items()] for rule, by_size in gains.items()}
    heading = "What a false ask gains, by rule of prices"
    return _curves(
        heading,
        "mean, per cent of the node's cost",
        "nodes",
        across,
        up,
        curves,
        {float(size): f"{size:,}" for size in SIZES},
    )


def _drawn_cheating(cheats: Cheats) -> str:
    across = Axis(min(cheating.RATES), max(cheating.RATES), picture.LEFT, picture.RIGHT)
    shown = ("exact: int4", "exact: not generated", "bfloat16: int4", "bfloat16: T = 0.95", "bfloat16: int8")
    curves = {
        name: [(rate, one.gain) for lie, rate, one in cheats if f"{lie.place}: {lie.name}" == name] for name in shown
    }
    values = [gain for some in curves.values() for _, gain in some]
    up = Linear(min(values) - 5, max(values) + 10, picture.BOTTOM, picture.TOP)
    heading = "Profit of cheating, by share of false groups"
    return _curves(
        heading,
        "per cent of the honest work's cost",
        "false groups",
        across,
        up,
        curves,
        {rate: f"{100 * rate:.0f} %" for rate in cheating.RATES},
    )


def _curves(
    heading: str,
    below: str,
    caption: str,
    across: Axis,
    up: Linear,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    columns: Mapping[float, str],
) -> str:
    parts = picture.grid(across, up, columns, {tick: f"{tick:g}" for tick in up.ticks()}, caption)
    labels = picture.apart({name: up.at(points[-1][1]) for name, points in curves.items()})
    for (name, points), style in zip(curves.items(), _STYLES, strict=False):
        parts.append(picture.polyline([(across.at(x), up.at(y)) for x, y in points], style))
        parts.append(picture.text(picture.RIGHT + 8, labels[name] + 4, name, "small"))
    return picture.svg(heading, heading, below, parts)
