"""Call the C implementation of `weights.codec.exponent_classes`, if it was built: the same bytes, several times as
fast.

`hatch_build.py` compiles `classes.c` once per processor level; without a compiler the numpy implementation is used.
ctypes releases the GIL while C runs, so frames run on all cores.
"""

import contextlib
import ctypes
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from echo2.weights.codec.rank_select import Layout, Words
from echo2.weights.errors import BadPayload

_FOLDER: Final = Path(__file__).parent
_NO_ROOM_STATUS: Final = -1
_DENSE_STATUS: Final = -7
_WORK_BYTES: Final = 64 << 20
"""Bytes of working memory per call, touched as needed: about 20 per change."""
_WORK_AT_LEAST: Final = 1 << 20
_REFUSALS: Final = {
    -2: "its heads contradict each other or its size",
    -3: "unary codes are not as long as their numbers",
    -4: "fields are not as long as their numbers",
    -5: "a rank lies beyond its class",
    -6: "a step leads beyond the range of 16-bit floats",
}


class Native:
    """One build of `classes.c`. Methods as in `weights.codec.exponent_classes`; `shift` and `mask` are those of its
    `Layout`."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError` where the library cannot be loaded."""
        library = ctypes.CDLL(str(path))
        pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        self.level: int = library.echo2_level()
        self._encode, self._decode, self._write = library.echo2_encode, library.echo2_decode, library.echo2_write
        self._encode.restype = self._decode.restype = self._write.restype = size
        self._encode.argtypes = [pointer, pointer, size, number, number, size, pointer, size, ctypes.POINTER(pointer)]
        self._decode.argtypes = [
            pointer, size, pointer, size, number, number, pointer, pointer, size, pointer, size,
        ]  # fmt: skip
        self._write.argtypes = [pointer, pointer, size, pointer, size, size]
        self._spare: list[NDArray[np.uint8]] = []

    def encode(self, old: Words, new: Words, layout: Layout, most: int) -> bytes | None:
        """Return the body of the frame; empty if nothing changes, None if more than `most` elements do."""
        old, new = np.require(old, requirements=["C", "A"]), np.require(new, requirements=["C", "A"])
        if len(old) != len(new):
            raise ValueError("frames of two lengths")
        # The second always suffices; up to `PIECE` more than `most` are listed before they are counted.
        for room in (_WORK_BYTES, _WORK_AT_LEAST + 48 * (min(most, len(old)) + 8192)):
            with self._work(room) as work:
                body = ctypes.c_void_p()
                length = self._encode(
                    old.ctypes.data, new.ctypes.data, len(old), *layout, most, work.ctypes.data, len(work),
                    ctypes.byref(body),
                )  # fmt: skip
                if length == _DENSE_STATUS:
                    return None
                if length != _NO_ROOM_STATUS:
                    return ctypes.string_at(body, length) if length else b""
        raise MemoryError

    def decode(self, body: memoryview, old: Words, changes: int, layout: Layout) -> tuple[NDArray[np.uint32], Words]:
        """Return (positions, ascending; new bits). `changes`: changes as the heads claim. Raises `BadPayload`."""
        old, data = np.require(old, requirements=["C", "A"]), np.frombuffer(body, np.uint8)
        index, bits = np.empty(changes, np.uint32), np.empty(changes, np.uint16)
        with self._work(_WORK_AT_LEAST + 17 * changes + len(data) + 4 * min(8 * len(data), len(old))) as work:
            status = self._decode(
                data.ctypes.data, len(data), old.ctypes.data, len(old), *layout, index.ctypes.data, bits.ctypes.data,
                changes, work.ctypes.data, len(work),
            )  # fmt: skip
        if status == _NO_ROOM_STATUS:
            raise MemoryError
        if status < 0:
            raise BadPayload(f"frame of classes: {_REFUSALS[status]}")
        return index, bits

    def write(self, index: NDArray[np.uint32], bits: Words, target: Words, first: int) -> None:
        """Write new bits into `target`, which begins at element `first`. Raises `IndexError` where one lies beyond
        it."""
        index, bits = np.require(index, np.uint32, ["C", "A"]), np.require(bits, np.uint16, ["C", "A"])
        if target.dtype != np.uint16 or not target.flags.carray:
            target[index - np.uint32(first)] = bits
            return
        data, count = target.ctypes.data, len(index)
        if self._write(index.ctypes.data, bits.ctypes.data, count, data, first, len(target)) < count:
            raise IndexError("a change beyond the frame")

    @contextlib.contextmanager
    def _work(self, room: int) -> Iterator[NDArray[np.uint8]]:
        """Lend memory for one call: left by an earlier one, or new. Pages are taken when touched."""
        if room > _WORK_BYTES:
            yield np.empty(room, np.uint8)
            return
        try:
            work = self._spare.pop()
        except IndexError:
            work = np.empty(_WORK_BYTES, np.uint8)
        try:
            yield work
        finally:
            self._spare.append(work)


def builds() -> list[Native]:
    """Return all builds that this processor can run, the slowest first."""
    if platform.machine().lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
        return []
    loaded: list[Native] = []
    for level in range(3):
        path = _FOLDER / f"classes{level}.so"
        if path.is_file() and (not loaded or level <= loaded[0].level):
            try:
                loaded.append(Native(path))
            except OSError:  # built for another system: as good as absent
                break
    return loaded


def best() -> Native | None:
    """Return the fastest build that this processor can run; None without one."""
    loaded = builds()
    return loaded[-1] if loaded else None
