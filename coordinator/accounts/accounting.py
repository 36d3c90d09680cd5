"""The ledger and the tables that follow from it, opened together over one database."""

from echo2.coordinator.accounts.cost_tables import CostTables
from echo2.coordinator.accounts.key_accounts import NO_OBSERVERS, AccountObservers, Accounts
from echo2.coordinator.accounts.lease_ends import LeaseEnds
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.pay import POINTS, PayRule
from echo2.coordinator.accounts.quarantine import Quarantine
from echo2.coordinator.accounts.strikes import Strikes
from echo2.coordinator.accounts.vesting import Vesting
from echo2.coordinator.database.database import Database


class Accounting:
    """The ledger, the standing of keys, their strikes, their groups in quarantine, their canaries' pay, the lease
    ends that wait for their common entry, and the Costs in force."""

    def __init__(self, database: Database, pay: PayRule = POINTS, observers: AccountObservers = NO_OBSERVERS) -> None:
        self.ledger = Ledger(database)
        self.accounts = Accounts(database, self.ledger, observers)
        self.strikes = Strikes(database, self.accounts)
        self.quarantine = Quarantine(database, self.ledger, self.accounts, pay)
        self.vesting = Vesting(database, self.ledger, self.accounts, pay)
        self.lease_ends = LeaseEnds(database, self.ledger, self.accounts)
        self.costs = CostTables(self.ledger)
