"""Costs of the tests' run, and the same sealed."""

from typing import Final

from echo2.ledger.costs_in_force import seal_costs
from echo2.p2p.identity import public_bytes
from echo2.protocol.authority import RoleKeys
from echo2.protocol.group_weights import Costs
from tests.support.group_world import KEYS, RUN

COSTS: Final = Costs(
    run=RUN, given=1_000, attention=3, decode=29, denominator=8, unit=500_000, builds=["transformers 5"], at=7
)
"""A sampled token costs 29/8 of a given one; a given one as much as the attention to 333 tokens."""
LEDGER_KEYS: Final = RoleKeys(keys=[public_bytes(KEYS["ledger"])], threshold=1)


def sealed_costs(costs: Costs = COSTS) -> bytes:
    """Return Costs, signed by the ledger's key."""
    return seal_costs(costs, KEYS["ledger"])
