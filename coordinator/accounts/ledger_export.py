"""Write the ledger to a folder, which can be verified without a private key, run.sqlite or this program.

Rules
1. The folder has `roots` and `heads`, each a MessagePack list of sealed documents in order, `runspec`, a sealed
   document, `calibrations/` as in the run folder, and `entries/`. A ledger that was restored has `restored` as well,
   the list of the documents of its later logs.
2. A file of `entries/` is the gzip of a MessagePack list of [canonical bytes, hash], one for each entry, ascending. Its
   name is the number of its first entry, ten digits; all but the last have `PER_FILE` entries. It names no time, so the
   same entries give the same bytes with the same zlib.
3. Exporting again continues: whole files stay, the last one and the documents are written again. A folder of another
   run is refused.
4. Entries come up to the newest LedgerHead, or all of them with `unsigned`. Memory is that of one file.
5. `SHA256SUMS` has the hash of every other file, in the form that `sha256sum -c` reads. It tells damage of a copy; what
   it lists is proved by signatures, not by it.
6. Nothing personal is in it but the peer ids, which are keys: no address, no host, no name.
7. `state` is the coordinator's own state after the last entry (ledger_state.py), by which a replay is compared with its
   tables. It is there where no entry has followed since: with `unsigned`, and once a run has ended.
"""

import gzip
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.accounts.ledger import Ledger, canonical
from echo2.coordinator.accounts.ledger_state import MarketOf, MarketRules, of_tables, points_alone
from echo2.coordinator.accounts.run_logs import read_logs
from echo2.coordinator.database.database import Database
from echo2.coordinator.run import setup
from echo2.coordinator.run.run_folder import RunFolder
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import room, writing

PER_FILE: Final = 4096
"""Entries per file."""
LEVEL: Final = 4
"""Of gzip: level 9 takes 2.5 times as long for 3 % fewer bytes."""
ENTRIES, ROOTS, HEADS, RUNSPEC, CALIBRATIONS = "entries", "roots", "heads", "runspec", "calibrations"
RESTORED = "restored"
STATE, SUMS = "state", "SHA256SUMS"

_encode = msgspec.msgpack.Encoder().encode


class Exported(NamedTuple):
    """The size of an export: entries, heads, bytes of its files of entries."""

    entries: int
    heads: int
    size: int


def export(place: RunFolder, folder: Path, *, unsigned: bool = False, market_of: MarketOf = points_alone) -> Exported:
    """Export the ledger of a run, also while its coordinator runs. `market_of`: the rules of its market. Raises
    `LocalFault`, `Untrusted`, `DiskFull`."""
    roots, chain, runspec, spec = setup.read_documents(place)
    logs = read_logs(place, chain)
    _check_folder(folder, runspec)
    with Database.read(place.database) as database:  # first: without a ledger no folder is made
        _make(folder)
        stored = database.all("SELECT sealed, size FROM ledger_heads ORDER BY number")
        heads, signed = [sealed for sealed, _ in stored], stored[-1][1] if stored else 0
        ledger = Ledger(database)
        last = ledger.tip().entries if unsigned else signed
        for first in range(_continued(folder) + 1, last + 1, PER_FILE):
            _write_entries(folder, ledger, first, min(last, first + PER_FILE - 1))
        _write_state(folder / STATE, database, last, market_of(spec))
    _write(folder / RUNSPEC, runspec)
    _write(folder / ROOTS, _encode(list(roots)))
    for path in sorted(place.calibrations.glob("*")):
        if path.is_file() and not path.name.startswith("."):
            _write(folder / CALIBRATIONS / path.name, path.read_bytes())
    _write(folder / HEADS, _encode(heads))
    if logs.logs:
        _write(folder / RESTORED, _encode([one.sealed for one in logs.logs]))
    _write(folder / SUMS, sums(folder).encode())
    return Exported(last, len(heads), sum(path.stat().st_size for path in (folder / ENTRIES).iterdir()))


def _make(folder: Path) -> None:
    try:
        with room(folder):
            (folder / ENTRIES).mkdir(parents=True, exist_ok=True)
            (folder / CALIBRATIONS).mkdir(exist_ok=True)
    except OSError as error:
        raise LocalFault(f"cannot make {folder}: {error.strerror}; name another folder") from error


def newest_note(place: RunFolder) -> str:
    """Return the newest LedgerHead as a signed note. Raises `LocalFault` where there is none yet."""
    with Database.read(place.database) as database:
        note: str | None = database.value("SELECT note FROM ledger_heads ORDER BY number DESC LIMIT 1")
    if note is None:
        raise LocalFault("no head of the ledger is signed yet: the first comes with the first entries")
    return note


def entry_files(folder: Path) -> list[Path]:
    """Return the files of entries in order. Raises `LocalFault`."""
    try:
        return sorted(path for path in (folder / ENTRIES).iterdir() if path.name.isdigit())
    except OSError as error:
        raise LocalFault(f"{folder} is no export of a ledger: {error.strerror}") from error


def sums(folder: Path) -> str:
    """Return the hashes of the files of an export, as `SHA256SUMS` has them (rule 5)."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
    rows = [f"{_file_hash(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    return "".join(rows)


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_folder(folder: Path, runspec: bytes) -> None:
    """Refuse a folder that has something else in it (rule 3)."""
    if folder.exists() and not folder.is_dir():
        raise LocalFault(f"{folder} is a file: name a folder")
    if (folder / RUNSPEC).exists():
        if (folder / RUNSPEC).read_bytes() != runspec:
            raise LocalFault(f"{folder} has the ledger of another run: name another folder")
    elif folder.exists() and any(folder.iterdir()):
        raise LocalFault(f"{folder} is not empty, and no finished export of this run: name another folder, or empty it")


def _continued(folder: Path) -> int:
    """Return how many entries stand in whole files that are followed by another one."""
    return max(0, len(entry_files(folder)) - 1) * PER_FILE


def _write_state(path: Path, database: Database, last: int, market: MarketRules | None) -> None:
    """Write the coordinator's own state if it is that after entry `last`; else remove an earlier one (rule 7)."""
    path.unlink(missing_ok=True)
    with database.reading():
        state = of_tables(database, market) if Ledger(database).tip().entries == last else None
    if state is not None:
        _write(path, state.encoded())


def _write_entries(folder: Path, ledger: Ledger, first: int, last: int) -> None:
    rows = _rows(ledger, first, last)
    _write(folder / ENTRIES / f"{first:010d}", gzip.compress(_encode(rows), LEVEL, mtime=0))


def _rows(ledger: Ledger, first: int, last: int) -> list[tuple[bytes, bytes]]:
    def taken() -> Iterator[tuple[bytes, bytes]]:
        for entry in itertools.islice(ledger.entries(after=first - 1), last - first + 1):
            yield canonical(*entry[:6]), entry.hash

    return list(taken())


def _write(path: Path, data: bytes) -> None:
    with writing(path) as file:
        file.write(data)
