"""Save and load checkpoints, from which the learner continues after any crash. A checkpoint is complete or absent.

    <folder>/checkpoint-<era>-<made>/tensors.safetensors    masters, moments, random state
                                     state.msgpack          State, and BLAKE3 of the files' contents

A learner of several ranks has a file of tensors per rank, with its rows (learner/checkpoints/row_sources.py):
tensors-00001-of-00002.safetensors and so on.

Rules
1. A checkpoint is written under a hidden name; its files and folder are fsynced, then it is renamed. So it is visible
   only when it is complete, and `save` returns only when it is durable.
2. The newest two are kept. Reading checks every byte against the hashes. A torn or corrupt checkpoint is reported and
   set aside, and the one before it is used. If checkpoints exist and none can be read, that is an error, never a silent
   fresh start.
3. Nothing here is pickled: safetensors and msgpack only.
4. Each rank writes a file of tensors. Any number of ranks reads what any number wrote.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from blake3 import blake3
from safetensors import SafetensorError
from torch import Tensor

from echo2.coordinator.learner.checkpoints.row_sources import CheckpointRows
from echo2.coordinator.learner.messages import Export
from echo2.runtime.files import move, room, sync_file, sync_folder
from echo2.weights.torch_io import save_tensors

FORMAT = 2
KEPT_CHECKPOINTS = 2
FOLDER = "checkpoints"
_NAME = re.compile(r"checkpoint-\d{12}-\d{12}")
_STATE, TENSORS = "state.msgpack", "tensors.safetensors"


class CheckpointError(Exception):
    """Checkpoints exist, but none can be read, or one has another format; the message names the fix."""


class _Corrupt(Exception):
    pass


class Base(msgspec.Struct, frozen=True, omit_defaults=True):
    """A published version from which diffs may start. `snapshot`: path of its file; empty: `payload` leads to it, from
    the next newer version of its list, or from nothing."""

    version: int
    root: bytes
    snapshot: str = ""
    payload: str = ""


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The learner's state beside its tensors. `step`: how many changed the weights, or may have: the number of a
    version. `unchanged`: how many others were made. `era`: era of the policy. `steps`: how many this optimiser made.
    `drawn`: ids of groups drawn up to `step` that could be drawn again, oldest first. `draws`: (step, its number of
    groups in `drawn`), oldest first. `export`: the last exported version. `published`: versions from which diffs may
    start, oldest first; the newest has a snapshot, the others payloads back. `anchor`: the last version with a full
    edge, from which cumulative diffs start; it has that edge's payload. `rate`: factor of the learning rate.
    `learning_rate`: that of the last step.
    `republished`: id of the last order to go back to a version that was obeyed; 0: none was. `run`: the run's id, in
    hex."""

    step: int
    era: int
    steps: int
    drawn: list[bytes]
    export: Export | None
    published: list[Base]
    anchor: Base | None
    draws: list[tuple[int, int]] = []
    rate: float = 1.0
    republished: int = 0
    run: str = ""
    unchanged: int = 0
    learning_rate: float = 0.0

    @property
    def steps_made(self) -> int:
        """How many steps were made, those that changed nothing among them."""
        return self.step + self.unchanged


class TensorFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of tensors in a checkpoint's folder. `hash`: BLAKE3 of its contents."""

    name: str
    hash: bytes


class _Sealed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state's file. `files`: files of tensors, in the order of the ranks."""

    format: int
    body: bytes
    body_hash: bytes
    files: list[TensorFile] = []


class Checkpoint(NamedTuple):
    """A checkpoint on disk. `files`: files of its tensors, in the order of the ranks that wrote them."""

    state: State
    files: list[Path]

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors, whole; each is read when it is asked for."""
        return CheckpointRows(self.files)


WriteTensors = Callable[[Path], Sequence[TensorFile]]
"""(folder) -> the files of tensors that were written there, durably, in the order of the ranks."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> TensorFile:
    """Write a file of tensors, durably. `tensors`: each is asked for when it is written, so that no second copy of all
    is in memory. Raises `DiskFull`."""
    save_tensors(tensors, path, dtype=torch.float32, aliases={})
    return TensorFile(path.name, _file_hash(path))


def write_whole(folder: Path, tensors: Mapping[str, Tensor]) -> list[TensorFile]:
    """Write the tensors of a learner of one rank. Raises `DiskFull`."""
    return [write_tensors(folder / TENSORS, tensors)]


def save(folder: Path, era: int, steps_made: int, finished: Callable[[], State], write: WriteTensors) -> Path:
    """Write the checkpoint of (`era`, `made`) durably, and remove all but the newest two. `write`: writes the tensors.
    `finished`: called once they are durable, which takes longest; returns the state, whose files must all be durable.
    Raises `DiskFull`, and the errors of `write` and `finished`; the checkpoint then does not exist."""
    target = folder / f"checkpoint-{era:012d}-{steps_made:012d}"
    partial = folder / f".{target.name}.partial"
    with _fresh_folder(partial):
        files = list(write(partial))
        body = msgspec.msgpack.encode(finished())
        sealed = _Sealed(format=FORMAT, body=body, body_hash=blake3(body).digest(), files=files)
        (partial / _STATE).write_bytes(msgspec.msgpack.encode(sealed))
        sync_file(partial / _STATE)
        sync_folder(partial)
        if target.exists():
            _discard(target)
        move(partial, target)
    for old in _checkpoint_files(folder)[KEPT_CHECKPOINTS:]:
        _discard(old)
    return target


def load(folder: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest intact checkpoint; None if there has never been one. `report` gets a sentence for each damaged
    one. Raises CheckpointError."""
    _clear_leftovers(folder)
    files = _checkpoint_files(folder)
    for path in files:
        try:
            return _read(path)
        except (_Corrupt, OSError) as fault:
            aside = path.with_name(f"corrupt-{path.name}")
            report(f"{path} cannot be used ({fault}): set aside as {aside.name}, using the checkpoint before it")
            if aside.exists():
                shutil.rmtree(aside)
            move(path, aside)
    if files or list(folder.glob("corrupt-*")):
        raise CheckpointError(
            f"no checkpoint in {folder} can be read: put one back from a backup, or move the folder away to go on from "
            "the published version in a new era"
        )
    return None


def _read(path: Path) -> Checkpoint:
    try:
        sealed = msgspec.msgpack.decode((path / _STATE).read_bytes(), type=_Sealed)
        if sealed.format != FORMAT:
            raise CheckpointError(
                f"another build of echo2 made {path} (format {sealed.format}, not {FORMAT}): run the build that made it"
            )
        if blake3(sealed.body).digest() != sealed.body_hash:
            raise _Corrupt(f"{_STATE} does not match its hash")
        for file in sealed.files:
            if _file_hash(path / file.name) != file.hash:
                raise _Corrupt(f"{file.name} does not match its hash")
        loaded = Checkpoint(
            msgspec.msgpack.decode(sealed.body, type=State), [path / file.name for file in sealed.files]
        )
        len(loaded.tensors)  # reads the headers
        return loaded
    except (msgspec.MsgspecError, SafetensorError, ValueError) as error:  # ValueError: a name that is no text or path
        raise _Corrupt(str(error)) from error


def _checkpoint_files(folder: Path) -> list[Path]:
    """Return the checkpoints, newest first: by era, then steps made: a later era may start from an earlier one."""
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)


def _file_hash(path: Path) -> bytes:
    hasher = blake3()
    with path.open("rb") as file:
        while piece := file.read(8 << 20):
            hasher.update(piece)
    return hasher.digest()


@contextmanager
def _fresh_folder(partial: Path) -> Iterator[None]:
    """Create an empty folder for the block, and remove it if the block fails."""
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with room(partial):
            partial.mkdir(parents=True)
            yield
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _discard(path: Path) -> None:
    """Rename a checkpoint to a hidden name, then remove it, so that a crash leaves no partial checkpoint visible."""
    hidden = path.with_name(f".{path.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _clear_leftovers(folder: Path) -> None:
    for pattern in (".*.partial", ".*.removed"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
