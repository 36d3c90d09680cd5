"""Faults of a user, a disk or a limit are told as such, and end with a code that is not that of our own faults."""

import errno
import os
import pwd
import sqlite3
import tempfile
from pathlib import Path

import pytest

from echo2.runtime.cli_errors import run_command
from echo2.runtime.exit_codes import Exit
from echo2.runtime.surroundings import describe


def error_of(call: object) -> BaseException:
    assert callable(call)
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def locked() -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, second = (sqlite3.connect(Path(folder) / "x", timeout=0, isolation_level=None) for _ in range(2))
        first.execute("BEGIN EXCLUSIVE")
        try:
            second.execute("BEGIN EXCLUSIVE")
        finally:
            first.close()
            second.close()


@pytest.mark.parametrize(
    ("error", "says", "code"),
    [
        (
            error_of(lambda: pwd.getpwuid(54_321)),
            "has no entry in the list of users and no HOME: set HOME",
            Exit.CONFIG,
        ),
        (RuntimeError("Could not determine home directory."), "set HOME to a folder", Exit.CONFIG),
        (error_of(locked), "a database is locked: another process has it open, or its folder lies", Exit.TEMPORARY),
        (sqlite3.OperationalError("database or disk is full"), "no space is left for a database", Exit.TEMPORARY),
        (sqlite3.OperationalError("disk I/O error"), "the disk does not read or write as it should", Exit.CONFIG),
        (sqlite3.OperationalError("attempt to write a readonly database"), "cannot write a file", Exit.CONFIG),
        (OSError(errno.EROFS, "Read-only", "/srv/x"), "cannot write /srv/x", Exit.CONFIG),
        (OSError(errno.EACCES, "denied", "/srv/x"), f"that user {os.getuid()} may write in", Exit.CONFIG),
        (
            OSError(errno.EMFILE, "Too many"),
            "files and connections open, and has reached that: raise it",
            Exit.TEMPORARY,
        ),
        (OSError(errno.ENOLCK, "No locks", "/srv/x"), "the disk of /srv/x has no locks", Exit.CONFIG),
        (
            OSError(errno.ESTALE, "Stale", "/srv/x"),
            "the network disk has lost /srv/x (Stale file handle)",
            Exit.TEMPORARY,
        ),
        (
            OSError(errno.ENOSPC, "full", f"{tempfile.gettempdir()}/x"),
            "set TMPDIR to a folder with room",
            Exit.TEMPORARY,
        ),
        (OSError(errno.ENOSPC, "full", "/srv/x"), "no space is left for /srv/x: make room there", Exit.TEMPORARY),
        (MemoryError(), "no memory is left", Exit.TEMPORARY),
        (RuntimeError("can't start new thread"), "no further thread can be started", Exit.TEMPORARY),
    ],
)
def test_a_fault_of_the_surroundings_is_told_as_one(
    error: BaseException, says: str, code: Exit, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error

    assert run_command(command, "echo2-test", lambda _: None) == code
    written = capsys.readouterr().err
    assert says in written
    assert "internal fault" not in written


@pytest.mark.parametrize(
    "error",
    [KeyError("a"), ValueError("x"), OSError(errno.ENOENT, "missing"), sqlite3.OperationalError("no such table")],
)
def test_our_own_faults_are_not_blamed_on_the_machine(error: Exception) -> None:
    assert describe(error) is None
