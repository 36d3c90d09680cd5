"""One daemon to a home folder: a lock (flock) that the kernel takes back when its holder dies, however it dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node.errors import BadConfig, TryLater


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Hold `home` for the block. Raises `TryLater` when a daemon holds it, or its disk is full; `BadConfig` when it
    cannot be written."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BadConfig(f"cannot write to {home}: {error.strerror}; choose another folder with --home") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            raise TryLater(
                f"a node already runs in {home} (process {holder or '?'}): stop it, or choose another --home"
            ) from error
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except OSError as error:
            raise TryLater(f"no room to write {home / 'lock'} ({error.strerror}): free space there") from error
        yield
    finally:
        os.close(descriptor)
