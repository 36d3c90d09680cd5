"""Load the version that a group names into a scorer, by stepping its folder of journaled weights.

    scorer/held     a folder of weights.journaled: one snapshot, and the journals of the steps among the last versions
    scorer/made     its replacement, while that is written
    scorer/2/...    the same of the second scorer; one folder for each further one

Rules
1. Versions are applied in the order of their publication, without gaps. The journals back to the oldest version that a
   group may still need are kept: within those the scorer steps back and forth without a payload.
2. Only its scorer's process writes to `held`. This process writes `made`, from a snapshot of the store and diffs, and
   moves it over `held` when it is complete: at the first start, after damage, or if no edge leads from `held`.
3. A kill at any moment leaves a complete version in `held`, old or new, from which the next scorer continues.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import anyio.to_thread
import structlog

from echo2.coordinator.publishing.published import Published
from echo2.coordinator.publishing.publisher import Publisher
from echo2.coordinator.verification.scorer import Scorer
from echo2.engines.engine import Loaded
from echo2.runtime.child import ChildError
from echo2.weights.documents import Edge
from echo2.weights.errors import WeightsError
from echo2.weights.journaled import Rolling, finish_replace, remove, replace_folder
from echo2.weights.shown_ranges import shown_of
from echo2.weights.snapshot import Snapshot
from echo2.weights.update_path import path_to, reachable

_SPOILED_WEIGHTS_ERRORS: Final = ("BadPayload", "BadSnapshot", "FileNotFoundError", "StoreCorrupt", "WrongBase")
"""Kinds of the scorer's errors that mean damaged weights."""

log = structlog.get_logger("coordinator")


def folder_of(folder: Path, number: int) -> Path:
    """Return the folder of a scorer. `folder`: that of all. `number`: its number, from 1."""
    return folder if number == 1 else folder / str(number)


def remove_folders_above(folder: Path, number: int) -> None:
    """Delete the folders of scorers that there were, and are no more. `folder`: that of all. `number`: scorers now."""
    for path in folder.glob("[0-9]*"):
        if path.name.isdecimal() and int(path.name) > number:
            shutil.rmtree(path)


class StepTo(NamedTuple):
    """A move to `root`, back or forth over journaled steps."""

    root: bytes


class StepBy(NamedTuple):
    """A move by an edge to a version that is not journaled. `keep`: number of journals to keep afterwards."""

    edge: Edge
    keep: int


def next_move(
    loaded: Loaded, published: Sequence[bytes], oldest: bytes, edges: Iterable[Edge], wanted: bytes
) -> StepTo | StepBy | None:
    """Return the move that brings the scorer nearer to root `wanted`, which is not loaded; None if there is none.
    `published`: roots of the published versions, in order. `oldest`: root of the oldest version that may still be
    needed. `edges`: the edges with a stored payload."""
    if wanted in (*loaded.behind, *loaded.ahead):
        return StepTo(wanted)
    tip = loaded.ahead[-1] if loaded.ahead else loaded.root
    places = {root: place for place, root in enumerate(published)}
    if not places.get(tip, len(published)) < places.get(wanted, -1):
        return None
    following = published[places[tip] + 1]
    steps = [edge for edge in edges if (edge.base_root, edge.root) == (tip, following)]
    if not steps:
        return None
    if loaded.root != tip:
        return StepTo(tip)
    return StepBy(min(steps, key=lambda edge: edge.length), max(0, places[following] - places.get(oldest, 0)))


class VersionMoves:
    """The moves of one scorer between versions. `oldest`: (era, version) of the oldest version that may still be
    needed. A subclass knows where the scorer's weights are, and makes the moves."""

    def __init__(self, scorer: Scorer, publisher: Publisher, *, oldest: Callable[[], tuple[int, int]]) -> None:
        self._scorer = scorer
        self._publisher = publisher
        self._oldest = oldest

    async def hold(self, root: bytes) -> bool:
        """Load `root` into the scorer; return False if it can no longer be reconstructed. Raises `ChildDied`,
        `DiskFull`, and `ChildError` if the scorer fails repeatedly."""
        anew, faults = iter((self._oldest_root(root), root)), 0
        while True:
            try:
                loaded = self._scorer.loaded or await self._load()
                if loaded is not None and loaded.root == root:
                    return True
                if loaded is not None and (move := self._next_move(loaded, root)) is not None:
                    await self._make(move)
                elif not await self._remade(target := next(anew, None)) and target in (root, None):
                    return False
            except ChildError as error:
                faults += 1
                await self._mend(error, faults)

    def may_load(self, root: bytes) -> bool:
        """Tell whether `root` can still be loaded, by what the scorer and the store have now. True while no version is
        loaded: only a try shows what the scorer's folder has."""
        loaded = self._scorer.loaded
        if loaded is None:
            return True
        near = {loaded.root, *loaded.behind, *loaded.ahead, *self._publisher.stored.snapshots()}
        return root in reachable(self._publisher.stored.payloads(), near)

    def before(self, root: bytes) -> Published | None:
        """Return the version before the one of `root`, if it is of the same era and the scorer, which has `root`
        loaded, reaches it by undoing one step; else None."""
        loaded, versions = self._scorer.loaded, self._publisher.versions
        for before, version in zip(reversed(versions[:-1]), reversed(versions[1:]), strict=True):
            if version.root == root != before.root:
                near = loaded is not None and loaded.root == root and loaded.behind[:1] == [before.root]
                return before if near and before.era == version.era else None
        return None

    async def shown_hash(self, lease: bytes) -> bytes:
        """Return the hash by which a node shows the bytes that a lease asks for, of the version that is loaded. Raises
        `OSError`, `BadSnapshot`, and as the scorer's calls do."""
        raise NotImplementedError

    async def _make(self, move: StepTo | StepBy) -> None:
        """Make a move, if its payload is still there."""
        raise NotImplementedError

    async def _load(self) -> Loaded | None:
        """Load the weights that the scorer's folder has; return None where it has none."""
        raise NotImplementedError

    async def _remade(self, root: bytes | None) -> bool:
        """Replace the weights by new ones at `root`, and load them; return False if no stored path leads there."""
        raise NotImplementedError

    async def _forget(self) -> None:
        """Delete the weights, which are damaged."""
        raise NotImplementedError

    def _next_move(self, loaded: Loaded, root: bytes) -> StepTo | StepBy | None:
        edges = self._publisher.steps_from(loaded.ahead[-1] if loaded.ahead else loaded.root)
        return next_move(loaded, self._published_roots(), self._oldest_root(root), edges, root)

    async def _mend(self, error: ChildError, faults: int) -> None:
        """Keep the weights after the first fault, and delete them after the second, so that the caller retries. Raise
        any later fault, and any that does not mean damaged weights."""
        if error.kind not in _SPOILED_WEIGHTS_ERRORS or faults > 2:
            raise error
        log.warning("scorer's weights", kind=error.kind, reason=str(error), anew=faults == 2)
        if faults == 2:
            await self._forget()

    def _published_roots(self) -> list[bytes]:
        """Return the roots in the order of publication, without those equal to their predecessor's."""
        roots = [version.root for version in self._publisher.versions]
        return [root for root, before in zip(roots, [None, *roots], strict=False) if root != before]

    def _oldest_root(self, root: bytes) -> bytes:
        """Return the root of the oldest version that may be needed, or `root` if that is older."""
        oldest = self._oldest()
        for version in self._publisher.versions:
            if version.root == root or (version.era, version.version) >= oldest:
                return version.root
        return root


class ScorerWeights(VersionMoves):
    """The folder of weights of a scorer of this machine."""

    def __init__(
        self,
        scorer: Scorer,
        publisher: Publisher,
        *,
        model: Path,
        folder: Path,
        oldest: Callable[[], tuple[int, int]],
    ) -> None:
        super().__init__(scorer, publisher, oldest=oldest)
        self._model = model
        self._path = folder / "held"
        self._unpacked = folder / "made"

    async def shown_hash(self, lease: bytes) -> bytes:
        """See `VersionMoves`."""
        return await anyio.to_thread.run_sync(shown_of, self._path, lease)

    async def _make(self, move: StepTo | StepBy) -> None:
        if isinstance(move, StepTo):
            await self._scorer.step_to(move.root)
        else:
            payload = self._publisher.payload(move.edge)
            if payload is not None:
                await self._scorer.step_by(payload, move.edge.root, move.keep)
                log.info("scorer stepped", version=move.edge.version, keep=move.keep)

    async def _load(self) -> Loaded | None:
        if await anyio.to_thread.run_sync(self._is_there):
            return await self._scorer.load(self._model, self._path)
        return None

    def _is_there(self) -> bool:
        remove(self._unpacked)
        finish_replace(self._path)
        return (self._path / "origin").exists()

    async def _forget(self) -> None:
        await anyio.to_thread.run_sync(remove, self._path)

    async def _remade(self, root: bytes | None) -> bool:
        """Replace the folder by a new one at `root` (rule 2); return False if no stored path leads there."""
        reason: Exception | None = None
        for _ in range(2):  # the latest snapshot goes when a newer version is published: then by payloads
            snapshots, edges = self._publisher.stored.snapshots(), self._publisher.stored.payloads()
            chain = None if root is None else path_to(edges, snapshots, root)
            if root is None or chain is None:
                return False
            try:
                await anyio.to_thread.run_sync(self._write, root, chain, snapshots, edges)
            except (WeightsError, FileNotFoundError) as error:
                reason = error
                continue
            log.info("scorer's weights reconstructed", root=root.hex()[:16], edges=len(chain))
            await self._scorer.load(self._model, self._path)
            return True
        log.error("scorer's weights cannot be reconstructed", root=root.hex()[:16] if root else "", reason=str(reason))
        return False

    def _write(
        self, root: bytes, chain: Sequence[Edge], snapshots: Mapping[bytes, Path], payloads: Mapping[Edge, Path]
    ) -> None:
        self._unpacked.parent.mkdir(parents=True, exist_ok=True)
        start = chain[0].base_root if chain else root
        if start is None:
            unpacked = Rolling.unpack(self._unpacked, payloads[chain[0]], chain[0].root)
            chain = chain[1:]
        else:
            unpacked = Rolling.create(self._unpacked, Snapshot(snapshots[start], root=start))
        for edge in chain:
            unpacked.apply(payloads[edge], edge.root)
        replace_folder(self._unpacked, self._path)
