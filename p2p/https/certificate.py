"""The coordinator's HTTPS key and certificates, and the pin by which a node authenticates them.

Rules
1. The pin is of the key, not of the certificate: SHA-256 of the SubjectPublicKeyInfo (DER), as in RFC 7469.
   Certificates are self-signed, last `CERTIFICATE_LIFE`, and are renewed under the same key; no authority is involved.
2. A node checks the pin after the handshake, which proves possession of the key, and before it sends a byte of HTTP. A
   certificate's dates are ignored: a wrong clock must not lock a node out, and the pin is stronger.
3. The key is P-256, because every TLS stack supports it. Its file format is that of the other keys (p2p/identity.py).
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

from echo2.p2p.errors import LocalNetworkFault, PeerFault
from echo2.p2p.identity import load_any_key, write_key

CERTIFICATE_LIFE: Final = datetime.timedelta(days=730)
RENEW_BEFORE: Final = datetime.timedelta(days=90)
"""A certificate that ends sooner is renewed at the next start."""
_CLOCK_SKEW: Final = datetime.timedelta(days=2)
"""Backdating of a certificate, for clock skew."""


def make_key(path: Path, passphrase: str | None = None) -> None:
    """Create a key file. Raises `LocalNetworkFault` where one exists."""
    write_key(path, ec.generate_private_key(ec.SECP256R1()), passphrase)


def certificate(key_file: Path, name: str, now: datetime.datetime, passphrase: str | None = None) -> bytes:
    """Return a new certificate (PEM) under the key. `name`: its subject, for people. Raises `LocalNetworkFault`."""
    key = _load(key_file, passphrase)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + CERTIFICATE_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return signed.public_bytes(serialization.Encoding.PEM)


def serves(pem: bytes, key_file: Path, now: datetime.datetime, passphrase: str | None = None) -> bool:
    """Tell whether a certificate (PEM) is of this key and lasts longer than `RENEW_BEFORE`. Raises `LocalNetworkFault`
    (the key)."""
    try:
        certificate_ = x509.load_pem_x509_certificate(pem)
    except ValueError:
        return False
    lasts = certificate_.not_valid_after_utc - now > RENEW_BEFORE
    return lasts and certificate_.public_key() == _load(key_file, passphrase).public_key()


def pin_of(pem: bytes) -> bytes:
    """Return the pin of a certificate (PEM; rule 1), 32 bytes. Raises `LocalNetworkFault` where it is damaged."""
    try:
        return _spki_hash(x509.load_pem_x509_certificate(pem))
    except ValueError as error:
        raise LocalNetworkFault(
            "the HTTPS certificate is damaged: remove it, the coordinator creates another"
        ) from error


def server_context(certificate_file: Path, key_file: Path, passphrase: str | None = None) -> ssl.SSLContext:
    """Return the TLS 1.3 context of a server with this certificate. Raises `LocalNetworkFault`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate_file, key_file, lambda: passphrase or "")
    except (OSError, ssl.SSLError) as error:
        raise LocalNetworkFault(f"{certificate_file} or {key_file} cannot be used for HTTPS: {error}") from error
    return context


class KeyPin(aiohttp.Fingerprint):
    """The key pin (see `pin_of`) in the form of aiohttp's `ssl` argument: the server must hold the pinned key; the rest
    of its certificate is not checked."""

    def check(self, transport: asyncio.Transport) -> None:
        """Check the pin; aiohttp calls this after the handshake. Raises `PeerFault`."""
        connection = transport.get_extra_info("ssl_object")
        shown = connection.getpeercert(binary_form=True) if connection is not None else None
        if shown is None or _spki_hash(x509.load_der_x509_certificate(shown)) != self.fingerprint:
            transport.abort()
            raise PeerFault(
                "HTTPS key mismatch: a proxy is intercepting TLS, or the invite belongs to another run; try another"
                " network, or ask the operator for a new invite"
            )


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
