"""The publisher's signing keys, and the former keys whose documents it accepts from its own disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.p2p.envelope import verify_envelope
from echo2.p2p.errors import BadSignature
from echo2.p2p.identity import public_bytes


@dataclass(frozen=True)
class Signing:
    """The publisher's signing keys and their run."""

    run: bytes
    policy: Ed25519PrivateKey
    channel: Ed25519PrivateKey
    root_serial: int
    former: frozenset[bytes] = frozenset()
    """Public keys of the roles policy and channel in earlier Roots: stored documents may be signed by them."""
    roots: Mapping[int, bytes] = field(default_factory=dict)
    """Every sealed Root of the run, by serial."""

    @property
    def policies(self) -> frozenset[bytes]:
        """The public keys whose Versions and Edges are accepted from the store."""
        return self.former | {public_bytes(self.policy)}

    @property
    def channels(self) -> frozenset[bytes]:
        """The public keys whose Heads are accepted from the disk."""
        return self.former | {public_bytes(self.channel)}

    def by_policy(self, sealed: bytes, kind: str) -> bool:
        """Tell whether the present policy key signed a document of this kind and run. Raises `Malformed`."""
        return _is_signed(sealed, kind, self.run, self.policy)

    def by_channel(self, sealed: bytes, kind: str) -> bool:
        """Tell whether the present channel key signed a document of this kind and run. Raises `Malformed`."""
        return _is_signed(sealed, kind, self.run, self.channel)


def _is_signed(sealed: bytes, kind: str, run: bytes, key: Ed25519PrivateKey) -> bool:
    try:
        verify_envelope(sealed, kind, run, [public_bytes(key)])
    except BadSignature:
        return False
    return True
