"""Identity keys of libp2p by the library cryptography, in place of PyNaCl, pycryptodome and coincurve.

Ours are Ed25519. A foreign peer's may also be RSA or secp256k1; of these only public keys are needed.
"""

from typing import Any, ClassVar, Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from echo2._libp2p.crypto.keys import KeyPair, KeyType, PrivateKey, PublicKey
from echo2.p2p.signatures import verifies

RSA_BITS_MAX: Final = 4096
"""Longest RSA key that is read, as upstream has it: a check takes time that grows with the square of the length."""


class Ed25519PublicKey(PublicKey):
    """An Ed25519 public key."""

    def __init__(self, key: ed25519.Ed25519PublicKey) -> None:
        self._key = key

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read 32 bytes. Raises ValueError."""
        return cls(ed25519.Ed25519PublicKey.from_public_bytes(data))

    def to_bytes(self) -> bytes:
        return self._key.public_bytes_raw()

    def get_type(self) -> KeyType:
        return KeyType.Ed25519

    def verify(self, data: bytes, signature: bytes) -> bool:
        return verifies(self.to_bytes(), signature, data)


class Ed25519PrivateKey(PrivateKey):
    """An Ed25519 private key."""

    def __init__(self, key: ed25519.Ed25519PrivateKey) -> None:
        self._key = key

    def to_bytes(self) -> bytes:
        return self._key.private_bytes_raw()

    def get_type(self) -> KeyType:
        return KeyType.Ed25519

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)

    def get_public_key(self) -> PublicKey:
        return Ed25519PublicKey(self._key.public_key())


class _ForeignKey(PublicKey):
    """The public key of a foreign peer. `_scheme`: what its `verify` takes beside a signature and the data."""

    _scheme: ClassVar[tuple[Any, ...]]

    def __init__(self, key: Any) -> None:
        self._key = key

    def verify(self, data: bytes, signature: bytes) -> bool:
        try:
            self._key.verify(signature, data, *self._scheme)
        except InvalidSignature:
            return False
        return True


class RSAPublicKey(_ForeignKey):
    """An RSA public key; signatures are PKCS #1 v1.5 of SHA-256."""

    _scheme = (padding.PKCS1v15(), SHA256())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a key in DER. Raises ValueError."""
        key = load_der_public_key(data)
        if not isinstance(key, rsa.RSAPublicKey) or key.key_size > RSA_BITS_MAX:
            raise ValueError(f"no RSA key of at most {RSA_BITS_MAX} bits")
        return cls(key)

    def to_bytes(self) -> bytes:
        return bytes(self._key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))

    def get_type(self) -> KeyType:
        return KeyType.RSA


class Secp256k1PublicKey(_ForeignKey):
    """A secp256k1 public key; signatures are ECDSA of SHA-256, in DER."""

    _scheme = (ec.ECDSA(SHA256()),)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a point. Raises ValueError."""
        return cls(ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256K1(), data))

    def to_bytes(self) -> bytes:
        return bytes(self._key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint))

    def get_type(self) -> KeyType:
        return KeyType.Secp256k1


def create_new_key_pair(seed: bytes | None = None) -> KeyPair:
    """Return an Ed25519 key pair. `seed`: the 32 bytes of the private key, None for a new one."""
    private = ed25519.Ed25519PrivateKey.from_private_bytes(seed) if seed else ed25519.Ed25519PrivateKey.generate()
    key = Ed25519PrivateKey(private)
    return KeyPair(key, key.get_public_key())
