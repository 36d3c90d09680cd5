"""Tell which nodes are quick and reliable, and so get the prompts with long answers (prompt_window.py, rule 4).

After StreamRL (arXiv 2504.15930), which dispatches by predicted length: the longest answers of a step decide when it
begins, and on a slow machine they come too late for their version.

Rules
1. A node's speed is the tokens of its last accepted groups over the time from lease to group. So a node that gets long
   groups is not slower for it. Leases that another node had before it are left out (delivery_record.py, rule 3).
2. A node is quick if its speed is at least the median over the last `REMEMBERED` leases. It is reliable if its key is
   not new and none of its last leases was returned (prompt_positions.py, rule 2).
3. Before `FEWEST` leases of measured nodes nobody is told apart. A node that is not measured gets short prompts.
"""

import statistics
from collections import deque
from typing import Final

from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.delivery_record import OWN_WORK

REMEMBERED: Final = 64
FEWEST: Final = 8
SAMPLE: Final = 20
"""Last leases over which a node is measured."""


class QuickNodes:
    """The speeds of the nodes that got the last leases. Pure."""

    def __init__(self) -> None:
        self._speeds: deque[float] = deque(maxlen=REMEMBERED)

    def gets_long(self, speed: float | None, *, reliable: bool) -> bool | None:
        """Tell whether a node that gets a lease now gets a long prompt; None: it is as good as any (rule 3). `speed`:
        tokens per millisecond; None: not measured."""
        if speed is not None:
            self._speeds.append(speed)
        if len(self._speeds) < FEWEST:
            return None
        return reliable and speed is not None and speed >= statistics.median(self._speeds)


def read_speed(database: Database, node: bytes) -> float | None:
    """Return a node's tokens per millisecond (rule 1); None: it has no accepted group among its last leases."""
    tokens, took = database.all(
        "SELECT sum(v.tokens), sum(s.at - l.sent) FROM"
        f" (SELECT id, sent FROM leases WHERE node = ? AND {OWN_WORK} ORDER BY sent DESC LIMIT ?) l"
        " JOIN submissions s ON s.lease = l.id JOIN verdicts v ON v.lease = l.id WHERE v.verdict = 'accepted'",
        (node, SAMPLE),
    )[0]
    return None if tokens is None else tokens / max(1, took)
