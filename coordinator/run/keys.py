"""The run's keys: one file per role and key, made at init and by `echo2-coord keys rotate` and `revoke`.

1. `root` signs the Root and the RunSpec and nothing else; a running coordinator never reads it. Take it offline.
2. `policy`, `channel` and `ledger` are held by the coordinator's main process alone, never by learner or scorer.
3. The network identity is the channel key of the first Root, for the run's life: addresses and invites never change. It
   lies in `network.pem` from the first rotation of the channel key on, and in `channel.pem` before.
4. A passphrase comes from `ECHO2_KEY_PASSPHRASE` and covers the files of all. It is never written anywhere.
5. The key of `init` lies in `ROLE.pem`, each later one in `ROLE-DIGITS.pem`, named by its fingerprint. A key file is
   never overwritten, so the one that a Root names is there whichever of two Roots was the last to become durable.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.run.run_folder import RunFolder
from p2p.identity import generate_key, load_key, peer_id, public_bytes, write_key
from protocol.authority import RoleKeys, Root
from runtime.errors import LocalFault

PASSPHRASE_VARIABLE: Final = "ECHO2_KEY_PASSPHRASE"
ROOT: Final = "root"
ONLINE: Final = ("policy", "channel", "ledger")
ROLES: Final = (ROOT, *ONLINE)
NETWORK: Final = "network"


@dataclass(frozen=True)
class RunKeys:
    """The private keys of a running coordinator, kept out of every repr. `network`: who it is among peers."""

    policy: Ed25519PrivateKey = field(repr=False)
    channel: Ed25519PrivateKey = field(repr=False)
    ledger: Ed25519PrivateKey = field(repr=False)
    network: Ed25519PrivateKey = field(repr=False)


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
        return spaced(self.public)

    @property
    def peer(self) -> str:
        """The key's libp2p peer id."""
        return peer_id(self.public)


def passphrase() -> str | None:
    """From the environment; None: keys are not encrypted."""
    return os.environ.get(PASSPHRASE_VARIABLE) or None


def digits(public: bytes) -> str:
    """Return the fingerprint of a public key: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(public).hexdigest()[:16]


def spaced(public: bytes) -> str:
    """Return the fingerprint in fours, for people."""
    text = digits(public)
    return " ".join(text[at : at + 4] for at in range(0, 16, 4))


def key_path(folder: RunFolder, role: str) -> Path:
    """Return where the key of `init` lies."""
    return folder.keys / f"{role}.pem"


def path_in(place: Path, role: str, public: bytes) -> Path:
    """Return where in the folder `place` the file of this key lies, or would lie (rule 5)."""
    later = place / f"{role}-{digits(public)}.pem"
    return later if later.exists() else place / f"{role}.pem"


def path_of(folder: RunFolder, role: str, root: Root) -> Path:
    """Return where the key of a role lies by what this Root says: the first that is there."""
    paths = [path_in(folder.keys, role, public) for public in root.roles[role].keys]
    return next((path for path in paths if path.exists()), paths[0])


def network_path(folder: RunFolder) -> Path:
    """Return where the network identity lies (rule 3)."""
    return folder.keys / f"{NETWORK}.pem"


def identity(first: Root) -> bytes:
    """Return the public key of the network identity, by the run's first Root (rule 3)."""
    return first.roles["channel"].keys[0]


def make(folder: RunFolder, secret: str | None) -> dict[str, Ed25519PrivateKey]:
    """New keys for every role, written with mode 0600. Raises `LocalFault` where one exists."""
    keys = {role: generate_key() for role in ROLES}
    for role, key in keys.items():
        write_key(key_path(folder, role), key, secret)
    return keys


def make_next(place: Path, role: str, secret: str | None) -> bytes:
    """Make another key of a role in the folder `place`, mode 0600 and durable; its public half. Raises `LocalFault`."""
    key = generate_key()
    write_key(place / f"{role}-{digits(public_bytes(key))}.pem", key, secret)
    return public_bytes(key)


def keep_identity(folder: RunFolder, chain: Sequence[Root], secret: str | None) -> None:
    """Keep the network identity as `network.pem` before the channel key of the first Root goes (rule 3)."""
    if not network_path(folder).exists():
        write_key(network_path(folder), _load_identity(folder, chain[0], secret), secret)


def load(folder: RunFolder, chain: Sequence[Root], secret: str | None) -> RunKeys:
    """Return the three online keys, each checked to be one that the newest Root names, and the network identity. Raises
    `LocalFault` with the fix."""
    online = {role: _load(folder, chain[-1], role, secret) for role in ONLINE}
    return RunKeys(**online, network=_load_identity(folder, chain[0], secret))


def _load(folder: RunFolder, root: Root, role: str, secret: str | None) -> Ed25519PrivateKey:
    path = path_of(folder, role, root)
    if not path.exists():
        raise LocalFault(
            f"no key file at {path}: put it back from your backup, or take another key with "
            f"`echo2-coord keys rotate {role}`"
        )
    key = load_key(path, secret)
    if public_bytes(key) not in root.roles[role].keys:
        raise LocalFault(
            f"key file {path} is not this run's {role} key of Root {root.serial} "
            f"({spaced(root.roles[role].keys[0])}): put that one back, or rotate the key"
        )
    return key


def _load_identity(folder: RunFolder, first: Root, secret: str | None) -> Ed25519PrivateKey:
    path = network_path(folder) if network_path(folder).exists() else key_path(folder, "channel")
    if not path.exists():
        raise LocalFault(f"no key file at {path}: put it back from your backup; all addresses of this run end in it")
    key = load_key(path, secret)
    if public_bytes(key) != identity(first):
        raise LocalFault(
            f"key file {path} is not the network identity of this run, its first channel key: put that one back as "
            f"{network_path(folder)}"
        )
    return key


def role_keys(keys: dict[str, Ed25519PrivateKey]) -> dict[str, RoleKeys]:
    """The roles of a Root in which one key signs for each."""
    return {role: RoleKeys(keys=[public_bytes(key)], threshold=1) for role, key in keys.items()}


def shown(folder: RunFolder, chain: Sequence[Root]) -> list[KeyFile]:
    """Return one line per role, first key of each, by what the newest Root says; and the network identity."""
    newest = chain[-1]
    newest_keys = [(role, path_of(folder, role, newest), newest.roles[role].keys[0]) for role in ROLES]
    if network_path(folder).exists():
        newest_keys.append((NETWORK, network_path(folder), identity(chain[0])))
    return [KeyFile(role, path, public, path.exists()) for role, path, public in newest_keys]
