"""Verify Ed25519 signatures by one rule, and keys where they are named. Pure.

Rules
1. A signature is R || S. It holds if S is below the order L; if the key A and R are canonical encodings of points that
   are not of small order; and if R is, byte for byte, the encoding of [S]B - [k]A, without the cofactor, with
   k = SHA-512(R || A || data) mod L. libsodium 1.0.20 has this rule. Each program that verifies a document of a run
   goes by it: a document that is valid for some nodes alone divides them.
2. OpenSSL, by the library cryptography, keeps all of it but for `REFUSED_KEYS`: the 48 encodings that are not
   canonical, or of points of small order. Under a key of small order a signature holds for any data.
3. Such a key is refused where it is named (`check_key`), by a Root, an invite or a peer id, and not only where it
   signs. Under one that is no point of the curve no signature holds, in any program.
"""

from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from echo2.p2p.errors import Malformed

_P: Final = (1 << 255) - 19
_OF_ORDER_8: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
"""The y of two points of order 8; that of the two others is its negative."""
_SMALL_ORDER_Y: Final = (0, 1, _P - 1, _OF_ORDER_8, _P - _OF_ORDER_8)
REFUSED_KEYS: Final = frozenset(
    (y + (sign << 255)).to_bytes(32, "little") for y in (*_SMALL_ORDER_Y, *range(_P, 1 << 255)) for sign in (0, 1)
)
"""Encodings of points of small order, and those that are not canonical (rule 2)."""


def verifies(key: bytes, signature: bytes, data: bytes) -> bool:
    """Tell whether a signature of `data` holds under a key (rule 1)."""
    if key in REFUSED_KEYS or signature[:32] in REFUSED_KEYS:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def check_key(key: bytes) -> None:
    """Check a public key that is named (rule 3). Raises `Malformed`."""
    if len(key) != 32:
        raise Malformed("a public key has 32 bytes")
    if key in REFUSED_KEYS:
        raise Malformed(f"the key {key.hex()} is of small order, or not canonical: anybody could sign under it")
