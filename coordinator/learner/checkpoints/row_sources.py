"""Read one rank's rows of the learner's tensors from files that fewer, as many or more ranks wrote.

Rules
1. Masters and moments are divided by rows (learner/ranks/row_shards.py); all other tensors are whole, in the first
   file.
2. The rows of a tensor stand in the files one after the other, in the order of the ranks that wrote them. A rank's rows
   are those of their concatenation, so any number of ranks can read what any number wrote.
3. A tensor is read when it is asked for, from the files that have its rows; nothing else is in memory. It is a copy:
   one that lies in a file would keep the disk space of a checkpoint that is removed, until this process ends.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor

from echo2.coordinator.learner.ranks.row_shards import rows_of_rank
from echo2.weights.hf_import import floats_of
from echo2.weights.snapshot import Snapshot

MASTER: Final = "master."
DIVIDED_PREFIXES: Final = (MASTER, "exp_avg.", "exp_avg_sq.")


class CheckpointRows(Mapping[str, Tensor]):
    """The tensors of a checkpoint: this rank's rows of those that are divided. `files`: files in the order of the ranks
    that wrote them. Raises SafetensorError, OSError."""

    def __init__(self, files: Sequence[Path], rank: int = 0, ranks: int = 1) -> None:
        self._rank, self._ranks = rank, ranks
        opened: Any = safe_open  # it carries no types
        self._files = [opened(file, framework="pt") for file in files]
        self._places: dict[str, list[Any]] = {}
        for number, file in enumerate(self._files):
            for name in file.keys():  # noqa: SIM118 - no mapping
                if number == 0 or name.startswith(DIVIDED_PREFIXES):
                    self._places.setdefault(name, []).append(file)

    def __getitem__(self, name: str) -> Tensor:
        files = self._places[name]
        if self._ranks == len(files) == 1 or not name.startswith(DIVIDED_PREFIXES):
            whole: Tensor = files[0].get_tensor(name)
            return whole.clone()
        slices = [file.get_slice(name) for file in files]
        counts = [part.get_shape()[0] for part in slices]
        start, stop = rows_of_rank(sum(counts), self._rank, self._ranks)
        pieces: list[Tensor] = []
        before = 0
        for part, count in zip(slices, counts, strict=True):
            first, last = max(start - before, 0), min(stop - before, count)
            if first < last or not pieces:
                pieces.append(part[first : max(first, last)] if first < count else part[count:count])
            before += count
        return torch.cat(pieces)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class SnapshotRows(Mapping[str, Tensor]):
    """The tensors of a snapshot as masters, float32: this rank's rows of each. `names`: names of each parameter, with
    those to which it is tied; the snapshot has one of them. Raises BadSnapshot for weights that are no numbers."""

    def __init__(self, snapshot: Snapshot, names: Mapping[str, Sequence[str]], rank: int, ranks: int) -> None:
        self._snapshot, self._rank, self._ranks = snapshot, rank, ranks
        stored = {entry.name: entry for entry in snapshot.tensors}
        self._entries = {
            f"{MASTER}{name}": next(stored[other] for other in others if other in stored)
            for name, others in names.items()
            if not stored.keys().isdisjoint(others)
        }

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries[name]
        start, stop = rows_of_rank(entry.shape[0], self._rank, self._ranks)
        width = entry.elements // max(1, entry.shape[0])
        bits = self._snapshot.bits(entry.name)[start * width : stop * width]
        return torch.from_numpy(floats_of(bits, entry.dtype).copy()).view(stop - start, *entry.shape[1:])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
