"""Write a version to disk, ready to be signed: its snapshot and the payloads of the edges that lead to it.

    <folder>/v0000000012.safetensors           the snapshot, bfloat16
             v0000000012-from-0000000011.edge  payload of the diff from a published version
             v0000000012-full.edge             payload of the full edge, of the first version of an era

Rules
1. A version's number is the step that made it, and names its files.
2. Diffs to a version v start only from published versions, and from their published bytes. The bases are the
   predecessor; v - 2^j where 2^j divides v (j <= 4); and, every 32 versions, the first version of the era (the anchor).
3. Every file is durable when the callable given by `writing` returns. Nothing here rounds: the model's values are the
   published ones (see `optimiser`). The diffs are encoded from files, in a thread, while the checkpoint's tensors are
   written. A payload is hashed here, once before it is served: the whole while it is written, and its chunks, whose
   size depends on the payload's length, in one pass afterwards.
4. Files are removed when no diff will start from them and `keep` later versions are published.
5. Checkpoint and journal name files by their paths, and the run's folder may be moved: a file is looked up in the
   folder of exports first. Where one of an export that is yet to be published is gone, the learner does not open.
"""

import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

from echo2.coordinator.learner.checkpoint import Base, CheckpointError, State
from echo2.coordinator.learner.messages import Export, ExportedEdge
from echo2.p2p.swarm.manifest import hashed
from echo2.runtime.files import sync_folder
from echo2.runtime.files import writing as writing_file
from echo2.weights.diff import encode, encode_full
from echo2.weights.snapshot import Snapshot

SKIPS = 4
ANCHOR_EVERY = 32
_FILE = re.compile(r"v(\d{10})(?:\.safetensors|-\S+\.edge)")


@contextmanager
def writing(
    save: Callable[[Path], Snapshot], version: int, bases: Sequence[Base], folder: Path, *, whole: bool
) -> Iterator[Callable[[], Export]]:
    """Write a snapshot by `save`. During the block, encode in a thread a diff from each of `bases` and, if `whole`, the
    full edge. Yields a callable that waits for the thread and returns the export, or raises its error."""
    started = time.perf_counter()
    new = save(place(folder, version))

    def encoded() -> Export:
        edges = [_diff(base, new, version, folder) for base in bases]
        edges += [_full(new, version, folder)] if whole else []
        seconds = time.perf_counter() - started
        return Export(version=version, root=new.root, snapshot=str(new.path), edges=edges, seconds=seconds)

    with ThreadPoolExecutor(1, "encode") as thread:
        yield thread.submit(encoded).result


def place(folder: Path, version: int) -> Path:
    """Return the path of a version's snapshot."""
    return folder / f"v{version:010d}.safetensors"


def adopt(snapshot: Path, version: int, folder: Path) -> Path:
    """Link or copy a version's snapshot to its path in `folder`, where it stays as long as diffs start from it."""
    target = place(folder, version)
    if target.exists():
        if target.samefile(snapshot):
            return target
        target.unlink()  # of a version that was never published: another version has its number
    try:
        target.hardlink_to(snapshot)
        sync_folder(folder)
    except OSError:  # another filesystem, or one without links
        with snapshot.open("rb") as source, writing_file(target) as file:
            shutil.copyfileobj(source, file)
    return target


def located(state: State, folder: Path) -> State:
    """Return a checkpoint's state with the files of its versions as they are in `folder` now (rule 5)."""

    def file(path: str) -> str:
        here = folder / Path(path).name
        return str(here) if here.is_file() else path

    def base(one: Base) -> Base:
        return msgspec.structs.replace(one, snapshot=file(one.snapshot))

    last = state.export
    if last is not None:
        edges = [msgspec.structs.replace(edge, payload=file(edge.payload)) for edge in last.edges]
        last = msgspec.structs.replace(last, snapshot=file(last.snapshot), edges=edges)
    anchor = None if state.anchor is None else base(state.anchor)
    return msgspec.structs.replace(state, export=last, anchor=anchor, published=[base(one) for one in state.published])


def check_files(export: Export) -> None:
    """Raise CheckpointError if a file of an export that is to be published is gone (rule 5)."""
    gone = [path for path in (export.snapshot, *(edge.payload for edge in export.edges)) if not Path(path).is_file()]
    if gone:
        raise CheckpointError(
            f"{gone[0]} is gone, with which version {export.version} is to be published: put it back from a backup, or "
            "move the learner's folder away to go on from the published version in a new era"
        )


def _diff(base: Base, new: Snapshot, version: int, folder: Path) -> ExportedEdge:
    path = folder / f"v{version:010d}-from-{base.version:010d}.edge"
    payload = encode(Snapshot(Path(base.snapshot), root=base.root), new, path)
    return ExportedEdge(base=base.version, base_root=base.root, payload=str(path), hashed=hashed(path, payload.hash))


def _full(new: Snapshot, version: int, folder: Path) -> ExportedEdge:
    path = folder / f"v{version:010d}-full.edge"
    payload = encode_full(new, path)
    return ExportedEdge(base=None, base_root=None, payload=str(path), hashed=hashed(path, payload.hash))


def starts(version: int, published: Sequence[Base], anchor: Base | None) -> list[Base]:
    """Choose the bases of `version`'s diffs (rule 2), newest first. `published`: oldest first, all below `version`."""
    wanted = {version - (1 << j) for j in range(1, SKIPS + 1) if version % (1 << j) == 0}
    chosen = {base.version: base for base in published if base.version in wanted}
    chosen |= {base.version: base for base in published[-1:]}
    if anchor is not None and version % ANCHOR_EVERY == 0:
        chosen[anchor.version] = anchor
    return [chosen[number] for number in sorted(chosen, reverse=True)]


def useful(published: Sequence[Base]) -> list[Base]:
    """Choose those of `published` from which a later diff may start. These are the newest, and by rule 2 each version u
    until u + 2^j is the newest, where 2^j is the largest power (j <= 4) that divides u."""
    newest = published[-1].version if published else 0
    return [base for base in published if base.version == newest or base.version + _reach(base.version) > newest]


def _reach(version: int) -> int:
    return min(1 << SKIPS, version & -version) if version else 1 << SKIPS


def sweep(folder: Path, kept: set[int], snapshots: set[int]) -> None:
    """Remove the files of every version outside `kept`, except for the snapshots of those in `snapshots`."""
    for path in folder.iterdir():
        named = _FILE.fullmatch(path.name.removeprefix(".").removesuffix(".tmp"))
        if named is None or int(named[1]) in kept:
            continue
        if path.suffix == ".safetensors" and int(named[1]) in snapshots:
            continue
        path.unlink()
