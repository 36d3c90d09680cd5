"""The steps behind the newest checkpoint, on disk: which groups each learned from, and the state that it left.

    <folder>/journal/entry-<era>-<step>.msgpack      JournalEntry, with the BLAKE3 of its content
                    /tries                           how often these entries were made again, without an end

Rules
1. A checkpoint has all tensors, and costs seconds; an entry has ids and the files of an export, and costs a write. The
   learner's durable state is its newest checkpoint and the entries behind it, each of which names the one before.
2. An entry is written under a hidden name, fsynced, then renamed; so it is whole or absent. `append` returns once it is
   durable. An entry that cannot be read ends the journal there.
3. Entries behind a checkpoint are removed once a later checkpoint is durable, never before.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3

from coordinator.learner.checkpoint import State
from coordinator.learner.messages import Hyper
from runtime.files import move, room, sync_file, sync_folder

MOST_TRIES: Final = 2
FOLDER: Final = "journal"
_NAME = re.compile(r"entry-\d{12}-\d{12}\.msgpack")
_TRIES: Final = "tries"


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The steps from one export to the next. `after`: the step of the checkpoint or entry before. `steps`: (step, ids
    of its groups, in order). `state`: after the last of them, with its export. `hyper`, `ranks`, `threads`, `device`:
    with which they were made."""

    after: int
    steps: list[tuple[int, list[bytes]]]
    state: State
    hyper: Hyper
    ranks: int
    threads: int
    device: str


class _SealedEntry(msgspec.Struct, frozen=True, array_like=True):
    body: bytes
    hash: bytes


def append(folder: Path, entry: JournalEntry) -> None:
    """Write an entry durably. Raises `DiskFull`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"entry-{entry.state.era:012d}-{entry.state.step:012d}.msgpack"
    partial, body = path.with_name(f".{path.name}.partial"), msgspec.msgpack.encode(entry)
    with room(partial):
        partial.write_bytes(msgspec.msgpack.encode(_SealedEntry(body, blake3(body).digest())))
        sync_file(partial)
    move(partial, path)


def behind(folder: Path, state: State, report: Callable[[str], None]) -> list[JournalEntry]:
    """Return the entries behind a checkpoint's state, oldest first. `report` gets a sentence for one that cannot be
    read: it and those behind it are lost."""
    entries, step = list[JournalEntry](), state.step
    for path in sorted(path for path in folder.glob("entry-*") if _NAME.fullmatch(path.name)):
        try:
            sealed = msgspec.msgpack.decode(path.read_bytes(), type=_SealedEntry)
            entry = msgspec.msgpack.decode(sealed.body, type=JournalEntry)
        except (msgspec.MsgspecError, OSError) as fault:
            report(f"{path} cannot be read ({fault}): the steps from there on are lost")
            break
        if blake3(sealed.body).digest() != sealed.hash:
            report(f"{path} does not match its hash: the steps from there on are lost")
            break
        if entry.state.era == state.era and entry.after == step:
            entries.append(entry)
            step = entry.state.step
    return entries


def begin_try(folder: Path) -> int:
    """Count, durably, that the entries are about to be made again; return how often it began before."""
    path = folder / _TRIES
    before = int(path.read_text()) if path.exists() else 0
    partial = path.with_name(f".{_TRIES}.partial")
    partial.write_text(str(before + 1))
    sync_file(partial)
    move(partial, path)
    return before


def clear(folder: Path) -> None:
    """Remove all entries (rule 3)."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        path.unlink()
    sync_folder(folder)
