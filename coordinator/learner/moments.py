"""Keep AdamW's moments of a parameter: on its device, on the host, or in blocks of 8 bits.

Rules
1. A parameter is updated by pieces, so that what an update needs beside them is small. Moments on the host are pinned
   beside a GPU, and come to the device by these pieces.
2. In 8 bits an element has a code, and each block of a row the greatest absolute value of its elements. No block has
   elements of two rows: so blocks are the same however many ranks divide the rows.
3. Codes are a geometric series of sizes below that greatest value: small elements are as exact as large ones, to 7 %.
   The second moment is stored as its square root, and never rounded to 0, by which the update would divide.
4. A value between two codes is rounded to either of them, by chance, in proportion: a mean that decays by 0.1 % per
   update would else never move. The chance is a hash of the element's place and the number of updates, so that a step
   that is made again has the same bits.
5. A checkpoint has float32 values in all three forms, and each form reads those of the others. Codes become the same
   codes again.
6. Norms and biases, which are small and have rows of one element, stay in float32.
"""

from collections.abc import Sequence
from types import EllipsisType
from typing import Final, Literal, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

StateKind: TypeAlias = Literal["float32", "host", "8bit"]
Piece: TypeAlias = slice | EllipsisType
"""Rows of a parameter, or all of it."""
HOST_ELEMENTS: Final = 1 << 26
"""Elements of a parameter that a device updates at once (rule 1)."""
CPU_ELEMENTS: Final = 1 << 20
"""The same on a CPU, whose cache they suit."""
CODED_ELEMENTS: Final = 1 << 24
"""Elements of a parameter whose moments are decoded at once."""
BLOCK: Final = 256
_FIRST_RANGE, _SECOND_RANGE = 12, 16
"""Powers of two between the greatest and the least size of a code."""
_LEAST_SCALE: Final = 2.0**-46
"""A block whose greatest value is below this is 0: it is far below Adam's epsilon, and its square is still normal."""
_MIX: Final = (-7046029254386353131, -2960836687070126701)
"""Odd factors of a hash (the first is 2^64 by the golden ratio), as signed integers."""
_CHANCE_BITS: Final = 24


class Moments(Protocol):
    """The moments of the rows of a parameter that this rank has."""

    @property
    def nbytes(self) -> int:
        """Bytes on the parameter's device."""

    @property
    def pieces(self) -> Sequence[Piece]:
        """Elements that are read, updated and written at once."""

    def read(self, piece: Piece) -> tuple[Tensor, Tensor]:
        """Return the first and second moments of a piece, float32, on the parameter's device."""

    def write(self, piece: Piece, first: Tensor, second: Tensor, updates: Tensor) -> None:
        """Take the moments of a piece. `updates`: how many there were before."""

    def first(self) -> Tensor:
        """Return all first moments, float32, on any device."""

    def second(self) -> Tensor:
        """Return all second moments, float32, on any device."""

    def take(self, first: Tensor, second: Tensor) -> None:
        """Take what `first` and `second` returned."""


def moments_of(parameter: Tensor, kind: str, first_row: int) -> Moments:
    """Return moments of 0. `kind`: a `StateKind`. `first_row`: number of the parameter's first row in the whole one."""
    if kind == "8bit" and parameter.ndim > 1:
        return CodedMoments(parameter, first_row)
    return PlainMoments(parameter, on_host=kind == "host")


class PlainMoments:
    """Moments in float32, on the device or on the host."""

    def __init__(self, parameter: Tensor, *, on_host: bool) -> None:
        self._device, self._on_host, self._shape = parameter.device, on_host, parameter.shape
        zeros = torch.zeros(parameter.shape, device="cpu" if on_host else parameter.device)
        self._first, self._second = self._place(zeros), self._place(zeros.clone())

    @property
    def nbytes(self) -> int:
        """See `Moments`."""
        return 0 if self._on_host else self._first.nbytes + self._second.nbytes

    @property
    def pieces(self) -> Sequence[Piece]:
        """See `Moments`."""
        on_cpu = self._device.type == "cpu" and not self._on_host
        return _rows(self._shape, CPU_ELEMENTS if on_cpu else HOST_ELEMENTS)

    def read(self, piece: Piece) -> tuple[Tensor, Tensor]:
        """See `Moments`: views, where they are on the device."""
        return self._first[piece].to(self._device), self._second[piece].to(self._device)

    def write(self, piece: Piece, first: Tensor, second: Tensor, updates: Tensor) -> None:
        """See `Moments`."""
        if self._first.device != first.device:
            self._first[piece].copy_(first)
            self._second[piece].copy_(second)

    def first(self) -> Tensor:
        """See `Moments`."""
        return self._first

    def second(self) -> Tensor:
        """See `Moments`."""
        return self._second

    def take(self, first: Tensor, second: Tensor) -> None:
        """See `Moments`."""
        self._first, self._second = self._place(first), self._place(second)

    def _place(self, tensor: Tensor) -> Tensor:
        if not self._on_host:
            return tensor.to(self._device)
        return tensor.cpu().pin_memory() if self._device.type == "cuda" else tensor.cpu()


class CodedMoments:
    """Moments in 8 bits (rules 2 to 4)."""

    def __init__(self, parameter: Tensor, first_row: int) -> None:
        self._shape, self._first_row, device = parameter.shape, first_row, parameter.device
        rows, width = len(parameter), parameter[:1].numel() if len(parameter) else 1
        self._width = width
        self._tables = _signed_table().to(device), _table().to(device)
        blocks = -(-width // BLOCK)
        self._codes = tuple(torch.zeros((rows, width), dtype=torch.uint8, device=device) for _ in range(2))
        self._greatest = tuple(torch.zeros((rows, blocks), device=device) for _ in range(2))

    @property
    def nbytes(self) -> int:
        """See `Moments`."""
        return sum(tensor.nbytes for tensor in (*self._codes, *self._greatest))

    @property
    def pieces(self) -> Sequence[Piece]:
        """See `Moments`."""
        return _rows(self._shape, CODED_ELEMENTS)

    def read(self, piece: Piece) -> tuple[Tensor, Tensor]:
        """See `Moments`."""
        first, root = (self._decode(number, piece) for number in range(2))
        return first, root.square_()

    def write(self, piece: Piece, first: Tensor, second: Tensor, updates: Tensor) -> None:
        """See `Moments`."""
        chances = _chances(self._start(piece), first.numel(), updates)
        self._encode(piece, (first, second), chances)

    def first(self) -> Tensor:
        """See `Moments`."""
        return self._whole(0)

    def second(self) -> Tensor:
        """See `Moments`."""
        return self._whole(1).square_()

    def take(self, first: Tensor, second: Tensor) -> None:
        """See `Moments`."""
        for piece in self.pieces:
            self._encode(piece, (first[piece], second[piece]), (None, None))

    def _start(self, piece: Piece) -> int:
        """Return the number of a piece's first element in the whole parameter."""
        return (self._first_row + (piece.start if isinstance(piece, slice) else 0)) * self._width

    def _whole(self, number: int) -> Tensor:
        """Decode all, on the host: the device may have no room."""
        parts = [self._decode(number, piece).cpu() for piece in self.pieces]
        return torch.cat(parts) if parts else torch.empty(self._shape)

    def _decode(self, number: int, piece: Piece) -> Tensor:
        codes, greatest = self._codes[number][piece], self._greatest[number][piece]
        values = self._tables[number][codes.int()]
        values *= greatest.repeat_interleave(min(BLOCK, self._width), dim=1)[:, : self._width]
        return values.view(-1, *self._shape[1:])

    def _encode(
        self, piece: Piece, moments: tuple[Tensor, Tensor], chances: tuple[Tensor | None, Tensor | None]
    ) -> None:
        device = self._codes[0].device
        for number, (values, chance) in enumerate(zip(moments, chances, strict=True)):
            flat = values.to(device).reshape(-1, self._width)
            root = number == 1
            codes, greatest = encode(flat.sqrt() if root else flat, self._tables[number], chance, positive=root)
            self._codes[number][piece], self._greatest[number][piece] = codes, greatest


def encode(values: Tensor, table: Tensor, chance: Tensor | None, *, positive: bool) -> tuple[Tensor, Tensor]:
    """Return the codes of values [rows, n] by a table of sizes, uint8, and the greatest value of each block [rows,
    blocks]. `chance`: number in [0, 1) for each element; None: to the nearest code. `positive`: whether the table
    begins with 0, to which no other value is rounded (rule 3)."""
    rows, width = values.shape
    blocks = pad(values, (0, -width % min(BLOCK, width))).view(rows, -1, min(BLOCK, width))
    greatest = blocks.abs().amax(dim=2)
    greatest = torch.where(greatest < _LEAST_SCALE, 0.0, greatest)
    share = (blocks / torch.where(greatest > 0, greatest, torch.inf)[:, :, None]).view(rows, -1)[:, :width].contiguous()
    above = torch.bucketize(share, table, out_int32=True).clamp_(1, len(table) - 1)
    below = table[above - 1]
    part = (share - below) / (table[above] - below)
    up = part >= 0.5 if chance is None else part > chance.view(rows, width)
    if positive:
        up |= (above == 1) & (share > 0)
    return torch.where(up, above, above - 1).to(torch.uint8), greatest


def _rows(shape: torch.Size, elements: int) -> list[Piece]:
    """Return the pieces of a parameter of so many elements, or one row each. Of many rows they are multiples of 16: the
    last elements of a piece, where they fill no register, may get other last bits."""
    if not shape:
        return [...]
    count = max(1, elements * shape[0] // max(1, shape.numel()))
    count -= count % 16 if count > 16 else 0
    return [slice(start, min(start + count, shape[0])) for start in range(0, shape[0], count)]


def _sizes(count: int, powers: int) -> Tensor:
    """Return sizes from 2^-powers to 1, ascending. They are computed on the host, so that each device has the same."""
    return torch.exp2(torch.arange(1 - count, 1, dtype=torch.float64) * (powers / (count - 1))).float()


def _signed_table() -> Tensor:
    sizes = _sizes(127, _FIRST_RANGE)
    return torch.cat([-sizes.flip(0), sizes.new_zeros(1), sizes])


def _table() -> Tensor:
    sizes = _sizes(255, _SECOND_RANGE)
    return torch.cat([sizes.new_zeros(1), sizes])


def _chances(start: int, count: int, updates: Tensor) -> tuple[Tensor, Tensor]:
    """Return two numbers in [0, 1) for each element from the `start`-th on (rule 4)."""
    mixed = torch.arange(start, start + count, device=updates.device).mul_(_MIX[0])
    mixed += updates.long() * _MIX[1]
    for factor in _MIX:
        mixed ^= mixed >> 29
        mixed *= factor
    mixed ^= mixed >> 32
    mask = (1 << _CHANCE_BITS) - 1
    low, high = mixed & mask, (mixed >> _CHANCE_BITS) & mask
    return low.float() / (1 << _CHANCE_BITS), high.float() / (1 << _CHANCE_BITS)
