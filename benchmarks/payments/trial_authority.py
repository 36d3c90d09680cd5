"""A certificate authority for one demo, and the certificate of a server on 127.0.0.1 that it signs.

Rules
1. The authority's private key is never written: it signs one certificate, and is gone.
2. Both end after a day. Nothing on this machine trusts the authority but what is told to, by its file.
"""

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFE: Final = datetime.timedelta(days=1)
SKEW: Final = datetime.timedelta(minutes=5)
HOST: Final = "127.0.0.1"


class AuthorityFiles(NamedTuple):
    """Paths. `authority`: the certificate that clients trust. `certificate`, `key`: of the server."""

    authority: Path
    certificate: Path
    key: Path


def make_authority(folder: Path, now: datetime.datetime) -> AuthorityFiles:
    """Write the files of an authority and of a server's certificate (rules 1 and 2)."""
    root_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root_name, server_name = _name("echo2 demo authority"), _name("echo2 demo payout provider")
    root = (
        _begun(root_name, root_name, root_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(root_key.public_key()), critical=False)
        .sign(root_key, hashes.SHA256())
    )
    server = (
        _begun(server_name, root_name, server_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(server_key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()), critical=False)
        .sign(root_key, hashes.SHA256())
    )
    files = AuthorityFiles(folder / "authority.pem", folder / "server.crt", folder / "server.pem")
    files.authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    private = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os.fdopen(os.open(files.key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(private)
    return files


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _begun(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + LIFE)
    )
