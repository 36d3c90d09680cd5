"""A version's weights, or the change between two, in the coordinates of the model's own tensors: name, shape, flat
positions. For engines whose library keeps its own layout of the weights and maps these names to it.

Rules
1. A tensor that other names are tied to is sent under each of its names: the library decides which it has.
2. Elements that become NaN cannot be told from unchanged ones by such a library (vLLM marks these by NaN): their tensor
   is sent whole.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from echo2.weights.codec.frames import Bits
from echo2.weights.diff import Change
from echo2.weights.documents import TensorEntry
from echo2.weights.snapshot import Snapshot

_INFINITY: Final = {"F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F800000, "F64": 0x7FF0000000000000}
"""Number format -> the bits of infinity. Greater ones, without their sign, are NaN."""


class CheckpointPatch(NamedTuple):
    """New bits of a tensor, at `positions` (flat positions, ascending); None: all of it."""

    tensor: TensorEntry
    name: str
    bits: Bits
    positions: NDArray[np.int64] | None

    @property
    def nbytes(self) -> int:
        """Bytes that it carries."""
        return self.bits.nbytes + (0 if self.positions is None else self.positions.nbytes)


def whole(snapshot: Snapshot) -> Iterator[CheckpointPatch]:
    """Yield all tensors of a snapshot."""
    names = _names(snapshot.aliases)
    for entry in snapshot.tensors:
        for name in (entry.name, *names.get(entry.name, ())):
            yield CheckpointPatch(entry, name, snapshot.bits(entry.name), None)


def patches_of_changes(changes: Iterable[Change], snapshot: Snapshot) -> Iterator[CheckpointPatch]:
    """Yield what changed, one patch per tensor and name. `snapshot`: the version after the change."""
    names = _names(snapshot.aliases)
    for entry, index, bits in _by_tensor(changes):
        sparse = entry.dtype in _INFINITY and not _has_nan(bits, entry.dtype)
        for name in (entry.name, *names.get(entry.name, ())):
            yield CheckpointPatch(entry, name, *((bits, index) if sparse else (snapshot.bits(entry.name), None)))


def in_parts(patches: Iterable[CheckpointPatch], most: int) -> Iterator[list[CheckpointPatch]]:
    """Yield patches together while they carry at most `most` bytes, whole tensors and changes apart. One patch may
    exceed that."""
    part: list[CheckpointPatch] = []
    for patch in patches:
        mixed = bool(part) and (part[0].positions is None) != (patch.positions is None)
        if part and (mixed or sum(one.nbytes for one in part) + patch.nbytes > most):
            yield part
            part = []
        part.append(patch)
    if part:
        yield part


def _by_tensor(changes: Iterable[Change]) -> Iterator[tuple[TensorEntry, NDArray[np.int64], Bits]]:
    """Join the changes of a tensor, which come one after another where it spans several frames."""
    joined: list[Change] = []
    for change in changes:
        if joined and joined[0].tensor.name != change.tensor.name:
            yield _join(joined)
            joined = []
        joined.append(change)
    if joined:
        yield _join(joined)


def _join(changes: list[Change]) -> tuple[TensorEntry, NDArray[np.int64], Bits]:
    index = np.concatenate([change.index for change in changes])
    return changes[0].tensor, index, np.concatenate([change.bits for change in changes])


def _names(aliases: Mapping[str, str]) -> dict[str, list[str]]:
    """Return tensor -> the names that are tied to it."""
    names: dict[str, list[str]] = {}
    for alias, name in aliases.items():
        names.setdefault(name, []).append(alias)
    return names


def _has_nan(bits: Bits, dtype: str) -> bool:
    unsigned = bits.dtype.type
    without_sign = bits & unsigned(np.iinfo(bits.dtype).max >> 1)
    return bool((without_sign > unsigned(_INFINITY[dtype])).any())
