"""The run's keys: one file a role, made once at init.

1. `root` signs the Root and the RunSpec and nothing else; a running coordinator never reads it. Take it offline.
2. `policy`, `channel` and `ledger` are held by the coordinator's main process alone, never by learner or scorer.
3. The network identity is the channel key: who knows the Root knows which peer is the coordinator.
4. A passphrase comes from `ECHO2_KEY_PASSPHRASE` and covers the files of all. It is never written anywhere.
"""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.folder import RunFolder
from p2p.errors import LocalFault
from p2p.identity import generate_key, load_key, peer_id, public_bytes, write_key
from p2p.messages import RoleKeys, Root

PASSPHRASE_VARIABLE: Final = "ECHO2_KEY_PASSPHRASE"
ROOT: Final = "root"
ONLINE: Final = ("policy", "channel", "ledger")
ROLES: Final = (ROOT, *ONLINE)


@dataclass(frozen=True)
class RunKeys:
    """The private keys of a running coordinator, kept out of every repr."""

    policy: Ed25519PrivateKey = field(repr=False)
    channel: Ed25519PrivateKey = field(repr=False)
    ledger: Ed25519PrivateKey = field(repr=False)


@dataclass(frozen=True)
class KeyFile:
    """What can be told of a key without opening it. `public`: from the Root, 32 bytes. `present`: the file is there."""

    role: str
    path: Path
    public: bytes
    present: bool

    @property
    def fingerprint(self) -> str:
        """First 16 hex digits of SHA-256 of the public key, in fours."""
        digits = hashlib.sha256(self.public).hexdigest()[:16]
        return " ".join(digits[at : at + 4] for at in range(0, 16, 4))

    @property
    def peer(self) -> str:
        """The key's libp2p peer id."""
        return peer_id(self.public)


def passphrase() -> str | None:
    """From the environment; None: keys are not encrypted."""
    return os.environ.get(PASSPHRASE_VARIABLE) or None


def key_path(folder: RunFolder, role: str) -> Path:
    return folder.keys / f"{role}.pem"


def make(folder: RunFolder, secret: str | None) -> dict[str, Ed25519PrivateKey]:
    """New keys for every role, written with mode 0600. Raises `LocalFault` where one exists."""
    keys = {role: generate_key() for role in ROLES}
    for role, key in keys.items():
        write_key(key_path(folder, role), key, secret)
    return keys


def load(folder: RunFolder, root: Root, secret: str | None) -> RunKeys:
    """The three online keys, each checked to be the one that the Root names. Raises `LocalFault` with the fix."""
    return RunKeys(**{role: _load(folder, root, role, secret) for role in ONLINE})


def _load(folder: RunFolder, root: Root, role: str, secret: str | None) -> Ed25519PrivateKey:
    path = key_path(folder, role)
    if not path.exists():
        raise LocalFault(f"no key file at {path}: put it back from your backup; nothing else can sign as {role}")
    key = load_key(path, secret)
    if public_bytes(key) not in root.roles[role].keys:
        raise LocalFault(f"key file {path} is not this run's {role} key: put back the one that init made")
    return key


def role_keys(keys: dict[str, Ed25519PrivateKey]) -> dict[str, RoleKeys]:
    """The roles of a Root in which one key signs for each."""
    return {role: RoleKeys(keys=[public_bytes(key)], threshold=1) for role, key in keys.items()}


def shown(folder: RunFolder, root: Root) -> list[KeyFile]:
    """One line a role, first key of each, by what the Root says."""
    return [
        KeyFile(role, key_path(folder, role), root.roles[role].keys[0], key_path(folder, role).exists())
        for role in ROLES
    ]
