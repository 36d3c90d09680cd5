"""The nodes that a run pays for work, as the parts that give leases and receipts see them."""

from typing import NamedTuple, Protocol

from echo2.coordinator.leases.timely_grants import TimelyGrants
from echo2.p2p.limits.origin import Origin
from echo2.protocol.requests import Refusal


class PricedEpoch(NamedTuple):
    """The epoch in which a group is accepted, and the price per RE of its node, in units of the ledger, rounded
    down."""

    epoch: int
    price: int


class PaidWork(Protocol):
    """Tells whom the run pays. A node is its public key, 32 bytes; times in ms. `timely`: bound of work that is paid
    and comes too late."""

    timely: TimelyGrants

    def refusal_for(self, node: bytes, origin: Origin, now: int) -> Refusal | None:
        """Return why a node gets no lease of any kind now; None: as far as pay goes, it may have one."""

    def price_of(self, node: bytes) -> PricedEpoch | None:
        """Return the price of the work of a node that is accepted now; None: there is none."""

    def before_verdict(self) -> None:
        """Prepare for a verdict. Call before the transaction of one."""


class AllWork:
    """The answers of a run that pays in points: it asks everybody, and has no prices."""

    def __init__(self) -> None:
        self.timely = TimelyGrants()

    def refusal_for(self, node: bytes, origin: Origin, now: int) -> Refusal | None:
        """Return None: each node may have leases."""
        return None

    def price_of(self, node: bytes) -> PricedEpoch | None:
        """Return None: there is no price."""
        return None

    def before_verdict(self) -> None:
        """Do nothing."""
