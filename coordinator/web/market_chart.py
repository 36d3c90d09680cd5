"""The chart of a market: what work is offered at which cost, and where the epoch's prices end. Pure.

Rules
1. A step of the curve is an offer: its width the rate that it adds, its height its cost per RE. Offers left of the need
   that cost no more than the clearing price are asked for work, but for what budget, owners and newcomers change.
2. Floats place marks only. Amounts in words are rounded from integers.
3. An offer above the reserve price is never bought, so its ask is a stranger's free choice: the axis ends at 1.25 times
   the reserve price, and such an offer stands at its top with its true cost as label.
"""

import dataclasses
from typing import Any, Final

from echo2.coordinator.metrics.market_views import OpenMarket
from echo2.coordinator.metrics.views import RunState
from echo2.coordinator.web import charts
from echo2.coordinator.web.charts import Chart, Point, Series
from echo2.coordinator.web.formatting import amount, short

SCALE: Final = 10**6
"""Of an amount per RE: units of the currency per 1,000 RE."""


def facts(state: RunState) -> dict[str, Any]:
    """Return the values that the templates use: nothing in a run that pays in points."""
    market = state.market
    running = None if market is None else market.running
    return {
        "market": market,
        "supply": None if market is None or running is None else supply_chart(running, market.currency),
    }


def supply_chart(running: OpenMarket, currency: str) -> Chart:
    """Lay out the supply curve with the need and the clearing price."""
    curve = _steps(running)
    last = max([running.need / 1000, *(x for x, _ in curve)]) * 1.02
    ticks = charts.nice_ticks(0, _top(running) / SCALE or 1.0)
    series = [
        Series("need", "warn", [(running.need / 1000, 0.0), (running.need / 1000, ticks[-1])], faint=True),
        Series("offers", "first", curve),
    ]
    if running.clearing is not None:
        price = running.clearing / SCALE
        series.append(Series("clearing price", "second", [(0.0, price), (last, price)]))
    hints = [
        (
            one.rate / 1000,
            f"{short(one.rate / 1000)} RE per hour cost at most {amount(1000 * one.cost)} {currency} per 1,000",
        )
        for one in running.supply
    ]
    chart = charts.line_chart("supply", "Supply", series, x_name="RE per hour", x_last=last, y_ticks=ticks, hints=hints)
    return dataclasses.replace(chart, summary=_summary(running, currency))


def _top(running: OpenMarket) -> int:
    """Return the cost per RE at which the axis ends at the earliest (rule 3); 0: nothing is to be drawn."""
    highest = max([running.clearing or 0, *(one.cost for one in running.supply)])
    return min(highest, running.reserve * 5 // 4) or highest


def _steps(running: OpenMarket) -> list[Point]:
    """Return the curve as a path of steps from 0."""
    path, rate = list[Point](), 0.0
    for one in running.supply:
        path += [(rate, one.cost / SCALE), (one.rate / 1000, one.cost / SCALE)]
        rate = one.rate / 1000
    return path


def _summary(running: OpenMarket, currency: str) -> str:
    """Describe the chart in words, for screen readers."""
    if not running.supply:
        return "Supply curve: nobody offers work."
    first, last = running.supply[0], running.supply[-1]
    text = (
        f"Supply curve: {short(last.rate / 1000)} RE per hour are offered, at {amount(1000 * first.cost)} to "
        f"{amount(1000 * last.cost)} {currency} per 1,000 RE. Needed are {short(running.need / 1000)} RE per hour."
    )
    if running.clearing is None:
        return text
    return f"{text} The clearing price is {amount(1000 * running.clearing)} {currency} per 1,000 RE."
