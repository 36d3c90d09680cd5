"""The leaderboard as comma-separated values (RFC 4180), one row per node, most work first.

A text that a spreadsheet would run as a formula is prefixed with an apostrophe, because volunteers choose their names.
"""

import csv
import io
from collections.abc import Iterable, Sequence

from echo2.coordinator.metrics.market_views import MarketView
from echo2.coordinator.metrics.views import NodeRow
from echo2.runtime.spreadsheet_formula import is_formula

CONTENT_TYPE = "text/csv; charset=utf-8"
COLUMNS = (
    "id", "name", "engine", "device", "connected", "version", "accepted", "refused", "rollouts", "tokens", "weight",
    "points", "last_seen", "score",
)  # fmt: skip
"""Fields of `NodeRow`, which states their units. Only the JSON has refusals by reason."""
PAY_COLUMNS = ("place", "rank", "price", "work", "pay", "unvested", "accrued", "payable")
"""Fields of `NodePay`, which follow in a run with a market. Amounts are 10^-9 of the run's currency."""


def of_nodes(nodes: Sequence[NodeRow], *, market: bool = False) -> str:
    """Write a header and one row per node. Unknown values are empty. `market`: whether the run has one."""
    return csv_text([[*COLUMNS, *(f"market_{column}" for column in PAY_COLUMNS if market)]]) + rows_of(nodes)


def rows_of(nodes: Iterable[NodeRow]) -> str:
    """Write one row per node, without the header."""
    return csv_text(_cells(node) for node in nodes)


def of_supply(market: MarketView | None) -> str:
    """Write the supply curve of the epoch that runs: milli-RE per hour at most at a cost per RE."""
    points = [] if market is None or market.running is None else market.running.supply
    return csv_text([("rate", "cost"), *((one.rate, one.cost) for one in points)])


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Write rows (RFC 4180)."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _cells(node: NodeRow) -> list[object]:
    cells = [cell(getattr(node, column)) for column in COLUMNS]
    return cells if node.pay is None else cells + [cell(getattr(node.pay, column)) for column in PAY_COLUMNS]


def cell(value: object) -> object:
    """Return a value as a cell has it: text that a spreadsheet would run as a formula behind an apostrophe."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and is_formula(value):
        return f"'{value}"
    return value
