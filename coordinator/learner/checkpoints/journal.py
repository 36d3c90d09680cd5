"""The steps behind the newest checkpoint, on disk: which groups each learned from, and the state that it left.

    <folder>/journal/entry-<era>-<step>-<made>.msgpack   JournalEntry, with the BLAKE3 of its content
                    /tries                               how often these entries were made again, without an end

Rules
1. A checkpoint has all tensors, and costs seconds; an entry has ids and the files of an export, and costs a write. The
   learner's durable state is its newest checkpoint and the entries behind it, each of which names the export before.
2. An entry is written under a hidden name, fsynced, then renamed; so it is whole or absent. `append` returns once it is
   durable. An entry that cannot be read ends the journal there.
3. Entries are removed once a later checkpoint is durable, never before, and once a learner goes on without them.
4. Entries of another run or model do not name the checkpoint's export, or name groups that this run lacks.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3

from echo2.coordinator.learner.checkpoints.checkpoint import CheckpointError, State
from echo2.coordinator.learner.messages import Export, Hyper
from echo2.runtime.files import move, room, sync_file, sync_folder

FORMAT: Final = 1
MOST_TRIES: Final = 2
FOLDER: Final = "journal"
_NAME: Final = re.compile(r"entry-\d{12}-(\d{12})-\d{12}\.msgpack")
_TRIES_FILE: Final = "tries"


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The steps from one export to the next, or to a step whose export would have been the same (`state` then has the
    export before). `after`, `after_root`: version and root of the export before, of the checkpoint or an entry.
    `steps`: (step, ids of its groups in order, most tokens of a micro-batch in each of its passes). `state`: state
    after the last of them, with its export. `hyper`, `ranks`, `threads`, `device`, `arithmetic` (step_arithmetic.py):
    with which they were made."""

    after: int
    after_root: bytes
    steps: list[tuple[int, list[bytes], list[int]]]
    state: State
    hyper: Hyper
    ranks: int
    threads: int
    device: str
    arithmetic: str

    @property
    def export(self) -> Export:
        """The export of the weights with which the steps end."""
        assert self.state.export is not None, "an entry ends with an export"
        return self.state.export


class _SealedEntry(msgspec.Struct, frozen=True, array_like=True):
    format: int
    body: bytes
    hash: bytes


def append(folder: Path, entry: JournalEntry) -> None:
    """Write an entry durably. Raises `DiskFull`."""
    state = entry.state
    path = folder / f"entry-{state.era:012d}-{state.step:012d}-{state.steps_made:012d}.msgpack"
    body = msgspec.msgpack.encode(entry)
    _write(path, msgspec.msgpack.encode(_SealedEntry(FORMAT, body, blake3(body).digest())))


def behind(folder: Path, state: State, report: Callable[[str], None]) -> list[JournalEntry]:
    """Return the entries behind a checkpoint's state, oldest first. `report` gets a sentence for entries that cannot be
    read or do not follow: they and those behind them are lost. Raises CheckpointError for another format."""
    entries, last, steps_made = list[JournalEntry](), state.export, state.steps_made
    for path in _paths(folder):
        try:
            entry = _read(path)
        except (msgspec.MsgspecError, OSError, ValueError) as fault:
            report(f"{path} cannot be read ({fault}): the steps from there on are lost")
            break
        if entry.state.era == state.era and entry.state.steps_made <= steps_made:
            continue  # the checkpoint has its steps
        follows = last is not None and (entry.after, entry.after_root) == (last.version, last.root)
        if follows and entry.state.era == state.era and entry.state.steps_made - len(entry.steps) == steps_made:
            entries.append(entry)
            last, steps_made = entry.export, entry.state.steps_made
        elif (entry.state.era, entry.state.step) > (state.era, last.version if last else state.step):
            report(f"{path} does not follow step {last.version if last else state.step}: its steps are lost")
            break
    return entries


def newest_version(folder: Path) -> int:
    """Return the number of the newest version that an entry names, readable or not; -1: there is none."""
    return max((int(_NAME.sub(r"\1", path.name)) for path in _paths(folder)), default=-1)


def begin_try(folder: Path) -> int:
    """Count, durably, that the entries are about to be made again; return how often it began before."""
    before = _tries(folder)
    _write(folder / _TRIES_FILE, str(before + 1).encode())
    return before


def end_try(folder: Path) -> None:
    """Take back the last count of `begin_try`: the process has not died of the entries."""
    _write(folder / _TRIES_FILE, str(max(0, _tries(folder) - 1)).encode())


def clear(folder: Path) -> None:
    """Remove all entries (rule 3)."""
    paths = list(folder.iterdir())
    for path in sorted(paths, reverse=True):  # newest first: what a kill leaves is still a chain
        path.unlink()
    if paths:
        sync_folder(folder)


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("entry-*") if _NAME.fullmatch(path.name))


def _read(path: Path) -> JournalEntry:
    sealed = msgspec.msgpack.decode(path.read_bytes(), type=_SealedEntry)
    if sealed.format != FORMAT:
        raise CheckpointError(f"{path} has format {sealed.format}, this program reads {FORMAT}: update it")
    if blake3(sealed.body).digest() != sealed.hash:
        raise ValueError("it does not match its hash")
    return msgspec.msgpack.decode(sealed.body, type=JournalEntry)


def _tries(folder: Path) -> int:
    try:
        return int((folder / _TRIES_FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return 0


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with room(partial):
        partial.write_bytes(data)
        sync_file(partial)
    move(partial, path)
