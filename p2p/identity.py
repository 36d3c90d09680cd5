"""Peer identity: an Ed25519 key in a file, and the libp2p peer id derived from its public half.

Rules
1. A key file is PEM (PKCS #8), mode 0600 or stricter, owned by this user; anything looser is refused.
2. A key file is created once, exclusively, and never overwritten. It is complete or absent, even after a power failure.
"""

import os
import stat
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import base58
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from echo2.p2p.errors import LocalNetworkFault, Malformed
from echo2.p2p.signatures import check_key
from echo2.runtime.files import syncing
from echo2.runtime.network_disk import disk_of

# libp2p: an identity multihash (0x00, 36 bytes) of the protobuf {type: Ed25519, data: 32 bytes}.
_PEER_ID_PREFIX = bytes.fromhex("002408011220")


def generate_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@lru_cache(maxsize=64)
def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """Return the public key, 32 raw bytes. Computed once per key object: it takes a third of a signature's time."""
    return key.public_key().public_bytes_raw()


@lru_cache(maxsize=1 << 14)
def peer_id(public_key: bytes) -> str:
    """Return the libp2p peer id (base58, 12D3Koo...) of a 32-byte Ed25519 public key. Raises `Malformed`."""
    if len(public_key) != 32:
        raise Malformed("a public key has 32 bytes")
    return base58.b58encode(_PEER_ID_PREFIX + public_key).decode()


@lru_cache(maxsize=1 << 14)
def public_key(peer: str) -> bytes:
    """Return the 32-byte public key inside an Ed25519 peer id. Raises `Malformed`."""
    raw = _decode_base58(peer)
    if len(raw) != len(_PEER_ID_PREFIX) + 32 or not raw.startswith(_PEER_ID_PREFIX):
        raise Malformed(f"not an Ed25519 peer id: {peer[:80]!r}")
    key = raw[len(_PEER_ID_PREFIX) :]
    check_key(key)
    return key


def check_peer_id(peer: str) -> None:
    """Raise `Malformed` for a text that is no peer id of any key type: a multihash in base58, which is the key itself
    (identity, at most 42 bytes) or its SHA-256."""
    raw = _decode_base58(peer)
    is_key = len(raw) > 2 and raw[0] == 0 and raw[1] == len(raw) - 2 <= 42
    if not (is_key or (len(raw) == 34 and raw[:2] == b"\x12\x20")) or base58.b58encode(raw).decode() != peer:
        raise Malformed(f"not a peer id: {peer[:80]!r}")


def _decode_base58(peer: str) -> bytes:
    try:
        return base58.b58decode(peer)
    except ValueError as error:
        raise Malformed(f"not a peer id: {peer[:80]!r}") from error


def write_key(path: Path, key: Ed25519PrivateKey | EllipticCurvePrivateKey, passphrase: str | None = None) -> None:
    """Write a new key file, mode 0600, durable. Raises `LocalNetworkFault` if it exists or cannot be written."""
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        encryption = serialization.BestAvailableEncryption(passphrase.encode())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    draft = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        with syncing(path.parent):
            os.link(draft, path)  # unlike a rename, it never overwrites
            draft.unlink()
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        if isinstance(error, FileExistsError) and path.exists():
            raise LocalNetworkFault(f"key file {path} exists: it is never overwritten; move it away first") from error
        raise LocalNetworkFault(f"cannot write key file {path}: {error.strerror}") from error


def _ownership_fix(path: Path) -> str:
    if os.geteuid() == 0 and disk_of(path.parent).is_shared:
        return "the server of this network disk gives root's files to another one, so run this as a user, not as root"
    return f"run chown {os.geteuid()} {path}"


def load_key(path: Path, passphrase: str | None = None) -> Ed25519PrivateKey:
    """Read a key file. Raises `LocalNetworkFault`, whose sentence says how to fix it: the file is missing, damaged,
    open to others, another user's or of another kind of key, or the passphrase is wrong."""
    key = load_any_key(path, passphrase)
    if not isinstance(key, Ed25519PrivateKey):
        raise LocalNetworkFault(f"key file {path} contains no Ed25519 key")
    return key


def load_any_key(path: Path, passphrase: str | None = None) -> PrivateKeyTypes:
    """Read a key file of any kind, under rule 1. Raises `LocalNetworkFault` as `load_key` does."""
    try:
        status = path.stat()
        pem = path.read_bytes()
    except FileNotFoundError as error:
        raise LocalNetworkFault(f"no key file at {path}") from error
    except OSError as error:
        raise LocalNetworkFault(f"cannot read key file {path}: {error.strerror}") from error
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise LocalNetworkFault(f"key file {path} is open to others: run chmod 600 {path}")
    if status.st_uid != os.geteuid():
        raise LocalNetworkFault(f"key file {path} belongs to another user: {_ownership_fix(path)}")
    try:
        return serialization.load_pem_private_key(pem, passphrase.encode() if passphrase else None)
    except TypeError as error:
        encrypted = "not given" in str(error)
        fix = "needs a passphrase: set" if encrypted else "takes no passphrase, as it is not encrypted: unset"
        raise LocalNetworkFault(f"key file {path} {fix} ECHO2_KEY_PASSPHRASE") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        reason = "the passphrase is wrong, or it is damaged" if passphrase else "it is no PEM key"
        raise LocalNetworkFault(f"key file {path} cannot be read: {reason}") from error


def load_or_create_key(path: Path, passphrase: str | None = None) -> Ed25519PrivateKey:
    """Read the key in `path`, creating the file first if there is none."""
    if not path.exists():
        write_key(path, generate_key(), passphrase)
    return load_key(path, passphrase)
