"""`echo2-node keys backup | rotate | dispute`: a copy of this node's key, another key in its place, and a word against
one that somebody else put there.

Rules
1. No daemon runs meanwhile, and no group waits for its answer: a group belongs to the key that leased it.
2. For each run that was joined the old key signs who replaces it (protocol/succession.py); each greeting brings that.
3. Files are written in this order, each durable: the new key beside the old one, the statements, a copy of the old key
   under its fingerprint, and the new key in its place. A command that was killed is repeated, and goes on with the key
   that it had made.
4. Receipts stay with the key that earned them, and asks with the key that sealed them: each run's outbox and market are
   put aside under the fingerprint of that key.
5. A dispute is of the present key alone: a later key of this home does not bring it.
6. A key is not replaced while a run that was joined has not answered that it replaced another: that statement would be
   lost, and with it standing and balance of the key before. Nor within a day of that answer: a run passes standing on
   once per day (coordinator/accounts/key_successor.py), and the key after it would work without. The owner may give
   these up.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.node.errors import BadConfig
from echo2.node.home import lock_home
from echo2.node.rollouts.outbox import count_waiting
from echo2.node.trust.trust_store import stored_run
from echo2.p2p.errors import BadSignature, Malformed
from echo2.p2p.identity import generate_key, load_key, peer_id, public_bytes, write_key
from echo2.protocol import succession
from echo2.runtime.figures import number_of
from echo2.runtime.files import sync_folder, writing
from echo2.runtime.units import DAY, minute

CHAIN: Final = (
    "the old key replaced another one before: what is still to come from that one goes to the old key first, at its "
    "own time, and from there to the new one"
)
"""Sentence for the owner who replaces a key that replaced another."""
SUCCESSION: Final = "succession"
"""The statement's file in the folder of a run."""
HEARD_FILE: Final = "succession.heard"
"""The file in the folder of a run that names the key whose statement the run has answered, by peer id, and when it did
first, ms."""
DISPUTE_FILE: Final = "dispute"
"""The file in the folder of a run that names a key whose replacement its owner disputes, by peer id."""


def own_key(home: Path, passphrase: str | None) -> Ed25519PrivateKey:
    """Return the key of the node in `home`. Raises `BadConfig`, `LocalFault`."""
    path = home / "node.key"
    if not path.exists():
        raise BadConfig(f"no key file at {path}: name the folder of a node with --home; its first `join` makes the key")
    return load_key(path, passphrase)


def backup(home: Path, copy: Path, passphrase: str | None) -> list[str]:
    """Write a copy of the key, under the same passphrase; return lines for the owner. Raises `LocalFault`."""
    key = own_key(home, passphrase)
    write_key(copy, key, passphrase)
    kept = "encrypted by its passphrase" if passphrase else "in the clear"
    return [f"key of {peer_id(public_bytes(key))} copied to {copy}, {kept}", "keep it on another disk"]


def rotate(home: Path, passphrase: str | None, now: int, *, give_up: bool = False) -> list[str]:
    """Replace the key; return lines for the owner. `now`: ms. `give_up`: also against rule 6. Raises `NodeError`,
    `LocalFault`."""
    own_key(home, passphrase)  # no lock file is made in a folder without a node
    with lock_home(home):
        old, fresh = own_key(home, passphrase), home / "node.key.new"
        name = hashlib.sha256(public_bytes(old)).hexdigest()[:16]
        runs = sorted(path for path in (home / "runs").glob("*") if (path / "trust").is_dir())
        for folder in runs:
            _check_settled(folder)
        if not give_up:
            _check_passed_on(runs, public_bytes(old), now)
        followed = any(_heard_at(folder, public_bytes(old)) is not None for folder in runs)
        if not fresh.exists():
            write_key(fresh, generate_key(), passphrase)
        new = load_key(fresh, passphrase)
        for folder in runs:
            run = stored_run(folder / "trust")
            if run is not None:
                with writing(folder / SUCCESSION) as file:
                    file.write(succession.make(run, old, new, now))
            _put_aside(folder, name)
        kept = home / f"node-{name}.key"
        if not kept.exists():
            write_key(kept, old, passphrase)
        os.replace(fresh, home / "node.key")
        sync_folder(home)
    return [
        f"this node is now {peer_id(public_bytes(new))}, before {peer_id(public_bytes(old))}",
        f"its standing follows at the next start, in {number_of(len(runs), 'joined run')}; the old key is in {kept}",
        "money follows 72 hours after that: name the account of the new key by `echo2-node payout set` by then",
        *([CHAIN] if followed else []),
        "points stay with the old key, also on the run's page",
    ]


def record_replacement(folder: Path, key: bytes, now: int) -> None:
    """Record that the run of `folder` has answered that this key, 32 bytes, replaced another (rule 6). `now`: ms."""
    if _heard_at(folder, key) is None:
        with writing(folder / HEARD_FILE) as file:
            file.write(f"{peer_id(key)} {now}".encode())


def dispute(home: Path, passphrase: str | None) -> list[str]:
    """Have the node dispute, in each run that was joined, that its key was replaced; return lines for the owner. Raises
    `NodeError`, `LocalFault`."""
    name = peer_id(public_bytes(own_key(home, passphrase)))
    runs = sorted(path for path in (home / "runs").glob("*") if (path / "trust").is_dir())
    if not runs:
        raise BadConfig(f"no run was joined in {home}: there is no balance to keep")
    for folder in runs:
        with writing(folder / DISPUTE_FILE) as file:
            file.write(name.encode())
    return [
        f"the next start of this node disputes that {name} was replaced, in {number_of(len(runs), 'joined run')}",
        "start it before the balance moves: the run's answer says what became of it",
    ]


def disputes(folder: Path, key: bytes) -> bool:
    """Tell whether the owner disputes that this key, 32 bytes, was replaced in the run of `folder` (rule 5)."""
    path = folder / DISPUTE_FILE
    return path.exists() and path.read_text(errors="replace") == peer_id(key)


def _check_passed_on(runs: Sequence[Path], key: bytes, now: int) -> None:
    """Check that standing and balance of a key before this one, 32 bytes, have come to it (rule 6). Raises
    `BadConfig`."""
    unheard = [folder for folder in runs if _is_unheard(folder, key)]
    if unheard:
        raise BadConfig(
            f"this key replaced another one, of which {number_of(len(unheard), 'joined run')} did not hear yet: start "
            "the node once, so that standing and balance follow, and repeat this; --give-up leaves them to the key "
            "before"
        )
    again = max((at + DAY for folder in runs if (at := _heard_at(folder, key)) is not None), default=now)
    if now < again:
        raise BadConfig(
            "this key replaced another one less than a day ago, and a run passes standing and balance on once per day: "
            f"repeat this after {minute(again)}; with --give-up both "
            "stay with the present key, as does the balance that is still to come to it"
        )


def _heard_at(folder: Path, key: bytes) -> int | None:
    """Return when the run of `folder` first answered that this key replaced another, ms; None: it did not."""
    path = folder / HEARD_FILE
    name, _, at = path.read_text(errors="replace").partition(" ") if path.exists() else ("", "", "")
    if name != peer_id(key):
        return None
    return int(at)


def _is_unheard(folder: Path, key: bytes) -> bool:
    """Tell whether a statement that this key replaced another waits for the run's first answer (rule 6)."""
    run, statement = stored_run(folder / "trust"), folder / SUCCESSION
    if run is None or not statement.exists():
        return False
    try:
        succession.open_succession(statement.read_bytes(), run, key)
    except (BadSignature, Malformed):
        return False  # of an earlier key, or of one that a killed rotation has made (rule 3)
    return _heard_at(folder, key) is None


def _put_aside(folder: Path, name: str) -> None:
    """Put the files of the old key aside (rule 4), under names that are free."""
    for kind in ("outbox", "market"):
        path = folder / f"{kind}.sqlite"
        if path.exists():
            taken = len(list(folder.glob(f"{kind}-{name}*.sqlite")))
            os.replace(path, folder / f"{kind}-{name}{f'-{taken + 1}' if taken else ''}.sqlite")
    sync_folder(folder)


def _check_settled(folder: Path) -> None:
    if waiting := count_waiting(folder):
        raise BadConfig(
            f"{number_of(waiting, 'group')} in {folder} without an answer under the present key: start the node "
            "once more, let `echo2-node finish` end it, and repeat this"
        )
