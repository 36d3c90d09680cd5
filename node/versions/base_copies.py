"""Begin from a copy of the base model that this machine has: the network then carries only what is not there.

Rules
1. A copy is a model's folder or a cache of the Hugging Face hub (weights/hub_cache.py). It is the one that the owner
   names, else the cache of this user is searched: first for the run's model by its name, then for every model whose
   tensors fit. It is looked for while no weights are on disk, and in vain once per start.
2. A copy is used only if its weights, in the tensors and number formats of the signed Version, have a content root at
   which signed Edges begin, and if the chain from there has fewer bytes than the one from nothing. In a run of adapters
   the file of the frozen base is written from a copy, and used only if it has the hash that the RunSpec names.
3. A copy that the owner named ends the node if it is no copy of version 0: `BadConfig`. One that was found by itself is
   then passed over with a remark, and so is any where the run's edges do not begin at version 0 any more. The payload
   is then fetched as without a copy.
4. Nothing is written to a copy's folder, and what is read there is verified as a payload is.
5. Reading gigabytes takes minutes: it ends within a piece of them once the node is to end.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, get_args

import structlog

from echo2.node.errors import BadConfig
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.swarm.manifest import manifest_of
from echo2.runtime.files import hidden_path, move
from echo2.weights import hub_cache
from echo2.weights.documents import Edge, TensorEntry, Version
from echo2.weights.errors import BadSnapshot
from echo2.weights.hf_import import FolderWeights, check_fit, stored_headers, tensor_hashes
from echo2.weights.lora.frozen_base import BaseFormat, base_length, write_base
from echo2.weights.snapshot import root_of
from echo2.weights.update_path import path_to

AUTO: Final = "auto"
NONE: Final = "none"
MOST_COMPARED: Final = 4
"""Most folders found by themselves that are compared: more may have fitting tensors."""

_C = TypeVar("_C")
_log = structlog.get_logger("node")


class BaseCopy(NamedTuple):
    """A copy of weights at which Edges begin. `saves`: bytes that are not fetched."""

    folder: Path
    root: bytes
    saves: int


class BaseCopies:
    """The copies on this machine. Methods block on the disk."""

    def __init__(self, named: str, environ: Mapping[str, str]) -> None:
        """`named`: the setting `base`. `environ`: variables that say where the hub's cache is."""
        self._named = None if named in (AUTO, NONE) else Path(named).expanduser()
        self._cache = hub_cache.cache_folder(environ) if named == AUTO else None
        self._in_vain = False

    def choose(
        self, model: str, version: Version, edges: Sequence[Edge], stops: Callable[[], bool] = lambda: False
    ) -> BaseCopy | None:
        """Return the copy to begin from, None without one. `model`: the run's. `version`: version to reach. `stops`:
        whether the node is to end; then `Stopped` is raised (rule 5). Raises `BadConfig` (rule 3)."""
        plan = _Plan(version, edges, stops)
        if self._in_vain or (self._named is None and not plan.begins_at_first):
            return None
        copy = self._first(self._folders(model, version.tensors), plan.compare)
        self._in_vain = copy is None
        return copy

    def write_frozen_base(
        self, model: str, manifest: Manifest, path: Path, stops: Callable[[], bool] = lambda: False
    ) -> None:
        """Write the frozen base of a run of adapters to `path`, if a copy gives the file that `manifest` names.
        `stops`: question of `choose`. Raises `BadConfig` (rule 3), `DiskFull`."""
        hidden_path(path).unlink(missing_ok=True)  # of a node that was killed as it wrote
        self._first(self._folders(model, None), lambda folder: _write_frozen_base(folder, manifest, path, stops))

    def _folders(self, model: str, tensors: Sequence[TensorEntry] | None) -> list[Path]:
        """Return the folders to compare (rule 1). `tensors`: those of the run; None: folders are found by name alone.
        Raises `BadConfig`."""
        if self._named is not None:
            try:
                return hub_cache.model_folders(self._named, model)
            except BadSnapshot as error:
                raise _bad_copy(error) from error
        if self._cache is None:
            return []
        folders = hub_cache.revisions(self._cache, model)
        if tensors is not None:
            others = [one for one in hub_cache.revisions(self._cache) if one not in folders]
            folders += [one for one in others if _fits(one, tensors)]
        return folders[:MOST_COMPARED]

    def _first(self, folders: Sequence[Path], compare: Callable[[Path], _C | None]) -> _C | None:
        """Return the first result that `compare` has for a folder, None without one. Raises `BadConfig`."""
        faults = list[BadSnapshot | OSError]()
        for folder in folders:
            try:
                if (result := compare(folder)) is not None:
                    return result
            except (BadSnapshot, OSError) as error:
                faults.append(error)
        for fault in faults:
            if self._named is not None:
                raise _bad_copy(fault) from fault
            _log.info("copy of the base passed over", reason=_reason(fault))
        return None


class _Plan:
    """The signed edges, and what a copy of some weights saves."""

    def __init__(self, version: Version, edges: Sequence[Edge], stops: Callable[[], bool]) -> None:
        self._version, self._edges, self._stops = version, edges, stops
        self._starts = {edge.base_root for edge in edges} | {version.root}
        self._full = next((edge for edge in edges if edge.base is None and edge.version == 0), None)
        self.begins_at_first = self._full is not None or any(edge.base == 0 for edge in edges)
        """Whether an edge leads to version 0, or from it."""

    def compare(self, folder: Path) -> BaseCopy | None:
        """Return a folder's weights as a copy; None where they save nothing. Raises `BadSnapshot` where they are not
        those of version 0, `OSError`."""
        table = self._version.tensors
        check_fit(folder, stored_headers(folder), table)
        _log.info("copy of the base is compared", folder=str(folder))
        hashes = tensor_hashes(folder, table, self._stops)
        root = root_of(table, self._version.aliases, hashes)
        saves = self._saved_by(root)
        if saves > 0:
            return BaseCopy(folder, root, saves)
        if self.begins_at_first and root not in self._starts:
            raise BadSnapshot(f"{folder} is not version 0 of this run: {self._difference(hashes)}")
        _log.info("copy of the base passed over", reason="the edges from version 0 do not save any bytes now")
        return None

    def _saved_by(self, root: bytes) -> int:
        """Return the bytes by which the chain from `root` is shorter than the one from nothing; 0 or less: none."""
        whole, rest = (path_to(self._edges, known, self._version.root) for known in ([], [root]))
        if root not in self._starts or rest is None:
            return 0
        return sum(edge.length for edge in whole or ()) - sum(edge.length for edge in rest)

    def _difference(self, hashes: Sequence[bytes]) -> str:
        """Say how many tensors differ from version 0, by the hashes of its full edge."""
        count, stated = len(hashes), b"" if self._full is None else self._full.tensor_hashes
        signed = [stated[at : at + 32] for at in range(0, len(stated), 32)]
        if self._full is None or len(signed) != count:
            return f"some of its {count} tensors differ"
        if root_of(self._version.tensors, self._version.aliases, signed) != self._full.root:
            return f"some of its {count} tensors differ"
        differ = sum(one != other for one, other in zip(hashes, signed, strict=True))
        return f"{differ} of its {count} tensors {'differs' if differ == 1 else 'differ'}"


def _write_frozen_base(folder: Path, manifest: Manifest, path: Path, stops: Callable[[], bool]) -> bool:
    """Write the frozen base that `manifest` names, in the format that has its length. Raises `BadSnapshot`, `Stopped`,
    `DiskFull`."""
    weights, partial = FolderWeights(folder, stops), hidden_path(path)
    for form in get_args(BaseFormat):
        if base_length(weights, form) == manifest.length:
            _log.info("copy of the base is compared", folder=str(folder))
            try:
                write_base(partial, weights, form)
                if manifest_of(partial) == manifest:
                    move(partial, path)
                    _log.info("base taken from a copy", folder=str(folder), not_fetched=manifest.length)
                    return True
            finally:
                partial.unlink(missing_ok=True)
    raise BadSnapshot(f"{folder} does not give this run's {path.name}: it is of another model or revision")


def _fits(folder: Path, tensors: Sequence[TensorEntry]) -> bool:
    try:
        check_fit(folder, stored_headers(folder), tensors)
    except (BadSnapshot, OSError):
        return False
    return True


def _bad_copy(error: BadSnapshot | OSError) -> BadConfig:
    return BadConfig(f"the setting base: {_reason(error)}; name another folder, or none")


def _reason(error: BadSnapshot | OSError) -> str:
    return str(error) if isinstance(error, BadSnapshot) else f"{error.filename} cannot be read ({error.strerror})"
