"""Open the records of a run over its database: ledger and accounts, nodes and teams, figures of broadcasts.

Group service, market, signed heads and calibrations stand on them alike, so they are made first.
"""

from echo2.coordinator.accounts.accounting import Accounting
from echo2.coordinator.accounts.key_accounts import AccountObservers
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.pay import pay_rule
from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.rollout_context import Entropy
from echo2.coordinator.metrics.broadcast_stats import BroadcastStats
from echo2.coordinator.nodes.node_registry import NodeRegistry
from echo2.coordinator.nodes.teams import Teams
from echo2.coordinator.verification.open_classes import OpenClasses


class RunRecords:
    """The records of one run. `classes`: engine classes that are not exact, and are open by a Calibration."""

    def __init__(self, database: Database, price_mode: str, entropy: Entropy) -> None:
        """`entropy`: random bytes for the ids of teams."""
        self.database = database
        self.registry = NodeRegistry(database)
        self.teams = Teams(database, Ledger(database), entropy)
        observers = AccountObservers(proven=[self.registry.compare_again], entries=[self.teams.take])
        self.accounting = Accounting(database, pay_rule(price_mode), observers)
        self.broadcasts = BroadcastStats()
        self.classes = OpenClasses()
