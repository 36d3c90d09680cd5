"""The body of a `CLASSES` frame in C: what `weights.classes` does, the same bytes, about 10 times as fast; or absent.

`hatch_build.py` compiles `classes.c` where there is a compiler, once for each level of the processor, and nothing is
lost where there is none. ctypes lets go of the interpreter's lock while C runs, so frames run on all cores.
"""

import ctypes
import platform
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weights.errors import BadPayload

Words = NDArray[np.uint16]
_FOLDER: Final = Path(__file__).parent
_MEMORY: Final = -1
_REFUSALS: Final = {
    -2: "its heads contradict each other or its size",
    -3: "unary codes are not as long as their numbers",
    -4: "fields are not as long as their numbers",
    -5: "a rank lies beyond its class",
    -6: "a step leads beyond the 16-bit floats",
}


class Native:
    """One build of `classes.c`. Methods as in `weights.classes`; `shift` and `mask` are those of its `Layout`."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError` where the library cannot be loaded."""
        library = ctypes.CDLL(str(path))
        pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        self.level: int = library.echo2_level()
        self._encode, self._decode, self._release = library.echo2_encode, library.echo2_decode, library.echo2_release
        self._encode.restype = self._decode.restype = size
        self._encode.argtypes = [pointer, pointer, size, number, number, ctypes.POINTER(pointer)]
        self._decode.argtypes = [pointer, size, pointer, size, number, number, pointer, pointer, size]
        self._release.argtypes, self._release.restype = [pointer], None

    def encode(self, old: Words, new: Words, shift: int, mask: int) -> bytes:
        """Body of the frame; empty if nothing changes."""
        old, new = np.require(old, requirements=["C", "A"]), np.require(new, requirements=["C", "A"])
        if len(old) != len(new):
            raise ValueError("frames of two lengths")
        body = ctypes.c_void_p()
        length = self._encode(old.ctypes.data, new.ctypes.data, len(old), shift, mask, ctypes.byref(body))
        if length == _MEMORY:
            raise MemoryError
        try:
            return ctypes.string_at(body, length) if length else b""
        finally:
            self._release(body)

    def decode(
        self, body: memoryview, old: Words, changes: int, shift: int, mask: int
    ) -> tuple[NDArray[np.uint32], Words]:
        """(positions, ascending; new bits). `changes`: as the heads claim. Raises `BadPayload`."""
        old, data = np.require(old, requirements=["C", "A"]), np.frombuffer(body, np.uint8)
        index, bits = np.empty(changes, np.uint32), np.empty(changes, np.uint16)
        found = self._decode(
            data.ctypes.data, len(data), old.ctypes.data, len(old), shift, mask, index.ctypes.data, bits.ctypes.data,
            changes,
        )  # fmt: skip
        if found == _MEMORY:
            raise MemoryError
        if found < 0:
            raise BadPayload(f"frame of classes: {_REFUSALS[found]}")
        return index, bits


def builds() -> list[Native]:
    """All builds that this processor can run, the slowest first."""
    if platform.machine().lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
        return []
    found: list[Native] = []
    for level in range(3):
        path = _FOLDER / f"classes{level}.so"
        if path.is_file() and (not found or level <= found[0].level):
            try:
                found.append(Native(path))
            except OSError:  # built for another system: as good as absent
                break
    return found


def best() -> Native | None:
    found = builds()
    return found[-1] if found else None
