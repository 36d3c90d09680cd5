"""Copy run.sqlite while the coordinator runs, and put a copy in its place.

Rules
1. A copy is one transaction's view of the file, whole or absent, readable by its owner alone. An existing file stays.
2. Before a copy counts, at `backup` and at `restore`, SQLite's check and the ledger pass: chain, tree, sums, and every
   LedgerHead with its signature by a key of the run's Roots: also by one revoked since, as an old copy counts too.
3. Nothing is restored while a coordinator holds the folder, nor over a run.sqlite that can be read and has entries
   which the copy lacks: its owner moves it away first. The file that was there stays beside, as
   `run.sqlite.replaced`, with a number from the second time on. After a kill between the two no start makes a new
   file: `run.sqlite.restoring` is there, and `restore` is to be repeated.
4. Nodes may hold heads later than the copy's. So a restored file says that it was restored, and then no head is signed
   before its nodes were heard (coordinator/publishing/foreign_heads.py).
"""

import contextlib
import itertools
import os
import sqlite3
from pathlib import Path
from typing import Final, NamedTuple

from echo2.coordinator.accounts import payout_hold, run_logs
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.run_logs import RestoredCopy
from echo2.coordinator.database.database import Corrupt, Database, DatabaseFault, WrongSchema, check
from echo2.coordinator.database.run_folder import RunFolder, lock_run
from echo2.coordinator.run import setup
from echo2.p2p.errors import PeerFault
from echo2.p2p.wire_types import decode
from echo2.protocol.authority import open_kept
from echo2.protocol.ledger_heads import LedgerHead, names
from echo2.protocol.root_chain import Untrusted
from echo2.runtime.errors import LocalFault
from echo2.runtime.figures import number_of
from echo2.runtime.files import hidden_path, move, room, sync_file

_MAGIC: Final = b"SQLite format 3\0"
_DATABASE_SUFFIXES: Final = ("", "-wal", "-shm")
"""Files of a database, by what follows its name."""


class Copied(NamedTuple):
    """A verified copy. `head`: number of its newest LedgerHead, 0: none. `covered`: entries under that."""

    entries: int
    head: int
    covered: int

    def sentence(self) -> str:
        """Return the size of the copy in words."""
        newest = f"head {self.head} covers {self.covered} of them" if self.head else "no head is signed yet"
        return f"{number_of(self.entries, 'entry')} of the ledger; {newest}"


def backup(place: RunFolder, file: Path, now: int) -> Copied:
    """Copy the run.sqlite of a run to `file`, also while its coordinator runs; make its folder. `now`: ms. Raises
    `LocalFault`, `Tampered`."""
    if file.exists() or file.is_symlink():
        raise LocalFault(f"{file} is there already: name another file")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise LocalFault(f"cannot make the folder {file.parent}: {error.strerror}: name another file") from error
    with contextlib.closing(_reader(place.database)) as source:
        return _write_copy((source, place.database), place, file, now, restored=False)


def restore(place: RunFolder, file: Path, now: int) -> Copied:
    """Put a copy in the place of a run's run.sqlite (rules 2 to 4). `now`: ms. Raises `LocalFault`, `Tampered`."""
    with lock_run(place), contextlib.closing(_reader(file)) as source:
        _refuse_loss(place.database, _entries(source, file))
        copied = _write_copy((source, file), place, place.restoring, now, restored=True)
        _set_aside(place.database)
        move(place.restoring, place.database)
    return copied


def is_database(file: Path) -> bool:
    """Tell whether a file begins as those of SQLite do. Raises `LocalFault`."""
    try:
        with file.open("rb") as opened:
            return opened.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise LocalFault(f"cannot read {file}: {error.strerror}") from error


def _set_aside(present: Path) -> None:
    """Rename a database and the files that belong to it, over none that was set aside before (rule 3)."""
    names = itertools.chain(("replaced",), (f"replaced.{number}" for number in itertools.count(2)))
    free = (present.with_name(f"{present.name}.{name}") for name in names)
    aside = next(path for path in free if not any(_ending(path, end).exists() for end in _DATABASE_SUFFIXES))
    for end in _DATABASE_SUFFIXES:
        if _ending(present, end).exists():
            _ending(present, end).replace(_ending(aside, end))


def _ending(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def _write_copy(
    opened: tuple[sqlite3.Connection, Path], place: RunFolder, target: Path, now: int, *, restored: bool
) -> Copied:
    """Write a verified copy to `target` (rules 1 and 2). `opened`: what is copied, and its file. `restored`: mark it
    (rule 4)."""
    connection, source = opened
    temporary = hidden_path(target)
    try:
        _write(connection, temporary)
        with Database.open(temporary, now) as database:
            check(temporary)
            database.found_sound(now)
            copied = _verify_copy(database, place)
            if restored:
                run_logs.record(database, RestoredCopy(copied.head, copied.entries, now))
                payout_hold.hold(database, now)
            database.connection.execute("PRAGMA journal_mode = DELETE")
        sync_file(temporary)
        move(temporary, target)
    except (WrongSchema, Corrupt) as error:  # the copy has what its source has: name that
        said = str(error).replace(str(temporary), str(source)).replace(temporary.name, source.name)
        raise type(error)(said) from error
    finally:
        for end in (*_DATABASE_SUFFIXES, ".lock"):
            _ending(temporary, end).unlink(missing_ok=True)
    return copied


def _write(source: sqlite3.Connection, target: Path) -> None:
    with room(target):
        target.unlink(missing_ok=True)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with contextlib.closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
    except sqlite3.Error as error:
        raise LocalFault(f"cannot copy to {target.parent}: {error}; is there room, and is the file sound?") from error


def _reader(path: Path) -> sqlite3.Connection:
    """Open a database of any schema for reading. Raises `LocalFault`."""
    if not path.is_file():
        raise LocalFault(f"there is no file {path}")
    try:
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise LocalFault(f"cannot read {path}: {error}") from error


def _entries(connection: sqlite3.Connection, path: Path) -> int:
    """Return the number of ledger entries. Raises `LocalFault` for a file that is no run.sqlite."""
    try:
        return int(connection.execute("SELECT coalesce(max(seq), 0) FROM entries").fetchone()[0])
    except sqlite3.Error as error:
        raise LocalFault(f"{path} is no sound copy of a run.sqlite: {error}") from error


def _refuse_loss(present: Path, entries: int) -> None:
    """Refuse to replace a file that can be read and has more entries than the copy (rule 3)."""
    if not present.exists():
        return
    try:
        with contextlib.closing(_reader(present)) as connection:
            sound = connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
            there = _entries(connection, present) if sound else 0
    except (LocalFault, sqlite3.Error):
        return  # damaged: a copy takes its place
    if there > entries:
        raise LocalFault(
            f"{present} is sound and has {number_of(there, 'entry')}, the copy has {entries}: {there - entries} would "
            f"be lost; if you mean that, move {present.name} and its -wal file away first"
        )


def _verify_copy(database: Database, place: RunFolder) -> Copied:
    """Verify a copy's ledger and heads (rule 2). Raises `LocalFault`, `Tampered`."""
    _, chain, _, spec = setup.read_documents(place)
    ledger, logs = Ledger(database), run_logs.read_logs(place, chain)
    tip = ledger.verify()
    before: bytes | None = None
    number, size = 0, 0
    for (sealed,) in database.each("SELECT sealed FROM ledger_heads ORDER BY number"):
        try:
            head = decode(open_kept(sealed, "ledgerhead", chain, named=True), LedgerHead)
        except PeerFault as error:
            raise Untrusted(f"LedgerHead {number + 1} of the copy: {error}") from error
        if logs.serial_of(head.log) is None:
            raise DatabaseFault(
                f"the copy is of another run ({spec.run.hex()} is this one), or of a restored log whose document is "
                f"not in {place.restored}: copy that folder too"
            )
        fits = size < head.size <= tip.entries and ledger.tree.root(head.size) == head.root
        if head.number != number + 1 or not names(head, before) or not fits:
            raise Untrusted(f"LedgerHead {head.number} of the copy is not one of its ledger")
        before, number, size = sealed, head.number, head.size
    return Copied(tip.entries, number, size)
