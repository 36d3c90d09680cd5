"""An RSA identity for the bundled libp2p, which itself reads public RSA keys alone."""

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from echo2._libp2p.crypto.keys import KeyPair, KeyType, PrivateKey
from echo2.p2p.libp2p.identity_keys import RSAPublicKey


class RSAPrivateKey(PrivateKey):
    """An RSA private key; signatures are PKCS #1 v1.5 of SHA-256."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        self._key = key

    def to_bytes(self) -> bytes:
        return self._key.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption())

    def get_type(self) -> KeyType:
        return KeyType.RSA

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data, padding.PKCS1v15(), SHA256())

    def get_public_key(self) -> RSAPublicKey:
        return RSAPublicKey(self._key.public_key())


def create_new_key_pair(bits: int = 2048) -> KeyPair:
    private = RSAPrivateKey(rsa.generate_private_key(65537, bits))
    return KeyPair(private, private.get_public_key())
