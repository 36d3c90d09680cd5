"""The key that the coordinator shows over HTTPS, its certificates, and how a node knows it again.

Rules
1. What is pinned is the key, not the certificate: SHA-256 of the SubjectPublicKeyInfo (DER), as in RFC 7469. A
   certificate signs itself, lasts `LIFE`, and is made anew under the same key; no authority vouches for it.
2. A node checks the pin when the handshake has shown that the other side holds the key, and before it sends a byte of
   HTTP. A certificate's dates are not looked at: a clock that is wrong must not shut a node out, and the pin says more.
3. The key is P-256, because every TLS stack takes it. Its file is as those of the other keys (p2p/identity.py).
"""

import asyncio
import datetime
import hashlib
import ssl
from pathlib import Path
from typing import Final

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from p2p.errors import LocalNetworkFault, WrongIdentity
from p2p.identity import load_any_key, write_key

LIFE: Final = datetime.timedelta(days=730)
RENEW_BEFORE: Final = datetime.timedelta(days=90)
"""A certificate that ends sooner is made anew at the next start."""
_CLOCKS: Final = datetime.timedelta(days=2)
"""By so much a certificate begins before it is made: clocks differ."""


def make_key(path: Path, passphrase: str | None = None) -> None:
    """A new key file. Raises `LocalNetworkFault` where one exists."""
    write_key(path, ec.generate_private_key(ec.SECP256R1()), passphrase)


def certificate(key_file: Path, name: str, now: datetime.datetime, passphrase: str | None = None) -> bytes:
    """A new certificate (PEM) under the key. `name`: its subject, for people. Raises `LocalNetworkFault`."""
    key = _load(key_file, passphrase)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS)
        .not_valid_after(now + LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return signed.public_bytes(serialization.Encoding.PEM)


def serves(pem: bytes, key_file: Path, now: datetime.datetime, passphrase: str | None = None) -> bool:
    """Whether a certificate (PEM) is of this key and lasts a while yet. Raises `LocalNetworkFault` (the key)."""
    try:
        certificate_ = x509.load_pem_x509_certificate(pem)
    except ValueError:
        return False
    return (
        certificate_.not_valid_after_utc - now > RENEW_BEFORE
        and certificate_.public_key() == _load(key_file, passphrase).public_key()
    )


def pin_of(pem: bytes) -> bytes:
    """What nodes pin (rule 1), 32 bytes. Raises `LocalNetworkFault` where it is no certificate."""
    try:
        return _spki_hash(x509.load_pem_x509_certificate(pem))
    except ValueError as error:
        raise LocalNetworkFault("the HTTPS certificate is damaged: remove it, the coordinator makes another") from error


def server_context(certificate_file: Path, key_file: Path, passphrase: str | None = None) -> ssl.SSLContext:
    """TLS 1.3 for a server that shows this certificate. Raises `LocalNetworkFault`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate_file, key_file, lambda: passphrase or "")
    except (OSError, ssl.SSLError) as error:
        raise LocalNetworkFault(f"{certificate_file} or {key_file} cannot be used for HTTPS: {error}") from error
    return context


class KeyPin(aiohttp.Fingerprint):
    """For aiohttp's `ssl` argument: who answers must hold the pinned key, whatever else its certificate says."""

    def __init__(self, pin: bytes) -> None:
        """`pin`: 32 bytes, see `pin_of`."""
        super().__init__(pin)

    def check(self, transport: asyncio.Transport) -> None:
        """aiohttp calls this when the handshake is done. Raises `WrongIdentity`."""
        connection = transport.get_extra_info("ssl_object")
        shown = connection.getpeercert(binary_form=True) if connection is not None else None
        if shown is None or _spki_hash(x509.load_der_x509_certificate(shown)) != self.fingerprint:
            transport.abort()
            raise WrongIdentity("the coordinator's HTTPS identity differs from the invite's: somebody stands between, "
                                "or the invite is of another run")  # fmt: skip


def _spki_hash(certificate_: x509.Certificate) -> bytes:
    spki = certificate_.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(spki).digest()


def _load(path: Path, passphrase: str | None) -> ec.EllipticCurvePrivateKey:
    key = load_any_key(path, passphrase)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise LocalNetworkFault(f"key file {path} holds no P-256 key")
    return key
