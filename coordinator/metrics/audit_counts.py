"""The audits of a run, counted for status and page (coordinator/leases/kinds/audits.py)."""

from typing import Final

from echo2.coordinator.database.database import Database
from echo2.coordinator.metrics.run_metrics import work
from echo2.coordinator.metrics.views import AuditView

_NAMES: Final = {
    "given": "audits given",
    "agreed": "audits agreed",
    "differed": "audits differed",
    "doubted": "audits that doubt the scorer",
}
"""Field of the view -> tally."""


def audit_view(database: Database) -> AuditView:
    """Count the audits of the run, and the share that audits and canaries have of its accepted work."""
    counted = dict(database.all("SELECT name, value FROM tallies WHERE name LIKE '%audits%'"))
    fields = {field: counted.get(name, 0) for field, name in _NAMES.items()}
    return AuditView(**fields, share=counted.get("work of audits", 0) / max(1, work(database)))
