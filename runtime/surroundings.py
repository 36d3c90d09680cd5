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
    for matches, tell in _TABLE:
        if matches(error):
            return tell(error)
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


def _tell_user(error: BaseException) -> Told:
    return Told(
        f"the user {os.getuid()} has no entry in the list of users and no HOME: set HOME to a folder that it may write "
        "in (with docker: -e HOME=/data -v VOLUME:/data)",
        Exit.CONFIG,
    )


def _tell_locked(error: BaseException) -> Told:
    return Told(
        "a database is locked: another process has it open, or its folder lies on a network disk (NFS) whose locks do "
        "not work: end the other process, or move the folder to a disk of this machine",
        Exit.TEMPORARY,
    )


def _tell_no_locks(error: BaseException) -> Told:
    return Told(
        f"the disk of {_place(error)} has no locks, as NFS without its lock service: move the folder to a disk of this "
        "machine",
        Exit.CONFIG,
    )


def _tell_read_only(error: BaseException) -> Told:
    return Told(
        f"cannot write {_place(error)}: {os.strerror(errno.EROFS)} or not permitted; name a folder that user "
        f"{os.getuid()} may write in",
        Exit.CONFIG,
    )


def _tell_open_files(error: BaseException) -> Told:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MANY_FILES if hard == resource.RLIM_INFINITY else min(MANY_FILES, hard)
    by_hand = f"`ulimit -n {most}`, " if most > soft else ""
    return Told(
        f"this process may have {soft} files and connections open, and has reached that: raise it, as with {by_hand}"
        f"LimitNOFILE={MANY_FILES} in a unit of systemd or docker's --ulimit nofile={MANY_FILES}",
        Exit.TEMPORARY,
    )


def _tell_no_room(error: BaseException) -> Told:
    inside = _place(error).startswith(tempfile.gettempdir())
    fix = "set TMPDIR to a folder with room" if inside else "make room there"
    return Told(f"no space is left for {_place(error)}: {fix}", Exit.TEMPORARY)


def _tell_database_full(error: BaseException) -> Told:
    return Told("no space is left for a database: make room on its disk", Exit.TEMPORARY)


def _tell_disk(error: BaseException) -> Told:
    return Told(
        f"the disk does not read or write as it should ({error}): check it, and the log of the kernel", Exit.CONFIG
    )


def _tell_stale(error: BaseException) -> Told:
    return Told(
        f"the network disk has lost {_place(error)} ({os.strerror(errno.ESTALE)}): it was removed or replaced on the "
        "server; start again once that is back",
        Exit.TEMPORARY,
    )


def _tell_memory(error: BaseException) -> Told:
    return Told("no memory is left: end other programs, or take a smaller model", Exit.TEMPORARY)


def _tell_threads(error: BaseException) -> Told:
    return Told(
        "no further thread can be started: the limit of processes of this user or control group is reached (`ulimit "
        "-u`, pids.max)",
        Exit.TEMPORARY,
    )


_Row = tuple[Callable[[BaseException], bool], Callable[[BaseException], Told]]
_TABLE: Final[tuple[_Row, ...]] = (
    (_says(KeyError, r"getpwuid\(\): uid not found"), _tell_user),
    (_says(RuntimeError, r"[Cc]ould not determine (the )?home directory"), _tell_user),
    (_lacks_descriptors, _tell_open_files),
    (_database_says("locked|locking protocol"), _tell_locked),
    (_database_says("readonly database|unable to open database"), _tell_read_only),
    (_database_says("disk is full"), _tell_database_full),
    (_database_says("disk I/O error"), _tell_disk),
    (_of_system(errno.ENOLCK), _tell_no_locks),
    (_of_system(errno.EROFS, errno.EACCES), _tell_read_only),
    (_of_system(errno.EMFILE, errno.ENFILE), _tell_open_files),
    (_of_system(errno.ENOSPC, errno.EDQUOT), _tell_no_room),
    (_of_system(errno.EIO), _tell_disk),
    (_of_system(errno.ESTALE), _tell_stale),
    (_of_system(errno.ENOMEM), _tell_memory),
    (lambda error: isinstance(error, MemoryError), _tell_memory),
    (_says(RuntimeError, "can't start new thread"), _tell_threads),
)
"""Foreign errors, and the functions that tell of them; the first that matches counts."""
