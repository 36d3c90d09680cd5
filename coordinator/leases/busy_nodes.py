"""The clocks of leases stand while this coordinator is too busy to answer their nodes. Times in milliseconds.

Rules
1. A node whose request is answered BUSY repeats it after a second. From the first such answer until `BUSY_STANDS_MS`
   after the last one the clocks of its open leases stand: no honest group is late by our overload.
2. A lease's clock stands like that for at most one lifetime of it in all, and never that of a silent node
   (delivery_record.py, rule 4): a flood does not keep alive what it hoards.
3. The request that is answered BUSY is unread. So its node is that which got its leases over the same connection.
"""

from collections.abc import Collection
from typing import Final

from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.delivery_record import read_delivery_record

BUSY_STANDS_MS: Final = 5_000
"""Longer than a node waits before it repeats a request, and a tick of the coordinator."""


class BusyNodes:
    """The connections that were answered BUSY, and until when the clocks of their leases stand."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._until: dict[str, int] = {}

    def stand(self, connections: Collection[str], now: int) -> None:
        """Let the clocks stand of leases that were given over these connections, which were answered BUSY since the
        last call. Call before leases expire."""
        until = now + BUSY_STANDS_MS
        self._until = {one: end for one, end in self._until.items() if now < end <= until}
        if not connections:
            return
        more = {one: until - self._until.get(one, now) for one in connections}
        lent = self._database.all("SELECT DISTINCT node, connection FROM lent")
        for node, connection in [row for row in lent if row[1] in more]:
            self._until[connection] = until
            if not read_delivery_record(self._database, node).silent:
                ms = more[connection]
                self._database.do(
                    "UPDATE leases SET sent = sent + ?, expires = expires + ?, stood = stood + ?"
                    " WHERE state = 'open' AND node = ? AND connection = ? AND stood + ? <= expires - sent",
                    (ms, ms, ms, node, connection, ms),
                )
