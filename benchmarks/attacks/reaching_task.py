"""An environment's process with a task whose code reaches for another process of its user: memory, environment, open
files, tracing.

`python -m benchmarks.attacks.reaching_task LIMITS` stands in the place of coordinator.environments.environment_host.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from echo2.coordinator.environments import environment_host
from echo2.tasks import registry
from echo2.tasks.task import Score, Split, Tokenizer

NAME: Final = "reaches for a process"
_ATTACH, _DETACH = 16, 17  # linux/ptrace.h


def _trace(process: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.ptrace(_ATTACH, process, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.waitpid(process, 0)
    library.ptrace(_DETACH, process, 0, 0)


def _write_memory(process: int) -> None:
    """Read a byte of a process's stack, and write it back."""
    stack = next(row for row in Path(f"/proc/{process}/maps").read_text().splitlines() if row.endswith("[stack]"))
    place = int(stack.partition(" ")[0].partition("-")[2], 16) - 8
    memory = os.open(f"/proc/{process}/mem", os.O_RDWR)
    try:
        os.pwrite(memory, os.pread(memory, 1, place), place)
    finally:
        os.close(memory)


REACHES: Final[dict[str, Callable[[int], object]]] = {
    "memory": _write_memory,
    "environment": lambda process: Path(f"/proc/{process}/environ").read_bytes(),
    "open files": lambda process: os.readlink(f"/proc/{process}/fd/0"),
    "trace": _trace,
}


def reach_all(process: int) -> list[str]:
    """Reach for a process in each way; return the ways that lead to it."""
    ways = []
    for name, reach in REACHES.items():
        with suppress(OSError):
            reach(process)
            ways.append(name)
    return ways


class _Attempt:
    def __init__(self, text: Tokenizer) -> None:
        self.prompt, self._text, self._process = text.encode("a="), text, 0

    def reply(self, sampled: Sequence[int]) -> None:
        self._process = int(self._text.decode(sampled))

    def score(self) -> Score:
        return Score(float(len(reach_all(self._process))), True)


class Reaching:
    """A task that rewards the number of a process by the number of ways that lead to it."""

    name, version = NAME, 1

    def size(self, split: Split) -> int:
        return 1

    def episode(self, split: Split, index: int, text: Tokenizer) -> _Attempt:
        return _Attempt(text)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        raise NotImplementedError


if __name__ == "__main__":
    registry.register(Reaching())
    environment_host.main()
