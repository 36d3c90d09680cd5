"""Import a model folder (one safetensors file, or shards with an index, as on model hubs) as a snapshot, without torch.

1. A tensor table, if given (the Version's or the RunSpec's), selects the tensors to take; the folder may have more.
   Without a table, all are taken.
2. Floating-point tensors are cast to the table's dtype where that is BF16 and the file has F32 or F16: round to
   nearest, ties to even, any NaN to 0x7fc0 (torch's NaN differs between machines). Any other difference of dtype or
   shape is refused.
3. Every fault of the folder raises `BadSnapshot`, and the message names the fix.
"""

import json
import mmap
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from echo2.weights.documents import ITEM_BYTES, DType, TensorEntry
from echo2.weights.errors import BadSnapshot, Stopped
from echo2.weights.snapshot import BITS, Bits, Snapshot, read_header, writing_snapshot

INDEX: Final = "model.safetensors.index.json"
SINGLE_FILE: Final = "model.safetensors"
_MAX_INDEX: Final = 64 << 20
_SHARD: Final = re.compile(r"\w[\w.+-]{0,199}", re.ASCII)
"""The name of a shard."""
_PIECE_ELEMENTS: Final = 4 << 20
"""Elements that are cast and written at a time."""


class _Place(NamedTuple):
    """Place of a tensor in a file. `at`: byte at which it begins."""

    entry: TensorEntry
    path: Path
    at: int


def import_model(
    folder: Path,
    out: Path,
    tensors: Sequence[TensorEntry] | None = None,
    aliases: dict[str, str] | None = None,
    stops: Callable[[], bool] = lambda: False,
) -> Snapshot:
    """Write the snapshot `out` from a model folder. Memory: one piece. `stops`: asked before each piece whether to
    raise `Stopped`. Raises `BadSnapshot`, `DiskFull`."""
    stored = _places(folder)
    wanted = (
        sorted((one.entry for one in stored.values()), key=lambda entry: entry.name) if tensors is None else tensors
    )
    check_fit(folder, [one.entry for one in stored.values()], wanted)
    with writing_snapshot(out, wanted, aliases or {}) as writer:
        for entry in wanted:
            for piece in _pieces(stored[entry.name], entry.dtype, stops):
                writer.write(piece)
        root = writer.finish()
    return Snapshot(out, root=root)


class FolderWeights:
    """The weights of a model folder as they are stored. `tensors`: ascending by name."""

    def __init__(self, path: Path, stops: Callable[[], bool] = lambda: False) -> None:
        """`stops`: asked before each tensor whether to raise `Stopped`. Raises `BadSnapshot`."""
        self.path = path
        self._stops = stops
        self._bits = {entry.name: (entry, bits) for entry, bits in stored_tensors(path)}
        self.tensors = [self._bits[name][0] for name in sorted(self._bits)]
        self.aliases: dict[str, str] = {}

    def bits(self, name: str) -> Bits:
        """Return the elements of a tensor, flat. Raises `Stopped`."""
        if self._stops():
            raise Stopped
        return self._bits[name][1]


def tensor_hashes(
    folder: Path, tensors: Sequence[TensorEntry], stops: Callable[[], bool] = lambda: False
) -> list[bytes]:
    """Return the BLAKE3 of the bytes of each of `tensors`, as `import_model` writes them. Memory: one piece. `stops`:
    as there. Raises `BadSnapshot`."""
    stored = _places(folder)
    check_fit(folder, [one.entry for one in stored.values()], tensors)
    hashes = list[bytes]()
    for entry in tensors:
        hasher = blake3()
        for piece in _pieces(stored[entry.name], entry.dtype, stops):
            hasher.update(piece.view(np.uint8).data)
        hashes.append(hasher.digest())
    return hashes


def check_fit(folder: Path, stored: Iterable[TensorEntry], wanted: Sequence[TensorEntry]) -> None:
    """Check that the tensors of a folder give those `wanted` (rules 1 and 2). Raises `BadSnapshot`."""
    entries = {entry.name: entry for entry in stored}
    for entry in wanted:
        if entry.name not in entries:
            raise BadSnapshot(f"{folder} lacks tensor {entry.name!r}: it is of another model or revision")
        _check_castable(folder, entries[entry.name], entry)


def holds_model(folder: Path) -> bool:
    """Tell whether a folder has the files of a model, or the index of its shards."""
    return (folder / SINGLE_FILE).is_file() or (folder / INDEX).is_file()


def stored_tensors(folder: Path) -> Iterator[tuple[TensorEntry, Bits]]:
    """Yield each tensor of a model folder, with its elements, flat, which are read as they are looked at. Raises
    `BadSnapshot`."""
    for file in _files(folder):
        yield from _tensors(file)


def stored_headers(folder: Path) -> list[TensorEntry]:
    """Return the tensors of a model folder, by the headers of its files alone. Raises `BadSnapshot`."""
    return [one.entry for one in _places(folder).values()]


def bf16_of(bits: Bits) -> Bits:
    """Convert F32 bits to BF16 bits: round to nearest, ties to even; any NaN becomes 0x7fc0."""
    wide = bits.astype(np.uint32)
    rounded = ((wide.astype(np.uint64) + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)
    rounded[(wide & 0x7FFFFFFF) > 0x7F800000] = 0x7FC0
    return rounded


def _places(folder: Path) -> dict[str, _Place]:
    """Return the tensors of a model folder by name, by the headers of its files alone. Raises `BadSnapshot`."""
    stored = dict[str, _Place]()
    for path in _files(folder):
        with path.open("rb") as file:
            header = read_header(file)
        for entry, at in zip(header.tensors, header.offsets, strict=True):
            stored[entry.name] = _Place(entry, path, at)
    return stored


def _pieces(stored: _Place, dtype: DType, stops: Callable[[], bool]) -> Iterator[Bits]:
    """Yield the elements of a tensor, cast (rule 2), in pieces. They are read, not mapped: a file that another process
    cuts short meanwhile would else end this one. Raises `BadSnapshot`, `Stopped`."""
    entry, width = stored.entry, ITEM_BYTES[stored.entry.dtype]
    with stored.path.open("rb") as file:
        file.seek(stored.at)
        left = entry.nbytes
        while left:
            if stops():
                raise Stopped
            data = file.read(min(left, _PIECE_ELEMENTS * width))
            if not data or len(data) % width:
                raise BadSnapshot(f"{stored.path} was cut short while it was read: download it again")
            left -= len(data)
            piece = np.frombuffer(data, BITS[width])
            yield piece if entry.dtype == dtype else bf16_of(floats_of(piece, entry.dtype).view(np.uint32))


def floats_of(bits: Bits, dtype: str) -> NDArray[np.float32]:
    """Return the values of BF16, F16 or F32 bits as float32, without loss. Raises `BadSnapshot` for another type."""
    if dtype == "BF16":
        wide = bits.astype(np.uint32)
        return np.left_shift(wide, 16, out=wide).view(np.float32)
    if dtype == "F16":
        return bits.view(np.float16).astype(np.float32)
    if dtype != "F32":
        raise BadSnapshot(f"weights of type {dtype} are no numbers to compute with: store them in BF16, F16 or F32")
    return bits.view(np.float32)


def _files(folder: Path) -> list[Path]:
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    index = folder / INDEX
    if not index.is_file():
        raise BadSnapshot(f"{folder} holds neither {SINGLE_FILE} nor {INDEX}: download a safetensors model there")
    names = shard_names(index)
    for name in names:
        if not (folder / name).is_file():
            raise BadSnapshot(f"{index} names the shard {name!r}, which is not in the folder: download it")
    return [folder / name for name in names]


def shard_names(index: Path) -> list[str]:
    """Return the names of the files that an index of shards names, each a plain name. Raises `BadSnapshot`."""
    if index.stat().st_size > _MAX_INDEX:
        raise BadSnapshot(f"{index} is larger than {_MAX_INDEX} bytes: download it again")
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadSnapshot(f"{index} is no shard index: {error}; download it again") from error
    for name in names:
        if not isinstance(name, str) or not _SHARD.fullmatch(name):
            raise BadSnapshot(f"{index} names the shard {name!r:.200}, which is no plain name: download it again")
    return sorted(names)


def _tensors(path: Path) -> list[tuple[TensorEntry, Bits]]:
    with path.open("rb") as file:
        header = read_header(file)
        data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    return [
        (entry, data[at : at + entry.nbytes].view(BITS[ITEM_BYTES[entry.dtype]]))
        for entry, at in zip(header.tensors, header.offsets, strict=True)
    ]


def _check_castable(folder: Path, entry: TensorEntry, wanted: TensorEntry) -> None:
    same = entry.dtype == wanted.dtype or (wanted.dtype == "BF16" and entry.dtype in ("F32", "F16"))
    if entry.shape != wanted.shape or not same:
        raise BadSnapshot(
            f"tensor {wanted.name!r} is {entry.dtype} {entry.shape} in {folder}, not {wanted.dtype} {wanted.shape}: it "
            "is of another model or revision"
        )
