"""End leases without a group: those whose time has passed, that are superseded, or that their nodes give back.

Rules
1. A lease expires once its time has passed, at most `EXPIRED_AT_ONCE` in one call. Those beyond them take no room
   either, and a group for one of them is late.
2. A lease ends before its time where it is superseded (coordinator/leases/superseded_leases.py) or given back.
"""

from collections.abc import Iterable
from typing import Final

from echo2.coordinator.accounts.decided import Decided
from echo2.coordinator.accounts.lease_ends import LedgerPosition
from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.lease_rows import LeaseRecord
from echo2.coordinator.leases.lease_table import Early, LeaseTable
from echo2.coordinator.verdicts.lease_entries import LeaseEntries
from echo2.coordinator.verdicts.lease_outcomes import outcome

EXPIRED_AT_ONCE: Final = 64
"""Most leases that end in one call: few enough that no request is delayed, even if thousands of nodes leave."""


class LeaseExpiries:
    """The ends of open leases."""

    def __init__(self, database: Database, leases: LeaseTable, entries: LeaseEntries) -> None:
        self._database, self._leases, self._entries = database, leases, entries

    def expire(self, now: int) -> int:
        """End leases whose time has passed; return how many."""
        due = self._leases.due(now, EXPIRED_AT_ONCE)
        with self._database.transaction():
            for lease in due:
                record = self._leases.find(lease)
                if record is not None:
                    self.end(record, now)
        return len(due)

    def end_early(self, leases: Iterable[bytes], code: Early, now: int) -> None:
        """End open leases before their time."""
        with self._database.transaction():
            for lease in leases:
                self._leases.end_now(lease, now)
                record = self._leases.find(lease)
                if record is not None and record.state == "open":
                    self.end(record, now, code)

    def end(self, record: LeaseRecord, now: int, code: str = "expired") -> LedgerPosition:
        """End a lease, if it is open, in the caller's transaction; return the place of its end. Raises `LookupError`:
        no end is recorded."""
        lease = record.lease
        if record.state == "open":
            digest = self._database.value("SELECT hash FROM submissions WHERE lease = ?", (lease.id,))
            end = outcome(record, None, digest, code)
            place = self._entries.append_unpaid(now, "lease.expired", end, lease.node)
            self._entries.publish(Decided(lease, code, now))
            return place
        known = self._entries.find(lease.id)
        if known is None:
            raise LookupError(f"lease {lease.id.hex()} is {record.state}, and its end is not recorded")
        return known

    def is_forgotten(self, record: LeaseRecord) -> bool:
        """Tell whether a lease ended without a group, and its end was deleted (coordinator/accounts/lease_ends.py)."""
        return record.without_group and self._entries.find(record.lease.id) is None
