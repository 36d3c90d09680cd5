"""Choose the leases here that a stolen key may have signed. Pure.

Rules
1. A lease whose signers are revoked is not begun: it may be a thief's. A group that has begun is finished and handed
   in, since the coordinator knows its own leases by its table, whatever key signed them.
2. A lease that is not begun is given back with the next request, and the coordinator gives its prompt again.
"""

from collections.abc import Iterable, Sequence

from echo2.p2p.envelope import decode_unverified
from echo2.protocol.authority import Root, revoked_keys


class LeaseSigners:
    """The keys that signed the leases under way."""

    def __init__(self) -> None:
        self._signers: dict[bytes, frozenset[bytes]] = {}

    def remember(self, lease: bytes, sealed: bytes) -> None:
        """Record a lease, whose sealed bytes were verified."""
        self._signers[lease] = frozenset(one.key for one in decode_unverified(sealed).signatures)

    def forget(self, lease: bytes) -> None:
        """Forget a lease that has ended."""
        self._signers.pop(lease, None)

    def revoked_leases(self, leases: Iterable[bytes], chain: Sequence[Root]) -> list[bytes]:
        """Return those of `leases` that a key signed which a Root of the chain revokes (rule 1)."""
        bad = revoked_keys(chain)
        return [lease for lease in leases if not bad.isdisjoint(self._signers.get(lease, ()))]
