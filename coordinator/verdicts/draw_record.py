"""Record which groups the learner drew, and when, so that the ways of the last ones can be taken apart.

Rules
1. Of the last `LEARNED_STEPS` steps it is recorded how many groups of each node they drew, for the nodes' pages.
2. Of each batch at most `PER_STEP` groups are recorded, spread evenly over it, and of the last `REMEMBERED_STEPS`
   steps. The page reads all of them once per second.
3. A step that is made again replaces what it drew before, and so do all later ones.
4. The record is for people: no decision depends on it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from echo2.coordinator.database.database import Database
from echo2.coordinator.metrics.group_stages import GroupTimes
from echo2.coordinator.verdicts.replay_buffer import DrawnGroup
from echo2.p2p.identity import peer_id

PER_STEP: Final = 32
REMEMBERED_STEPS: Final = 16
LEARNED_STEPS: Final = 250
"""As many as have every point of the curves (coordinator/metrics/history.py)."""

LoadedAt = Callable[[int, int, str], int | None]
"""Returns when a node, named by its peer id, had loaded a version of an era, ms; None: not known."""


def record_draw(
    database: Database, batch: Sequence[DrawnGroup], era: int, step: int, now: int, loaded_at: LoadedAt
) -> None:
    apart = max(1, -(-len(batch) // PER_STEP))
    nodes = [database.value("SELECT node FROM leases WHERE id = ?", (group.id,)) for group in batch]
    with database.transaction():
        database.do("DELETE FROM learned WHERE step >= ? OR step <= ?", (step, step - LEARNED_STEPS))
        for node, groups in Counter(node for node in nodes if node is not None).items():
            database.do("INSERT INTO learned VALUES (?, ?, ?)", (node, step, groups))
        database.do("DELETE FROM draws WHERE step >= ? OR step <= ?", (step, step - REMEMBERED_STEPS))
        for group, node in zip(batch[::apart], nodes[::apart], strict=True):
            loaded = None if node is None else loaded_at(era, group.version, peer_id(node))
            database.do("INSERT OR REPLACE INTO draws VALUES (?, ?, ?, ?)", (group.id, step, now, loaded))


def read_draws(database: Database) -> list[GroupTimes]:
    """Return the times of the recorded groups, in the order of the steps that drew them."""
    rows = database.all(
        "SELECT d.step, n.at, d.loaded, l.sent, s.waited, s.took, s.at, v.at, d.at FROM draws d"
        " JOIN leases l ON l.id = d.lease JOIN versions n ON n.era = l.era AND n.version = l.version"
        " JOIN submissions s ON s.lease = d.lease JOIN verdicts v ON v.lease = d.lease ORDER BY d.step"
    )
    return [GroupTimes(*row) for row in rows]
