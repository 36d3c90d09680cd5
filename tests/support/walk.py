"""The cost of a walk through the program: functions entered, documents decoded, bytes hashed.

`Watch` sees the calls of this thread and of every thread that is started under it, by `sys.setprofile` and
`threading.setprofile`. `hashing` counts the bytes hashed with BLAKE3, by the module of this project that asked.
"""

import asyncio
import dis
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import blake3 as library
import msgspec
import pytest
import trio

from tests.support.paths import PACKAGES, ROOT

_LOOPS = {asyncio.events.__file__, trio._core._run.__file__}
"""Where the event loops call the step of a task."""


@dataclass
class Walk:
    """The counts of one walk. `functions`: names in the order of first entry, each with the type of its `self`, empty
    for none; those of tasks that went on from before the walk are left out. `waiting`: the functions that had not
    returned when `doer` was entered, in that order: the path to it. `decoded`: types of documents, in order, one per
    call of a MessagePack decoder."""

    doer: CodeType | None
    functions: dict[str, str] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    decoded: list[str] = field(default_factory=list)
    _open: dict[str, None] = field(default_factory=dict)

    def saw(self, frame: FrameType, event: str, arg: Any) -> None:
        name = name_of(frame.f_code)
        if not name:
            return
        if event == "call":
            if (_resumed(frame) and name not in self._open) or self._is_beside(frame):
                return
            if frame.f_code is self.doer and not self.waiting:
                self.waiting = list(self._open)
            if name not in self.functions:
                self.functions[name] = type(frame.f_locals["self"]).__name__ if "self" in frame.f_locals else ""
            self._open.setdefault(name)
        elif event == "return" and _ended(frame):
            self._open.pop(name, None)
        elif event == "c_call" and arg.__name__ == "decode" and isinstance(arg.__self__, msgspec.msgpack.Decoder):
            self._decodes(frame, arg.__self__.type)
        elif event == "c_call" and arg is msgspec.msgpack.decode:
            self._decodes(frame, frame.f_locals.get("cls", frame.f_locals.get("type_", Any)))

    def _is_beside(self, frame: FrameType) -> bool:
        """Tell whether a function of this project called this one that has itself not been entered on the walk: a task
        that was there before and happens to wake."""
        caller = frame.f_back
        while caller is not None and caller.f_code.co_filename not in _LOOPS:
            if name := name_of(caller.f_code):
                return name not in self._open
            caller = caller.f_back
        return False

    def _decodes(self, frame: FrameType, type_: Any) -> None:
        """Record a decoded document, unless a test asked for it."""
        asker: FrameType | None = frame
        while asker is not None and asker.f_code.co_filename == frame.f_code.co_filename:
            asker = asker.f_back
        if asker is not None and "/tests/" not in asker.f_code.co_filename:
            self.decoded.append(getattr(type_, "__name__", str(type_)))


class Watch:
    """A profiler. Use: `with Watch() as watch:`, then `with watch.walk() as walk:` around the code to count."""

    def __init__(self) -> None:
        self._walk: Walk | None = None

    def __enter__(self) -> Self:
        threading.setprofile(self._saw)
        sys.setprofile(self._saw)
        return self

    def __exit__(self, *_: object) -> None:
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)

    @contextmanager
    def walk(self, doer: Callable[..., Any] | None = None) -> Iterator[Walk]:
        """Count within the block. `doer`: see `Walk.waiting`."""
        self._walk = Walk(None if doer is None else doer.__code__)
        try:
            yield self._walk
        finally:
            self._walk = None

    def _saw(self, frame: FrameType, event: str, arg: Any) -> None:
        if self._walk is not None:
            self._walk.saw(frame, event, arg)


@cache
def name_of(code: CodeType) -> str:
    """Return "package/module.py:Class.function" for a function of this project; empty for any other code, and for a
    comprehension or a lambda."""
    path = Path(code.co_filename)
    if code.co_name.startswith("<") or not path.is_relative_to(ROOT):
        return ""
    place = path.relative_to(ROOT).as_posix().removeprefix("echo2/")
    return f"{place}:{code.co_qualname}" if place.partition("/")[0] in PACKAGES else ""


def _resumed(frame: FrameType) -> bool:
    """Tell whether a coroutine goes on where it waited: that is a "call" too."""
    code, at = frame.f_code.co_code, frame.f_lasti
    return at >= 0 and dis.opname[code[at]] == "RESUME" and code[at + 1] & 3 != 0


def _ended(frame: FrameType) -> bool:
    """Tell whether a function returns for good: a coroutine that waits "returns" its yielded value."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] != "YIELD_VALUE"


@contextmanager
def hashing(patch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the bytes hashed with BLAKE3 during the block, by the module of this project that asked."""
    nbytes: Counter[str] = Counter()

    def counted_in(place: str) -> type:
        class Counted:
            def __init__(self, data: Any = b"") -> None:
                nbytes[place] += len(data)
                self._hasher = library.blake3(data)

            def update(self, data: Any) -> Self:
                nbytes[place] += memoryview(data).nbytes
                self._hasher.update(data)
                return self

            def update_mmap(self, path: Path) -> Self:
                nbytes[place] += path.stat().st_size
                self._hasher.update_mmap(path)
                return self

            def digest(self) -> bytes:
                return self._hasher.digest()

            def hexdigest(self) -> str:
                return self._hasher.hexdigest()

        return Counted

    with patch.context() as within:
        for name, module in list(sys.modules.items()):
            if name.startswith("echo2.") and getattr(module, "blake3", None) is library.blake3:
                within.setattr(module, "blake3", counted_in(name))
        yield nbytes
