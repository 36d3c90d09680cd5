"""An engine on a GPU that vanishes: `python -m tests.support.vanishing_gpu` hosts it beside the registry's own.

The GPU is there while the file that `THERE` names exists. Where that file has the word "fails", the process's second
step takes it away and ends the process, as the engine on transformers does.
"""

import os
from pathlib import Path
from typing import Final

from echo2.engines import registry
from echo2.engines.batch.request_batch import ProgramLost
from echo2.engines.devices.devices import Gpu, Inventory
from echo2.engines.engine import Dtype, Finished
from echo2.engines.process import host
from echo2.engines.registry import EngineRow
from tests.support.bigram import BigramEngine

THERE: Final = "ECHO2_TEST_GPU"
FAILS: Final = "fails"
VANISHING = EngineRow(
    name="vanishing",
    factory="tests.support.vanishing_gpu:create",
    finder="tests.support.vanishing_gpu:inventory",
    devices=("cuda", "cpu"),
    dtypes=("float32",),
    packages=("numpy",),
    install="pip install numpy",
    sampling=registry.TRANSFORMERS.sampling,
)


class VanishingEngine(BigramEngine):
    """A bigram engine on that GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def step(self) -> list[Finished]:
        self._steps += 1
        card = Path(os.environ[THERE])
        if self._steps == 2 and card.read_text() == FAILS:
            card.unlink()
            raise ProgramLost("the device failed: CUDA error: unspecified launch failure")
        return super().step()


def create(device: str, dtype: Dtype) -> VanishingEngine:
    return VanishingEngine()


def inventory() -> Inventory:
    """Return the card while it is there."""
    if Path(os.environ[THERE]).exists():
        return Inventory(cpu="a CPU", gpus={"cuda": [Gpu(name="a card")]})
    return Inventory(cpu="a CPU", unused="an NVIDIA GPU is present, but its driver shows no device")


if __name__ == "__main__":
    registry.register(VANISHING)
    host.main()
