"""The canaries of a run, counted for status and page (coordinator/leases/kinds/canaries.py)."""

from collections import Counter
from typing import Final

from echo2.coordinator.accounts.key_accounts import account_of
from echo2.coordinator.database.database import Database
from echo2.coordinator.metrics.views import CanaryView
from echo2.ledger.standing import rank

_NAMES: Final = {
    "of_proven": "canaries given",
    "of_scorer": "canaries given by the scorer's answer",
    "agreed": "canaries agreed",
    "scored": "canaries scored",
    "refused": "canaries refused",
}
"""Field of the view -> tally."""
_HOLDERS: Final = (
    "SELECT l.party, l.node, count(*) FROM buffer b JOIN leases l ON l.id = b.lease WHERE b.era = ? AND b.version = ?"
    " GROUP BY l.party, l.node"
)


def canary_view(database: Database, era: int, version: int) -> CanaryView:
    """Count the canaries of the run, and the largest share of the answers at hand under a version."""
    counted = dict(database.all("SELECT name, value FROM tallies WHERE name LIKE 'canaries %'"))
    fields = {field: counted.get(name, 0) for field, name in _NAMES.items()}
    return CanaryView(**fields, largest_share=_largest_share(database, era, version))


def _largest_share(database: Database, era: int, version: int) -> float:
    """Return the share of the party with most groups of proven nodes, of a node without a party by its key: the chance
    that one of its further keys is given an answer that it has (canaries.py, rule 9)."""
    groups = Counter[object]()
    for party, node, number in database.all(_HOLDERS, (era, version)):
        groups[party or node] += number * (rank(account_of(database, node)) == "proven")
    return max(groups.values(), default=0) / max(1, groups.total())
