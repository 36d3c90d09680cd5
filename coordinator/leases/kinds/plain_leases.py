"""The plain kind of lease: the next prompt in order, for a node whose version has room."""

from collections.abc import Callable, Collection
from typing import NamedTuple

from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.lease_table import LeaseTable
from echo2.coordinator.leases.lease_writer import AskedLease, LeaseKind, LeaseWriter
from echo2.coordinator.leases.retry_times import LEAST_RETRY_MS
from echo2.coordinator.prompts.prompt_positions import NO_PROMPT, PromptPosition
from echo2.coordinator.prompts.prompts import PromptPending
from echo2.protocol.refusals import refusal
from echo2.protocol.requests import Refusal
from echo2.tasks.task import TaskFault


class PlainLease(NamedTuple):
    """A plain lease that was given. `lease`: its id."""

    lease: bytes
    chosen: PromptPosition
    asked: AskedLease


class PlainLeases(LeaseKind):
    """The plain leases of a run. Offer them last: they are what a node gets without another kind."""

    def __init__(
        self,
        database: Database,
        table: LeaseTable,
        writer: LeaseWriter,
        served: Collection[str],
        on_grant: Callable[[PlainLease], None],
    ) -> None:
        """`served`: names of tasks whose leases have no twins. `on_grant`: takes each lease that may have one."""
        self._database, self._table, self._writer = database, table, writer
        self._served, self._on_grant = served, on_grant

    def offer(self, asked: AskedLease) -> bytes | Refusal | None:
        """Return a sealed Lease of the next prompt, or why there is no prompt now; None: there is no room."""
        if asked.refused is not None:
            return None
        try:
            return self._give(asked)
        except PromptPending:
            return refusal("no-prompt", retry_after=LEAST_RETRY_MS)
        except TaskFault:
            return refusal("no-prompt", retry_after=NO_PROMPT)

    def _give(self, asked: AskedLease) -> bytes:
        demand, now = asked.demand, asked.now
        node, origin = demand.requester.node, demand.requester.origin
        self._table.positions.prepare()
        with self._database.transaction():
            relied_on = self._table.admission.relied_on(demand, now)
            chosen = self._table.positions.take(node, origin, now, relied_on=relied_on)
            lease, sealed = self._writer.write(chosen, asked, ahead=asked.on_their_way + 1)
        if asked.exact and chosen.prompt.task not in self._served:
            self._on_grant(PlainLease(lease, chosen, asked))
        return sealed
