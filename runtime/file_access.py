"""The files that a process may open, by Landlock's rules.

Rules
1. Each path of `read` may be read and run, and what lies below it; each of `write` may be changed too. All other files
   can be neither opened nor listed, made, moved or deleted.
2. Files that are open stay usable. Whom the rules bind: runtime/landlock.py, rule 2.
3. Kernels from 5.13 have such rules, if Landlock is switched on; elsewhere `limit` says so. Not governed are a file's
   facts and rights (stat, chmod), sockets with a path, and before 6.2 truncation without opening.
4. From 6.12 signals and abstract sockets of processes outside are out of reach, too.
"""

import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from echo2.runtime import landlock

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_READ: Final = _EXECUTE | _READ_FILE | _READ_FOLDER
_KNOWN_SINCE: Final = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Version of Landlock -> the rights that it began to know: the first thirteen; to move between folders; to truncate;
to command a device."""
_OF_A_FILE: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _KNOWN_SINCE[3] | _KNOWN_SINCE[5]
"""The rights that a rule of a single file may give."""
_SCOPES: Final = 1 | 2
_SCOPES_SINCE: Final = 6
_RULE: Final = struct.Struct("=Qi")
"""The rights that a rule gives, and the open file or folder."""


def limit(*, read: Iterable[Path], write: Iterable[Path]) -> None:
    """Let this thread, and what it starts, open these files alone (rule 1); a path that does not exist, or that this
    process cannot open, is passed over. Raises `LandlockUnavailable`."""
    known = landlock.version()
    governed = sum(rights for since, rights in _KNOWN_SINCE.items() if since <= known)
    opened = list[tuple[int, int]]()
    try:
        for rights, paths in ((_READ, read), (governed, write)):
            opened += [(rights, file) for file in map(_open, paths) if file is not None]
        rules = [(landlock.PATH_RULE, _RULE.pack(_rights_on(rights, file), file)) for rights, file in opened]
        scopes = _SCOPES if known >= _SCOPES_SINCE else 0
        landlock.bind(landlock.LandlockOrder(rules, files=governed, scopes=scopes))
    finally:
        for _, file in opened:
            os.close(file)


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None


def _rights_on(rights: int, file: int) -> int:
    return rights if stat.S_ISDIR(os.fstat(file).st_mode) else rights & _OF_A_FILE
