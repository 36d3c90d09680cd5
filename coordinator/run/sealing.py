"""Documents that a coordinator signs, by the keys that its run has at that moment.

Rules
1. A document is sealed by the newest Root's key for its kind.
2. A Lease, a Received or a Receipt that was sealed earlier goes out as it was stored for as long as it holds by the
   newest Root; then its payload is sealed again under today's key. So a node is given no document that it must refuse,
   and a node that holds a good one gets no other.
"""

from coordinator.run.setup import Run
from p2p.envelope import ROLES, decode_unverified, seal
from p2p.errors import BadSignature
from protocol.authority import open_kept


class Sealer:
    """`sealer(kind, payload)` seals."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, kind: str, payload: bytes) -> bytes:
        """Rule 1."""
        keys = self._run.keys
        by_role = {"policy": keys.policy, "channel": keys.channel, "ledger": keys.ledger}
        return seal(kind, self._run.id, payload, by_role[ROLES[kind]])

    def again(self, kind: str, sealed: bytes) -> bytes:
        """Return a stored document as it may go out now (rule 2)."""
        chain = self._run.chain
        if len(chain) == 1:
            return sealed
        stored = decode_unverified(sealed)
        if {one.key for one in stored.signatures} & set(chain[-1].roles[ROLES[kind]].keys):
            return sealed
        if kind != "lease":
            try:
                open_kept(sealed, kind, chain)
                return sealed
            except BadSignature:
                pass
        return self(kind, stored.payload)
