"""Write a version to disk, ready to be signed: its snapshot and the payloads of the edges that lead to it.

    <folder>/v0000000012.safetensors           the snapshot, bfloat16
             v0000000012-from-0000000011.edge  payload of the diff from a published version
             v0000000012-full.edge             payload of a full edge
             v0000000011-back-0000000012.edge  payload of the diff back, which is never published

Rules
1. A version's number is the step that made it, and names its files.
2. Diffs to a version v start only from published versions, and from their published bytes. The bases are the
   predecessor; v - 2^j where 2^j divides v (j <= 4); and, every 32 versions, the last version with a full edge (the
   anchor). A full edge has the first version of an era, and the first of each 256.
3. Of published versions only the newest has a snapshot here. The others are read from it through payloads back, and the
   anchor from its full edge (weights/virtual_snapshot.py). Payloads back take at most `BACK_SHARE` of a snapshot: where
   the weights change so much that they would take more, older versions are no bases.
4. Every file is durable when the callable given by `writing` returns. Nothing here rounds: the model's values are the
   published ones (see `optimiser`). The diffs are encoded from files, in a thread, while the checkpoint's tensors are
   written. A payload is hashed here, once before it is served: the whole while it is written, and its chunks, whose
   size depends on the payload's length, in one pass afterwards.
5. Files are removed when no diff will start from them and `keep` later versions are published.
6. Checkpoint and journal name files by their paths, and the run's folder may be moved: a file is looked up in the
   folder of exports first. Where one of an export that is yet to be published is gone, the learner does not open.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from echo2.coordinator.learner.checkpoints.checkpoint import Base, CheckpointError, State
from echo2.coordinator.learner.messages import Export, ExportedEdge
from echo2.p2p.swarm.manifest import hash_payload
from echo2.runtime.files import link_or_copy
from echo2.weights.diff import encode, encode_full
from echo2.weights.snapshot import Snapshot, WeightsSource
from echo2.weights.virtual_snapshot import VirtualSnapshot

SKIP_LEVELS: Final = 4
ANCHOR_EVERY: Final = 32
FULL_EVERY: Final = 256
BACK_SHARE: Final = 0.25
_EDGE: Final = re.compile(r"v(\d{10})-(?:from-\d{10}|full)\.edge")
_FILE: Final = re.compile(r"v\d{10}(?:\.safetensors|-\S+\.edge)")


@contextmanager
def writing(
    new: Snapshot, version: int, published: Sequence[Base], anchor: Base | None, folder: Path, *, whole: bool
) -> Iterator[Callable[[], Export]]:
    """During the block, encode in a thread the diffs to the snapshot `new` (rule 2), the one back and, if `whole`, the
    full edge. Yields a callable that waits for the thread and returns the export, or raises its error. `published`: the
    same as in `State`."""
    started = time.perf_counter()

    def encoded() -> Export:
        bases = starts(version, published, anchor)
        edges = [_diff(base, _open_base(base, published), new, version, folder) for base in bases]
        edges += [_full(new, version, folder)] if whole else []
        _write_back(edges, published, new, version, folder)
        seconds = time.perf_counter() - started
        return Export(version=version, root=new.root, snapshot=str(new.path), edges=edges, seconds=seconds)

    with ThreadPoolExecutor(1, "encode") as thread:
        yield thread.submit(encoded).result


def place(folder: Path, version: int) -> Path:
    """Return the path of a version's snapshot."""
    return folder / f"v{version:010d}.safetensors"


def back_place(folder: Path, version: int, start: int) -> Path:
    """Return the path of the payload that leads back to `version` from the later version `start`."""
    return folder / f"v{version:010d}-back-{start:010d}.edge"


def full_due(version: int, anchor: Base | None) -> bool:
    """Tell whether a version of an era that has begun gets a full edge (rule 2)."""
    return anchor is not None and version // FULL_EVERY > anchor.version // FULL_EVERY


def adopt(snapshot: Path, version: int, folder: Path) -> Path:
    """Link or copy a version's snapshot to its path in `folder`, where it stays as long as diffs start from it."""
    target = place(folder, version)
    if target.exists():
        if target.samefile(snapshot):
            return target
        target.unlink()  # of a version that was never published: another version has its number
    link_or_copy(snapshot, target)
    return target


def locate_files(state: State, folder: Path) -> State:
    """Return a checkpoint's state with the files of its versions as they are in `folder` now (rule 6)."""

    def file(path: str) -> str:
        here = folder / Path(path).name
        return str(here) if path and here.is_file() else path

    def base(one: Base) -> Base:
        return msgspec.structs.replace(one, snapshot=file(one.snapshot), payload=file(one.payload))

    last = state.export
    if last is not None:
        edges = [msgspec.structs.replace(edge, payload=file(edge.payload)) for edge in last.edges]
        last = msgspec.structs.replace(last, snapshot=file(last.snapshot), edges=edges)
    anchor = None if state.anchor is None else base(state.anchor)
    return msgspec.structs.replace(state, export=last, anchor=anchor, published=[base(one) for one in state.published])


def check_files(export: Export) -> None:
    """Raise CheckpointError if a file of an export that is to be published is gone (rule 6)."""
    gone = [path for path in (export.snapshot, *(edge.payload for edge in export.edges)) if not Path(path).is_file()]
    if gone:
        raise CheckpointError(
            f"{gone[0]} is gone, with which version {export.version} is to be published: put it back from a backup, or "
            "move the learner's folder away to go on from the published version in a new era"
        )


def append_version(published: Sequence[Base], newest: Base, folder: Path) -> list[Base]:
    """Return `published` with the version `newest` behind them. The newest one before is read through the payload back
    from `newest`; where that is gone, it and those before it are no bases any more."""
    older = [base for base in published if base.version < newest.version]
    if older and older[-1].snapshot:
        back = back_place(folder, older[-1].version, newest.version)
        older[-1] = msgspec.structs.replace(older[-1], snapshot="", payload=str(back))
    return [*_readable(older), newest]


def anchor_of_version(export: Export | None, anchor: Base | None, version: int) -> Base | None:
    """Return the anchor once `version` is published: itself, if it is that of `export` and has a full edge."""
    if export is not None and export.version == version:
        for edge in export.edges:
            if edge.base is None:
                return Base(version, export.root, payload=edge.payload)
    return anchor if anchor is not None and Path(anchor.payload).is_file() else None


def _readable(older: Sequence[Base]) -> list[Base]:
    """Return the last of `older` whose payloads back are here, oldest first."""
    kept = list[Base]()
    for base in reversed(older):
        if not Path(base.payload).is_file():
            break
        kept.insert(0, base)
    return kept


def _open_base(base: Base, published: Sequence[Base]) -> WeightsSource:
    """Open the weights of a base (rule 3)."""
    if base.snapshot:
        return Snapshot(Path(base.snapshot), root=base.root)
    if base not in published:
        return VirtualSnapshot(None, [Path(base.payload)], base.root)
    newest = published[-1]
    steps = [Path(one.payload) for one in reversed(published[published.index(base) : -1])]
    return VirtualSnapshot(Snapshot(Path(newest.snapshot), root=newest.root), steps, base.root)


def _diff(base: Base, old: WeightsSource, new: Snapshot, version: int, folder: Path) -> ExportedEdge:
    path = folder / f"v{version:010d}-from-{base.version:010d}.edge"
    payload = encode(old, new, path)
    return ExportedEdge(
        base=base.version, base_root=base.root, payload=str(path), hashed=hash_payload(path, payload.hash)
    )


def _write_back(
    edges: Sequence[ExportedEdge], published: Sequence[Base], new: Snapshot, version: int, folder: Path
) -> None:
    """Write the payload back to the newest published version, unless it would take more than all may (rule 3): it takes
    about as much as the diff from there."""
    for base in published[-1:]:
        diffs = [Path(edge.payload).stat().st_size for edge in edges if edge.base == base.version]
        if base.snapshot and all(size <= BACK_SHARE * new.nbytes for size in diffs):
            encode(new, Snapshot(Path(base.snapshot), root=base.root), back_place(folder, base.version, version))


def _full(new: Snapshot, version: int, folder: Path) -> ExportedEdge:
    path = folder / f"v{version:010d}-full.edge"
    payload = encode_full(new, path)
    return ExportedEdge(base=None, base_root=None, payload=str(path), hashed=hash_payload(path, payload.hash))


def starts(version: int, published: Sequence[Base], anchor: Base | None) -> list[Base]:
    """Choose the bases of `version`'s diffs (rule 2), newest first. `published`: oldest first, all below `version`."""
    wanted = {version - (1 << j) for j in range(1, SKIP_LEVELS + 1) if version % (1 << j) == 0}
    chosen = {base.version: base for base in published if base.version in wanted}
    chosen |= {base.version: base for base in published[-1:]}
    if anchor is not None and version % ANCHOR_EVERY == 0:
        chosen.setdefault(anchor.version, anchor)
    return [chosen[number] for number in sorted(chosen, reverse=True)]


def useful(published: Sequence[Base], room: int) -> list[Base]:
    """Choose those of `published` from which a later diff may start, or through which they are read: the newest, and
    those less than 2^4 older. `room`: bytes that payloads back may take together; the oldest are left out."""
    kept = list(published[-1:])
    for base in reversed(published[:-1]):
        room -= Path(base.payload).stat().st_size
        if room < 0 or base.version + (1 << SKIP_LEVELS) <= published[-1].version:
            break
        kept.insert(0, base)
    return kept


def sweep(folder: Path, kept: range, named: set[Path]) -> None:
    """Remove every file outside `named`, except for the payloads of edges that lead to the versions `kept`."""
    names = {path.name for path in named}
    for path in folder.iterdir():
        name = path.name.removeprefix(".").removesuffix(".tmp")
        edge = _EDGE.fullmatch(name)
        if _FILE.fullmatch(name) and path.name not in names and not (edge and int(edge[1]) in kept):
            path.unlink()
