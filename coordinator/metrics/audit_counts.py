"""The audits of a run, counted for status and page (coordinator/rollouts/audits.py)."""

from typing import Final

from coordinator.database import Database
from coordinator.metrics.run_metrics import work
from coordinator.metrics.views import AuditView
from coordinator.rollouts.audit_pairs import AGREED, DIFFERED, DOUBTED, GIVEN, WORK

_NAMES: Final = {"given": GIVEN, "agreed": AGREED, "differed": DIFFERED, "doubted": DOUBTED}
"""Field of the view -> tally."""


def audit_view(database: Database) -> AuditView:
    """Count the audits of the run, and the share that audits and canaries have of its accepted work."""
    counted = dict(database.all("SELECT name, value FROM tallies WHERE name LIKE '%audits%'"))
    fields = {field: counted.get(name, 0) for field, name in _NAMES.items()}
    return AuditView(**fields, share=counted.get(WORK, 0) / max(1, work(database)))
