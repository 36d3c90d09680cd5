"""A vLLM that ends while it loads: `python -m tests.support.ending_vllm` hosts it beside a bigram engine.

Our engine on vLLM is the product's own; only the library is a stand-in, which ends as `END` says when it is configured
for a model.
"""

import importlib.machinery
import os
import signal
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from echo2.engines import registry
from echo2.engines.devices.devices import Inventory
from echo2.engines.engine import Dtype
from echo2.engines.process import host
from echo2.engines.registry import EngineRow
from tests.support.bigram import BigramEngine

END: Final = "ECHO2_TEST_END"
BIGRAM: Final = EngineRow(
    name="bigram",
    factory="tests.support.ending_vllm:create",
    finder="tests.support.ending_vllm:inventory",
    devices=("cpu",),
    dtypes=("float32",),
    packages=("numpy",),
    install="pip install numpy",
    sampling=registry.TRANSFORMERS.sampling,
)


class _EngineArgs:
    """The arguments of an engine that is never made."""

    def __init__(self, **_: Any) -> None:
        """Take all arguments."""

    def create_engine_config(self) -> None:
        match os.environ[END]:
            case "raise":
                raise RuntimeError("Engine core initialization failed.\nSee root cause above.")
            case "leave":
                sys.exit("vllm: no kernel image is available for execution on the device")
            case "exit":
                print("vllm: a worker is gone", file=sys.stderr, flush=True)
                os._exit(3)
            case "abort":
                os.abort()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)


def put_in_place() -> None:
    """Let imports of vLLM find the stand-in."""
    platform = SimpleNamespace(device_type="cpu", is_cpu=lambda: True, is_cuda_alike=lambda: False)
    for name, values in {
        "vllm": {"EngineArgs": _EngineArgs}, "vllm.platforms": {"current_platform": platform},
    }.items():  # fmt: skip
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(module).update(values)
        sys.modules[name] = module


def create(device: str, dtype: Dtype) -> BigramEngine:
    """Return the bigram engine."""
    return BigramEngine()


def inventory() -> Inventory:
    """Return a CPU."""
    return Inventory(cpu="a CPU")


if __name__ == "__main__":
    put_in_place()
    registry.register(BIGRAM)
    host.main()
