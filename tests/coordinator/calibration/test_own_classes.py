"""The classes that `init` calibrates, without an engine: which they are, and what is said of those that stay closed."""

from pathlib import Path
from typing import Any

import pytest

from echo2.coordinator.calibration import calibrate as calibration
from echo2.coordinator.calibration import own_classes
from echo2.coordinator.calibration.own_classes import calibrate_own, how_to_open
from echo2.coordinator.run import setup
from echo2.coordinator.run.setup import Run
from echo2.engines import registry
from echo2.engines.process.messages import Probed
from echo2.engines.registry import UnknownEngine, engine_row
from echo2.runtime.child import ChildError
from echo2.runtime.errors import LocalFault
from tests.support.run_folders import NOW, write_model


class Machine:
    """Stands in for engine processes on a machine with one device: `device`. `calibrated`: classes, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device, self.calibrated = "cpu", list[str]()
        self.fault: LocalFault | None = None
        monkeypatch.setattr(own_classes, "EngineProcess", lambda **_: self)
        monkeypatch.setattr(own_classes, "calibrate_classes", self._calibrate)
        monkeypatch.setattr(own_classes, "choose", lambda name: None)
        monkeypatch.setattr(calibration, "choose", engine_row)
        monkeypatch.setattr(registry, "choose", engine_row)

    async def __aenter__(self) -> "Machine":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def probe(self, device: str, dtype: str, *, engine: str) -> Probed:
        if device not in ("auto", self.device):
            raise ChildError("NoDevice", f"there is no {device} here")
        return Probed(kind=self.device, name="", why="", engine_class=f"{engine}/{dtype}/{self.device}")

    async def _calibrate(self, run: Run, classes: list[str], tokens: int, now: int) -> Path:
        if self.fault:
            raise self.fault
        self.calibrated += classes
        return Path()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def make(tmp_path: Path, *engines: str) -> Run:
    model = write_model(tmp_path / "model")
    flags: Any = {"run": {"task": "reverse", "engines": engines, "compute_dtype": "bfloat16"}}
    config = setup.settings_for(str(model), flags, env={})
    return setup.init(tmp_path / "run", str(model), config, now=NOW)


def test_a_device_on_which_a_class_is_exact_needs_no_calibration_and_is_not_said_to_wait(tmp_path: Path) -> None:
    half, exact = how_to_open(make(tmp_path, "transformers/bfloat16", "llamacpp/float32"))
    assert half.startswith("nodes of class transformers/bfloat16 wait until it is calibrated")
    assert exact.startswith("nodes of class llamacpp/float32, but for cpu, wait until it is calibrated")


def test_a_format_is_calibrated_once_for_all_and_llama_cpp_on_the_operators_device(
    tmp_path: Path, machine: Machine
) -> None:
    said: list[str] = []
    run = make(tmp_path, "transformers", "vllm/bfloat16/cuda", "transformers/float32", "llamacpp/float32", "llamacpp")
    assert calibrate_own(run, NOW, said.append) == []
    # llama.cpp in float32 is exact on a CPU
    assert machine.calibrated == ["transformers/bfloat16/cpu", "llamacpp/bfloat16/cpu"]
    assert said == ["making a Calibration of bfloat16", "making a Calibration of llamacpp/bfloat16/cpu"]
    machine.device = "vulkan"
    calibrate_own(run, NOW, said.append)
    assert machine.calibrated[2:] == [
        "transformers/bfloat16/cpu",
        "llamacpp/float32/vulkan",
        "llamacpp/bfloat16/vulkan",
    ]


def test_a_rounding_that_cannot_be_calibrated_closes_its_classes_with_the_command_to_type(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(name: str) -> None:
        if name == "llamacpp":
            raise UnknownEngine("engine llamacpp needs llama.cpp's library: pip install it")

    monkeypatch.setattr(own_classes, "choose", choose)
    run = make(tmp_path, "transformers", "vllm/bfloat16/cuda", "llamacpp/bfloat16/cuda")
    (said,) = calibrate_own(run, NOW, lambda text_line: None)
    assert said.startswith("nodes of class llamacpp/bfloat16/cuda wait until it is calibrated (engine llamacpp needs")
    assert said.endswith(f"echo2-coord calibrate llamacpp/bfloat16/cuda --home {run.folder.path}")
    machine.fault = LocalFault("no memory")
    assert ["no memory" in said for said in calibrate_own(run, NOW, lambda text_line: None)] == [True, True, False]


def test_without_a_calibration_each_closed_class_is_named(tmp_path: Path, machine: Machine) -> None:
    run = make(tmp_path, "transformers", "transformers/float32", "llamacpp/float32/vulkan", "llamacpp")
    sentences = how_to_open(run)
    assert [sentence.split(" --home")[0].split("calibrate ")[1] for sentence in sentences] == [
        "bfloat16",
        "llamacpp/float32/vulkan",
        "llamacpp/bfloat16/DEVICE",
    ]
    assert machine.calibrated == []
