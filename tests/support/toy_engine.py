"""An engine of a toy kind, added through engines.registry alone: `python -m tests.support.toy_engine` hosts it."""

import sys

from echo2.engines import registry
from echo2.engines.devices.devices import Inventory
from echo2.engines.engine import Dtype
from echo2.engines.process import host
from echo2.engines.registry import EngineRow
from tests.support.bigram import BigramEngine

TOY = EngineRow(
    name="toy",
    factory="tests.support.toy_engine:create",
    finder="tests.support.toy_engine:inventory",
    devices=("cpu",),
    dtypes=("float32",),
    packages=("numpy",),
    install="pip install numpy",
    sampling=registry.TRANSFORMERS.sampling,
)


def create(device: str, dtype: Dtype) -> BigramEngine:
    """Return a bigram engine, whatever the device."""
    return BigramEngine()


def inventory() -> Inventory:
    """Return this machine's devices: a CPU, whose name says whether torch was imported."""
    return Inventory(cpu="a processor, with torch" if "torch" in sys.modules else "a processor")


if __name__ == "__main__":
    registry.register(TOY)
    host.main()
