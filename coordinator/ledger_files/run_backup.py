"""Back up a whole run, also while its coordinator runs, and restore it on another machine.

Rules
1. An archive (run_archive.py) has every file of the run folder but logs, what a start makes again (also the token of
   the operator's page, which would stand in the clear), and what is being written. run.sqlite is copied and verified as
   by ledger_backup.py. The archive is read back before it counts.
2. Files are opened before any is read, and all of them at one moment: where one has changed until the last was opened,
   they are opened again. A file that the coordinator removes then stays readable. run.sqlite is copied after them: it
   has each group that the learner's journal names.
3. The archive is whole or absent; after kill -9 hidden files remain beside it, which the next attempt replaces.
4. `restore` fills a folder that is new or empty, in one step. Its private files stay encrypted in `keys.sealed`, and
   without keys nothing can be signed. `confirm` decrypts them, once the operator has said that the other coordinator
   has stopped: two of them with one key sign two histories.
5. Versions published after the backup are not in it. So `confirm` orders a new era, which no number of the other
   coordinator can meet (coordinator/learner/eras.py, rule 7).
"""

import contextlib
import io
import itertools
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from echo2.coordinator.accounts import run_logs
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder, lock_run
from echo2.coordinator.ledger_files import ledger_backup, run_archive
from echo2.coordinator.ledger_files.ledger_backup import Copied
from echo2.coordinator.ledger_files.run_archive import LEAST_PASSPHRASE, ArchivedFile
from echo2.coordinator.run import setup
from echo2.runtime import descriptors
from echo2.runtime.errors import DiskFull, LocalFault
from echo2.runtime.files import hidden_path, move, sync_folder, writing
from echo2.runtime.lock import AlreadyLocked, lock_folder
from echo2.runtime.surroundings import sentence_of

PRIVATE: Final = ("keys", "payouts")
"""Folders whose files are encrypted."""
_LEFT_OUT: Final = frozenset(
    {"scorer", "logs", "control.sock", "page", "operator_page", "lock", "store/incoming", "store/scratch", "store/lock"}
)
_DATABASES: Final = ("run.sqlite", "store/index.sqlite")
"""Files that SQLite copies; those that belong to them begin with the same name."""
_GROWING: Final = "history.jsonl"
_TRIES: Final = 100
_PAUSE_SECONDS: Final = 0.1

_Seen = dict[str, tuple[int, int, int]]
"""Files by name: inode, size, time of the last change."""


class BackedUp(NamedTuple):
    """A verified archive. `files`: how many it has. `nbytes`: its size."""

    copied: Copied
    files: int
    nbytes: int


def check(place: RunFolder, file: Path) -> bytes:
    """Check that there is a run, and that its archive may be written to `file`, before anybody types a passphrase.
    Return the run's id. Raises `LocalFault`, `Tampered`."""
    _, chain, _, _ = setup.read_documents(place)
    if file.exists() or file.is_symlink():
        raise LocalFault(f"{file} is there already: name another file")
    if place.path.resolve() in file.resolve().parents:
        raise LocalFault(f"{file} is inside the run folder, and would be lost with it: name a file outside")
    return chain[-1].run


def backup(place: RunFolder, file: Path, passphrase: str, now: int) -> BackedUp:
    """Write the archive of a run (rules 1 to 3). `now`: ms. Raises `LocalFault`, `Tampered`."""
    _check_passphrase(passphrase)
    run = check(place, file)
    copy = hidden_path(file.with_name(f"{file.name}.sqlite"))
    descriptors.raise_limit()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.ExitStack() as opened, writing(file, 0o600) as archive:
            members, private = _open_at_one_moment(place, opened)
            copy.unlink(missing_ok=True)
            copied = ledger_backup.backup(place, copy, now)
            members.append(_open(copy, "run.sqlite", opened))
            files = run_archive.write(archive, iter(members), private, run, passphrase, now)
            archive.flush()
            with run_archive.reading(hidden_path(file), passphrase) as written:
                written.extract(None)
            nbytes = archive.tell()
    except OSError as error:
        raise LocalFault(sentence_of(error, f"cannot back up to {file}: {error.strerror or error}")) from error
    finally:
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)
    return BackedUp(copied, files, nbytes)


def restore(file: Path, folder: Path, passphrase: str, now: int) -> Copied:
    """Make a run folder from an archive, without its keys (rule 4). `now`: ms. Raises `LocalFault`, `Tampered`."""
    target = folder.resolve()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise LocalFault(f"{folder} is not empty: name a new folder, or put back a copy by `backup --database`")
    draft = hidden_path(target)
    try:
        with run_archive.reading(file, passphrase) as archive, _drafting(draft):
            if (free := shutil.disk_usage(draft).free) < archive.size:
                raise DiskFull(
                    f"the disk of {folder} has {free / 1e9:,.1f} GB free, and the run takes {archive.size / 1e9:,.1f} "
                    "GB: free space there, or name a folder on another disk"
                )
            archive.extract(draft)
            copy = (draft / "run.sqlite").rename(draft / "copy.sqlite")
            copied = ledger_backup.restore(RunFolder(draft), copy, now)
            copy.unlink()
            with run_archive.create_private(RunFolder(draft).sealed_keys) as sealed:
                sealed.write(archive.sealed)
            for path in (*(one for one in draft.rglob("*") if one.is_dir()), draft):
                sync_folder(path)
            move(draft, target)
    except OSError as error:
        raise LocalFault(sentence_of(error, f"cannot make {folder}: {error.strerror or error}")) from error
    return copied


def sealed_keys(place: RunFolder) -> bytes:
    """Return the keys that wait in a restored folder. Raises `LocalFault` for any other folder."""
    try:
        return place.sealed_keys.read_bytes()
    except OSError as error:
        raise LocalFault(
            f"{place.path} does not wait for a word as a restored folder does: {error.strerror}"
        ) from error


def confirm(place: RunFolder, passphrase: str, now: int) -> None:
    """Decrypt the keys of a restored folder, as the other coordinator has stopped (rules 4 and 5). `now`: ms. Raises
    `LocalFault`."""
    sealed = sealed_keys(place)
    private, _ = run_archive.unseal(sealed, passphrase, place.sealed_keys)
    with lock_run(place):
        with Database.open(place.database, now) as database:
            run_logs.order_new_era(database, now)
        try:
            for name, data in private.items():
                with run_archive.create_private(place.path / name) as file:
                    file.write(data)
            for folder in {(place.path / name).parent for name in private}:
                sync_folder(folder)
            place.sealed_keys.unlink()
            sync_folder(place.path)
        except OSError as error:
            raise LocalFault(sentence_of(error, f"cannot write the keys: {error.strerror or error}")) from error


def _check_passphrase(passphrase: str) -> None:
    if len(passphrase) < LEAST_PASSPHRASE:
        raise LocalFault(f"the passphrase has {len(passphrase)} characters: take {LEAST_PASSPHRASE} or more")


@contextlib.contextmanager
def _drafting(draft: Path) -> Iterator[None]:
    """Make an empty, locked folder in which a run is restored; remove what is left of it at the end. One that a killed
    `restore` left is emptied: it has no key in the clear. A link, or a folder of another user, is not touched."""
    try:
        draft.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        status = draft.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise LocalFault(f"{draft} is a link, or another user's: remove it, or name another folder") from None
    try:
        with lock_folder(draft):
            for path in draft.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            try:
                yield
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    except AlreadyLocked as error:
        raise LocalFault(f"another `restore` is filling {draft}: wait until it has ended") from error


def _open_at_one_moment(place: RunFolder, opened: contextlib.ExitStack) -> tuple[list[ArchivedFile], dict[str, bytes]]:
    """Open all files but run.sqlite as they are at one moment, and read the private ones (rule 2). Raises
    `LocalFault`."""
    for again in itertools.count(1):
        with contextlib.ExitStack() as closing, contextlib.suppress(FileNotFoundError):
            before = _files(place.path)
            members = [
                _open(place.path / name, name, closing) for name in before if name.partition("/")[0] not in PRIVATE
            ]
            private = {name: (place.path / name).read_bytes() for name in before if name.partition("/")[0] in PRIVATE}
            if index := _copied_index(place.store / "index.sqlite"):
                members.append(ArchivedFile("store/index.sqlite", io.BytesIO(index), len(index)))
            if _files(place.path) == before:
                opened.push(closing.pop_all())
                return members, private
        if again == _TRIES:
            raise LocalFault("the run's files do not stay the same for a moment: try again, or stop the coordinator")
        time.sleep(_PAUSE_SECONDS)
    raise AssertionError


def _files(folder: Path) -> _Seen:
    """List the files of a run folder that belong into an archive (rule 1). Raises FileNotFoundError, `LocalFault`."""
    seen = _Seen()
    for parent, folders, names in os.walk(folder):
        base = Path(parent).relative_to(folder)
        folders[:] = [
            name for name in folders if not name.startswith(".") and (base / name).as_posix() not in _LEFT_OUT
        ]
        for name in folders:
            if (Path(parent) / name).is_symlink():
                raise LocalFault(f"{Path(parent) / name} is a link to a folder, which no archive takes: move it here")
        for name in names:
            path = (base / name).as_posix()
            if name.startswith(".") or path in _LEFT_OUT or path.startswith(_DATABASES):
                continue
            status = (folder / path).stat()
            if path == _GROWING:
                seen[path] = (status.st_ino, 0, 0)
            elif (folder / path).is_file():
                seen[path] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return seen


def _open(path: Path, name: str, closing: contextlib.ExitStack) -> ArchivedFile:
    file = closing.enter_context(path.open("rb"))
    return ArchivedFile(name, file, os.fstat(file.fileno()).st_size)


def _copied_index(path: Path) -> bytes:
    """Return a copy of the store's index; empty: there is none yet. Raises `LocalFault`."""
    if not path.exists():
        return b""
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            contextlib.closing(sqlite3.connect(":memory:")) as copy,
        ):
            source.backup(copy)
            return copy.serialize()
    except sqlite3.Error as error:
        raise LocalFault(f"cannot copy {path}: {error}") from error
