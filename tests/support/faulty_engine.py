"""An engine whose devices are faults: `python -m tests.support.faulty_engine` hosts it beside the registry's own.

Device cuda:0 crashes at the load, cuda:1 hangs, cuda:2 has no memory; the CPU works.
"""

import os
import signal
import time
from pathlib import Path

from echo2.engines import registry
from echo2.engines.devices.devices import Gpu, Inventory
from echo2.engines.engine import Dtype, EngineError, Loaded
from echo2.engines.process import host
from echo2.engines.registry import EngineRow
from tests.support.bigram import BigramEngine

FAULTY = EngineRow(
    name="faulty",
    factory="tests.support.faulty_engine:create",
    finder="tests.support.faulty_engine:inventory",
    devices=("cuda", "cpu"),
    dtypes=("float32",),
    packages=("numpy",),
    install="pip install numpy",
    sampling=registry.TRANSFORMERS.sampling,
)


class FaultyEngine(BigramEngine):
    """A bigram engine with the fault of its device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def load(self, model: Path, weights: Path) -> Loaded:
        if self._device == "cuda:0":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._device == "cuda:1":
            time.sleep(600)
        if self._device == "cuda:2":
            raise EngineError("out of memory: another program has it")
        return super().load(model, weights)


def create(device: str, dtype: Dtype) -> FaultyEngine:
    return FaultyEngine(device)


def inventory() -> Inventory:
    """Return three cards and a CPU."""
    return Inventory(cpu="a CPU", gpus={"cuda": [Gpu(name=f"card {number}") for number in range(3)]})


if __name__ == "__main__":
    registry.register(FAULTY)
    host.main()
