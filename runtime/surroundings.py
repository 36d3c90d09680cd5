"""Faults of the surroundings, told as such: foreign errors, each with a sentence that a person can act on.

A command that ends with such an error has met a disk, a user or a limit that is not as it should be, and no fault of
this program. `cli_errors` asks here for each error without an exit code of its own; "internal fault" is left for ours.
"""

import errno
import os
import re
import resource
import tempfile
from collections.abc import Callable
from typing import Final, NamedTuple

from echo2.runtime.exit_codes import Exit

MANY_FILES: Final = 4096


class Told(NamedTuple):
    """A sentence for a person, and the exit code."""

    sentence: str
    code: Exit


def describe(error: BaseException) -> Told | None:
    """Return what an error says of the surroundings; None: nothing, so that it is a fault of this program."""
    for matches, words, code in _TABLE:
        if matches(error):
            if not isinstance(words, str):
                return Told(words(error), code)
            return Told(words.format(error=error, place=_place(error), user=os.getuid()), code)
    return None


def sentence_of(error: BaseException, otherwise: str) -> str:
    """Return the sentence about an error: the table's, else another one."""
    told = describe(error)
    return otherwise if told is None else told.sentence


def _of_system(*numbers: int) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, OSError) and error.errno in numbers


def _says(kind: type[BaseException], pattern: str) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, kind) and re.search(pattern, str(error)) is not None


def _database_says(pattern: str) -> Callable[[BaseException], bool]:
    """Match an error of sqlite3, which most commands never load."""
    return lambda error: (
        (type(error).__module__, type(error).__name__) == ("sqlite3", "OperationalError")
        and re.search(pattern, str(error)) is not None
    )


def _lacks_descriptors(error: BaseException) -> bool:
    """Tell whether SQLite failed, whatever it says, because this process can open nothing more."""
    if not _database_says("unable to open database|disk I/O error")(error):
        return False
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as none_left:
        return none_left.errno in (errno.EMFILE, errno.ENFILE)
    return False


def _place(error: BaseException) -> str:
    name = getattr(error, "filename", None)
    return str(name) if name else "a file"


def _open_files(error: BaseException) -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MANY_FILES if hard == resource.RLIM_INFINITY else min(MANY_FILES, hard)
    by_hand = f"`ulimit -n {most}`, " if most > soft else ""
    return (
        f"this process may have {soft} files and connections open, and has reached that: raise it, as with {by_hand}"
        f"LimitNOFILE={MANY_FILES} in a unit of systemd or docker's --ulimit nofile={MANY_FILES}"
    )


def _no_room(error: BaseException) -> str:
    inside = _place(error).startswith(tempfile.gettempdir())
    fix = "set TMPDIR to a folder with room" if inside else "make room there"
    return f"no space is left for {_place(error)}: {fix}"


_USER: Final = (
    "the user {user} has no entry in the list of users and no HOME: set HOME to a folder that it may write in (with "
    "docker: -e HOME=/data -v VOLUME:/data)"
)
_READ_ONLY: Final = (
    f"cannot write {{place}}: {os.strerror(errno.EROFS)} or not permitted; "
    "name a folder that user {user} may write in"
)
_DISK: Final = "the disk does not read or write as it should ({error}): check it, and the log of the kernel"
_MEMORY: Final = "no memory is left: end other programs, or take a smaller model"

_Row = tuple[Callable[[BaseException], bool], str | Callable[[BaseException], str], Exit]
_TABLE: Final[tuple[_Row, ...]] = (
    (_says(KeyError, r"getpwuid\(\): uid not found"), _USER, Exit.CONFIG),
    (_says(RuntimeError, r"[Cc]ould not determine (the )?home directory"), _USER, Exit.CONFIG),
    (_lacks_descriptors, _open_files, Exit.TEMPORARY),
    (
        _database_says("locked|locking protocol"),
        "a database is locked: another process has it open, or its folder lies on a network disk (NFS) whose locks do "
        "not work: end the other process, or move the folder to a disk of this machine",
        Exit.TEMPORARY,
    ),
    (_database_says("readonly database|unable to open database"), _READ_ONLY, Exit.CONFIG),
    (
        _database_says("disk is full"),
        "no space is left for a database: make room on its disk",
        Exit.TEMPORARY,
    ),
    (_database_says("disk I/O error"), _DISK, Exit.CONFIG),
    (
        _of_system(errno.ENOLCK),
        "the disk of {place} has no locks, as NFS without its lock service: move the folder to a disk of this machine",
        Exit.CONFIG,
    ),
    (_of_system(errno.EROFS, errno.EACCES), _READ_ONLY, Exit.CONFIG),
    (_of_system(errno.EMFILE, errno.ENFILE), _open_files, Exit.TEMPORARY),
    (_of_system(errno.ENOSPC, errno.EDQUOT), _no_room, Exit.TEMPORARY),
    (_of_system(errno.EIO), _DISK, Exit.CONFIG),
    (
        _of_system(errno.ESTALE),
        f"the network disk has lost {{place}} ({os.strerror(errno.ESTALE)}): it was removed or replaced on the server; "
        "start again once that is back",
        Exit.TEMPORARY,
    ),
    (_of_system(errno.ENOMEM), _MEMORY, Exit.TEMPORARY),
    (lambda error: isinstance(error, MemoryError), _MEMORY, Exit.TEMPORARY),
    (
        _says(RuntimeError, "can't start new thread"),
        "no further thread can be started: the limit of processes of this user or control group is reached (`ulimit "
        "-u`, pids.max)",
        Exit.TEMPORARY,
    ),
)
"""Foreign errors, the words about them, and the exit code; the first that matches counts."""
