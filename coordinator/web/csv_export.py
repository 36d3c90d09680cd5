"""The leaderboard as comma-separated values (RFC 4180), one row a node, most work first.

A name that a spreadsheet would take for a formula gets an apostrophe in front: names come from strangers.
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
"""Fields of `NodeRow`, which says their units; refusals by reason are in the JSON only."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def of_nodes(nodes: Iterable[NodeRow]) -> str:
    """A header and a row a node. What is not known is empty."""
    text = io.StringIO()
    csv.writer(text).writerow(COLUMNS)
    return text.getvalue() + rows_of(nodes)


def rows_of(nodes: Iterable[NodeRow]) -> str:
    """The rows alone."""
    text = io.StringIO()
    csv.writer(text).writerows([_cell(getattr(node, column)) for column in COLUMNS] for node in nodes)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
