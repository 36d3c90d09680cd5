"""Write the ledger to a folder, which can be verified without a private key, run.sqlite or this program.

Rules
1. The files are those of ledger/export_files.py.
2. Exporting again continues: whole files stay, the last one and the documents are written again. A folder of another
   run is refused.
3. Entries come up to the newest LedgerHead, or all of them with `unsigned`. Memory is that of one file.
4. `state` is there where no entry has followed since: with `unsigned`, and once a run has ended.
"""

import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.run_logs import read_logs
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.ledger_files.stored_state import of_tables
from echo2.coordinator.run import setup
from echo2.ledger.export_files import (
    CALIBRATIONS,
    ENTRIES,
    HEADS,
    PER_FILE,
    RESTORED_FILE,
    ROOTS,
    RUNSPEC,
    STATE,
    SUMS,
    entry_files,
    sums,
)
from echo2.ledger.ledger_entries import canonical
from echo2.ledger.ledger_state import MarketOf, MarketRules, points_alone
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import room, writing
from echo2.runtime.surroundings import sentence_of

LEVEL: Final = 4
"""Of gzip: level 9 takes 2.5 times as long for 3 % fewer bytes."""

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
        for first in range(_count_continued(folder) + 1, last + 1, PER_FILE):
            _write_entries(folder, ledger, first, min(last, first + PER_FILE - 1))
        _write_state(folder / STATE, database, last, market_of(spec))
    _write(folder / RUNSPEC, runspec)
    _write(folder / ROOTS, _encode(list(roots)))
    for path in sorted(place.calibrations.glob("*")):
        if path.is_file() and not path.name.startswith("."):
            _write(folder / CALIBRATIONS / path.name, path.read_bytes())
    _write(folder / HEADS, _encode(heads))
    if logs.logs:
        _write(folder / RESTORED_FILE, _encode([one.sealed for one in logs.logs]))
    _write(folder / SUMS, sums(folder).encode())
    return Exported(last, len(heads), sum(path.stat().st_size for path in (folder / ENTRIES).iterdir()))


def _make(folder: Path) -> None:
    try:
        with room(folder):
            (folder / ENTRIES).mkdir(parents=True, exist_ok=True)
            (folder / CALIBRATIONS).mkdir(exist_ok=True)
    except OSError as error:
        refused = f"cannot make {folder}: {error.strerror}; name another folder"
        raise LocalFault(sentence_of(error, refused)) from error


def newest_note(place: RunFolder) -> str:
    """Return the newest LedgerHead as a signed note. Raises `LocalFault` where there is none yet."""
    with Database.read(place.database) as database:
        note: str | None = database.value("SELECT note FROM ledger_heads ORDER BY number DESC LIMIT 1")
    if note is None:
        raise LocalFault("no head of the ledger is signed yet: the first comes with the first entries")
    return note


def _check_folder(folder: Path, runspec: bytes) -> None:
    """Refuse a folder that has something else in it (rule 2)."""
    if folder.exists() and not folder.is_dir():
        raise LocalFault(f"{folder} is a file: name a folder")
    if (folder / RUNSPEC).exists():
        if (folder / RUNSPEC).read_bytes() != runspec:
            raise LocalFault(f"{folder} has the ledger of another run: name another folder")
    elif folder.exists() and any(folder.iterdir()):
        raise LocalFault(f"{folder} is not empty, and no finished export of this run: name another folder, or empty it")


def _count_continued(folder: Path) -> int:
    """Return how many entries stand in whole files that are followed by another one."""
    return max(0, len(entry_files(folder)) - 1) * PER_FILE


def _write_state(path: Path, database: Database, last: int, market: MarketRules | None) -> None:
    """Write the coordinator's own state if it is that after entry `last`; else remove an earlier one (rule 4)."""
    path.unlink(missing_ok=True)
    with database.reading():
        state = of_tables(database, market) if Ledger(database).tip().entries == last else None
    if state is not None:
        _write(path, state.as_bytes())


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
