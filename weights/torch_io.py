"""Copy weights between snapshots and torch modules. The only file of this package that imports torch.

1. The only cast, from the learner's dtype to the published one, is here: round to nearest, ties to even (`Tensor.to`).
   Diffs are computed between published bits, never between the learner's own.
2. A parameter that several names share is stored once, under the name that the model declares as the source of the tie
   (transformers' `all_tied_weights_keys`). Without a declaration it is the first name in order.
3. Loading and patching write in place: optimiser, captured graphs and views keep their storage.
4. A version of a model with low-rank adapters has the adapters' tensors alone; the rest is frozen (weights.lora).
5. Weights for a device are loaded by pieces, in the type of the file, and cast there: the host never has a whole tensor
   of them beside the file's pages.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from echo2.weights.codec.frames import Bits
from echo2.weights.diff import Change
from echo2.weights.documents import TensorEntry
from echo2.weights.errors import BadSnapshot
from echo2.weights.lora.adapter_config import INNER_SUFFIX, OUTER_SUFFIX, PREFIX
from echo2.weights.snapshot import BITS, Snapshot, writing_snapshot

TORCH_DTYPES: Final[dict[str, torch.dtype]] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
}
_NAMES: Final = {dtype: name for name, dtype in TORCH_DTYPES.items()}
PIECE_ELEMENTS: Final = 1 << 24
"""Elements of a tensor that are loaded at once (rule 5)."""


class NamedWeights(Protocol):
    """Weights that a model can take: a `Snapshot`, or the files of a model's folder."""

    @property
    def path(self) -> Path: ...

    @property
    def tensors(self) -> Sequence[TensorEntry]: ...

    @property
    def aliases(self) -> Mapping[str, str]: ...

    def bits(self, name: str) -> Bits:
        """Return the elements of a tensor, flat."""


def save_model(model: nn.Module, path: Path, dtype: torch.dtype = torch.bfloat16) -> Snapshot:
    """Write a model's state dict as a snapshot, floating-point tensors cast to `dtype`. Memory beyond the model: one
    tensor. Raises `BadSnapshot`, `DiskFull`."""
    tensors = published_tensors(model)
    return save_tensors(tensors, path, dtype=dtype, aliases=aliases_of(model, tensors))


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, *, dtype: torch.dtype = torch.bfloat16, aliases: dict[str, str]
) -> Snapshot:
    """Write named tensors (any device), leaving out those that `aliases` names. Each is asked for twice, and one at a
    time. Raises `BadSnapshot`, `DiskFull`."""
    entries = entries_of(tensors, dtype=dtype, aliases=aliases)
    with writing_snapshot(path, entries, aliases) as writer:
        for entry in entries:
            writer.write(published_bits(tensors[entry.name], dtype))
        root = writer.finish()
    return Snapshot(path, root=root)


def entries_of(tensors: Mapping[str, Tensor], *, dtype: torch.dtype, aliases: dict[str, str]) -> list[TensorEntry]:
    """Return the table of a snapshot of these tensors, ascending by name. Raises `BadSnapshot`."""
    return [_entry(name, tensors[name], dtype) for name in sorted(tensors) if name not in aliases]


def published_bits(tensor: Tensor, dtype: torch.dtype = torch.bfloat16) -> Bits:
    """Return the bits of a tensor, flat, cast to `dtype` if it is of floating point."""
    return _bits_of(tensor.detach().to(_cast_to(tensor, dtype)))


def _entry(name: str, tensor: Tensor, dtype: torch.dtype) -> TensorEntry:
    return TensorEntry(name=name, dtype=_name_of(name, _cast_to(tensor, dtype)), shape=tuple(tensor.shape))


def published_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of which a model's versions consist, by their names in a snapshot (rule 4)."""
    tensors = model.state_dict()
    adapters = {
        f"{PREFIX}{name}": tensor for name, tensor in tensors.items() if name.endswith((INNER_SUFFIX, OUTER_SUFFIX))
    }
    return adapters or tensors


def aliases_of(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return name -> name of the tensor that shares its storage, by rule 2."""
    declared: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    stored: dict[tuple[Any, ...], str] = {}
    aliases: dict[str, str] = {}
    for name in sorted(tensors, key=lambda name: (name in declared, name)):
        tensor = tensors[name]
        if tensor.numel():
            place = (tensor.device, tensor.dtype, tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
            if stored.setdefault(place, name) != name:
                aliases[name] = stored[place]
    return aliases


def load_into(model: nn.Module, weights: NamedWeights, tell: Callable[[], None] = lambda: None) -> None:
    """Copy weights into a model, cast to the dtype of each of its parameters. `tell`: called after each piece. Raises
    `BadSnapshot`, before anything is written, unless names and shapes are the same."""
    targets = _targets(model, weights.aliases)
    _check_names(targets, weights)
    for entry in weights.tensors:
        for target in targets[entry.name]:
            _load(target, weights.bits(entry.name), entry.dtype, tell)


@torch.no_grad()
def _load(target: Tensor, bits: Bits, dtype: str, tell: Callable[[], None]) -> None:
    """Copy all elements of a tensor into one of a model (rule 5)."""
    if not target.is_contiguous():
        target.copy_(tensor_of(bits, dtype).reshape(target.shape))
        return
    flat = target.view(-1)
    for start in range(0, len(bits), PIECE_ELEMENTS):
        piece = tensor_of(bits[start : start + PIECE_ELEMENTS], dtype)
        # A copy between devices that also casts would cast first, on the host.
        flat[start : start + PIECE_ELEMENTS].copy_(piece if target.device.type == "cpu" else piece.to(target.device))
        tell()


def patch(model: nn.Module, changes: Iterable[Change], aliases: Mapping[str, str]) -> int:
    """Write the changed elements into a model in place, cast to the dtype of its parameters; return their number.
    `aliases`: aliases of the snapshot. Call only with changes that `apply` has verified. Raises `BadSnapshot` where
    they do not fit the model: an index out of range would wedge a GPU until its process ends."""
    targets = _targets(model, aliases)
    written = 0
    for change in changes:
        index = torch.from_numpy(change.index)
        values = tensor_of(change.bits, change.tensor.dtype)
        for target in targets.get(change.tensor.name, [None]):
            if target is None or tuple(target.shape) != change.tensor.shape or change.index[-1] >= target.numel():
                raise BadSnapshot(f"the model has no {change.tensor.name!r} of shape {change.tensor.shape}")
            _put(target, index.to(target.device), values.to(target.device, target.dtype))
        written += len(index)
    return written


def tensor_of(bits: Bits, dtype: str) -> Tensor:
    """Return a flat tensor of a safetensors dtype that shares the memory of `bits`, if that is aligned. Do not write to
    it."""
    aligned = bits if bits.flags.aligned else bits.copy()
    with warnings.catch_warnings():
        # A snapshot's view is read-only; the tensor is only a source.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(aligned.view(np.uint8)).view(TORCH_DTYPES[dtype])


def _put(target: Tensor, index: Tensor, values: Tensor) -> None:
    with torch.no_grad():
        if target.is_contiguous():
            target.view(-1).index_copy_(0, index, values)
        else:
            target.index_put_(torch.unravel_index(index, target.shape), values)


def _targets(model: nn.Module, aliases: Mapping[str, str]) -> dict[str, list[Tensor]]:
    """Return stored name -> the model's tensors that hold it: more than one if only the snapshot ties them."""
    targets: dict[str, list[Tensor]] = {}
    for name, tensor in published_tensors(model).items():
        tensors = targets.setdefault(aliases.get(name, name), [])
        if all(other.data_ptr() != tensor.data_ptr() for other in tensors):
            tensors.append(tensor)
    return targets


def _check_names(targets: Mapping[str, list[Tensor]], weights: NamedWeights) -> None:
    names = {entry.name for entry in weights.tensors}
    # A name that the snapshot lacks is covered if the model itself ties it to one that the snapshot has.
    covered = {target.data_ptr() for name in names & targets.keys() for target in targets[name]}
    lacking = {name for name in targets.keys() - names if any(t.data_ptr() not in covered for t in targets[name])}
    differing = sorted(lacking | (names - targets.keys()))
    if differing:
        raise BadSnapshot(f"{weights.path} is of another model: {len(differing)} names differ, first {differing[0]!r}")
    for entry in weights.tensors:
        for target in targets[entry.name]:
            if tuple(target.shape) != entry.shape:
                raise BadSnapshot(
                    f"{entry.name!r} is {entry.shape} in the snapshot, {tuple(target.shape)} in the model"
                )


def _cast_to(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    return dtype if tensor.is_floating_point() else tensor.dtype


def _name_of(name: str, dtype: torch.dtype) -> Any:
    if dtype not in _NAMES:
        raise BadSnapshot(f"tensor {name!r} is of {dtype}, which a snapshot cannot hold")
    return _NAMES[dtype]


def _bits_of(tensor: Tensor) -> Bits:
    flat = tensor.cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().view(BITS[tensor.element_size()])
