"""Signing of the coordinator's documents with the run's current keys.

Rules
1. A document is sealed by the newest Root's key for its kind.
2. A stored Lease, Received or Receipt is sent unchanged while it is valid under the newest Root; afterwards its payload
   is sealed again under the current key. So no node receives a document that it must refuse, nor a second one in place
   of a valid one.
"""

from echo2.coordinator.run.setup import Run
from echo2.p2p.envelope import ROLES, decode_unverified, seal
from echo2.p2p.errors import BadSignature
from echo2.p2p.identity import public_bytes
from echo2.protocol.authority import open_kept
from echo2.protocol.ledger_heads import LedgerHead, log_name, signed_note


class Sealer:
    """The signer of a run's documents. `sealer(kind, payload)` returns the sealed document."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, kind: str, payload: bytes) -> bytes:
        """Seal a payload with the newest Root's key for its kind (rule 1)."""
        keys = self._run.keys
        by_role = {"policy": keys.policy, "channel": keys.channel, "ledger": keys.ledger}
        return seal(kind, self._run.id, payload, by_role[ROLES[kind]])

    def note(self, head: LedgerHead, text: str) -> str:
        """Return the checkpoint of a head with the signature of the newest Root's ledger key."""
        key = self._run.keys.ledger
        return signed_note(text, log_name(head.log), public_bytes(key), key.sign)

    def again(self, kind: str, sealed: bytes) -> bytes:
        """Return a stored document, sealed again unless it is valid under the newest Root (rule 2)."""
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
