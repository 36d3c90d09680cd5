"""The share of the need that one owner may supply. Pure.

An owner is a tag that the coordinator gives to nodes it takes for one person's: a heuristic, stated per epoch.

Rules
1. Of the rates of an owner's nodes at most `OWNER_CAP_SHARE` of the need counts, rounded down. In the order of
   activation each node counts with what is left of that, measured nodes before newcomers.
2. A node that counts for less than its rate delivers no more than that (prices.py, rule 4). One that counts for nothing
   is left out.
3. A node without a tag is an owner of its own.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from echo2.coordinator.market.activation import Offer

OWNER_CAP_SHARE: Final = Fraction(2, 5)


def cap_offers(offers: Sequence[Offer], owners: Mapping[bytes, bytes], most: int | None) -> list[Offer]:
    """Return offers with what of them counts, in their order, which is that of activation.

    `owners`: node -> tag. `most`: milli-RE per hour that count per owner; None: there is no cap."""
    if most is None:
        return list(offers)
    taken = Counter[bytes]()
    counting = []
    for offer in offers:
        owner = owners.get(offer.node, offer.node)
        counts = min(offer.rate, most - taken[owner])
        taken[owner] += counts
        counting.append(offer if counts == offer.rate else offer._replace(counted=counts))
    return counting


def most_per_owner(need: int, cap: Fraction | None) -> int | None:
    """Return the milli-RE per hour that count per owner (rule 1)."""
    return None if cap is None else int(cap * need)
