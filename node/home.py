"""The home folder of a node: the lock of its one daemon, the invite of the run joined last, a folder per run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from echo2.node.errors import AlreadyRuns, BadConfig, TryLater
from echo2.p2p.discovery.invite import Invite
from echo2.runtime.errors import DiskFull
from echo2.runtime.lock import OF_HOME, AlreadyLocked, lock_file


@contextmanager
def lock_home(home: Path) -> Iterator[None]:
    """Create `home` if it is missing, and hold its lock during the `with` block. Raises `AlreadyRuns` if a
    daemon has locked it, `TryLater` if the disk is full, and `BadConfig` if `home` is not writable."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = lock_file(home / OF_HOME, name_holder=True)
    except AlreadyLocked as error:
        raise AlreadyRuns(
            f"a node already runs in {home} (process {error.holder or '?'}): stop it, or choose another --home"
        ) from error
    except DiskFull as error:
        raise TryLater(str(error)) from error
    except OSError as error:
        raise BadConfig(f"cannot write to {home}: {error.strerror}; choose another folder with --home") from error
    with lock:
        yield


def check_place(home: Path) -> None:
    """Check that a home that is not there can be made. Raises `BadConfig`."""
    above = next(folder for folder in home.absolute().parents if os.path.exists(folder))
    if not os.access(above, os.W_OK | os.X_OK):
        raise BadConfig(f"cannot make {home}: {above} is not writable; choose another folder with --home")


def run_folder(home: Path, run: bytes) -> Path:
    """Return the folder of one run's data."""
    return home / "runs" / run.hex()[:16]


LEFT: Final = "invite.left"
"""The invite of a run that was left: its receipts can be read, and `run` does not join it."""


def invite_for_reading(home: Path) -> Invite:
    """Return the invite of the run joined last, also after it was left. Raises as `invite_of_joined_run`."""
    if not (home / "invite").exists() and (home / LEFT).exists():
        return Invite.from_text((home / LEFT).read_text(errors="replace"))
    return invite_of_joined_run(home)


def invite_of_joined_run(home: Path) -> Invite:
    """Return the invite of the run joined last. Raises `BadConfig` if no run was joined, and `LocalFault` if the stored
    invite is damaged."""
    try:
        return Invite.from_text((home / "invite").read_text(errors="replace"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadConfig(f"no run was joined in {home}: give an invite with echo2-node join INVITE") from error
