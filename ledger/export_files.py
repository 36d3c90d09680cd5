"""The files of an export of the ledger, which can be verified without a private key, run.sqlite or this program. Pure.

Rules
1. The folder has `roots` and `heads`, each a MessagePack list of sealed documents in order, `runspec`, a sealed
   document, `calibrations/` as in the run folder, and `entries/`. A ledger that was restored has `restored` as well,
   the list of the documents of its later logs.
2. A file of `entries/` is the gzip of a MessagePack list of [canonical bytes, hash], one for each entry, ascending. Its
   name is the number of its first entry, ten digits; all but the last have `PER_FILE` entries. It names no time, so the
   same entries give the same bytes with the same zlib.
3. `SHA256SUMS` has the hash of every other file, in the form that `sha256sum -c` reads. It tells damage of a copy; what
   it lists is proved by signatures, not by it.
4. Nothing personal is in it but the peer ids, which are keys: no address, no host, no name.
5. `state` is the coordinator's own state after the last entry (ledger_state.py), by which a replay is compared with its
   tables.
"""

import hashlib
from pathlib import Path
from typing import Final

from echo2.runtime.errors import LocalFault

PER_FILE: Final = 4096
"""Entries per file."""


ENTRIES, ROOTS, HEADS, RUNSPEC, CALIBRATIONS = "entries", "roots", "heads", "runspec", "calibrations"


RESTORED_FILE = "restored"


STATE, SUMS = "state", "SHA256SUMS"


def entry_files(folder: Path) -> list[Path]:
    """Return the files of entries in order. Raises `LocalFault`."""
    try:
        return sorted(path for path in (folder / ENTRIES).iterdir() if path.name.isdigit())
    except OSError as error:
        raise LocalFault(f"{folder} is no export of a ledger: {error.strerror}") from error


def sums(folder: Path) -> str:
    """Return the hashes of the files of an export, as `SHA256SUMS` has them (rule 3)."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
    rows = [f"{_file_hash(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    return "".join(rows)


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
