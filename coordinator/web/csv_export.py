"""The leaderboard as comma-separated values (RFC 4180), one row per node, most work first.

A text that a spreadsheet would run as a formula is prefixed with an apostrophe, because volunteers choose their names.
"""

import csv
import io
from collections.abc import Iterable

from coordinator.metrics.views import NodeRow

CONTENT_TYPE = "text/csv; charset=utf-8"
COLUMNS = (
    "id", "name", "engine", "device", "connected", "version", "accepted", "refused", "rollouts", "tokens", "weight",
    "points", "last_seen",
)  # fmt: skip
"""Fields of `NodeRow`, which states their units. Only the JSON has refusals by reason."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def of_nodes(nodes: Iterable[NodeRow]) -> str:
    """Write a header and one row per node. Unknown values are empty."""
    text = io.StringIO()
    csv.writer(text).writerow(COLUMNS)
    return text.getvalue() + rows_of(nodes)


def rows_of(nodes: Iterable[NodeRow]) -> str:
    """Write one row per node, without the header."""
    text = io.StringIO()
    csv.writer(text).writerows([_cell(getattr(node, column)) for column in COLUMNS] for node in nodes)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
