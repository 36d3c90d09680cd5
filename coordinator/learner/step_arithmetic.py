"""Name all that decides the last bits of a step on a CPU, but for its settings: processor, libraries, this program."""

import functools
from importlib.metadata import version
from pathlib import Path
from typing import Final

import torch
from blake3 import blake3

from echo2.engines.devices.devices import cpu_name

_LIBRARIES: Final = ("torch", "transformers", "numpy")


@functools.cache
def arithmetic() -> str:
    """Return the name, as of this process's first call: equal names compute equal steps from equal states."""
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    return f"{cpu_name()}, {torch.backends.cpu.get_cpu_capability()}, {libraries}, learner {_program()}"


def _program() -> str:
    """Return a hash of the learner's source files, those of its folders too."""
    hasher = blake3()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        hasher.update(path.read_bytes())
    return hasher.hexdigest(4)
