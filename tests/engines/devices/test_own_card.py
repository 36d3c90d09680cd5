"""A process that sees its own card alone: which variable is set, and to what."""

import os
import subprocess
import sys

import pytest

from echo2.engines import registry
from echo2.engines.devices.devices import Gpu, Inventory, NoDevice
from echo2.engines.devices.own_card import see_alone
from echo2.engines.process.host import EngineHost
from echo2.engines.process.messages import ProbeCall
from tests.support.bigram import BigramEngine

CASES: dict[str, tuple[str, dict[str, str], str, dict[str, str]]] = {
    "the second of all": ("cuda:1", {}, "cuda:0", {"CUDA_VISIBLE_DEVICES": "1"}),
    "the second of those that are visible": (
        "cuda:1", {"CUDA_VISIBLE_DEVICES": "4,6"}, "cuda:0", {"CUDA_VISIBLE_DEVICES": "6"},
    ),
    "the only one that is visible": (
        "cuda:0", {"CUDA_VISIBLE_DEVICES": "3"}, "cuda:0", {"CUDA_VISIBLE_DEVICES": "3"},
    ),
    "one that is hidden": ("cuda:1", {"CUDA_VISIBLE_DEVICES": "3"}, "cuda:1", {"CUDA_VISIBLE_DEVICES": "3"}),
    "one of AMD's": ("cuda:1", {"HIP_VISIBLE_DEVICES": "5,7"}, "cuda:0", {"HIP_VISIBLE_DEVICES": "7"}),
    "one of Intel's": ("xpu:2", {}, "xpu:0", {"ZE_AFFINITY_MASK": "2"}),
    "a kind of which the library sees all": ("vulkan:1", {}, "vulkan:1", {}),
    "the CPU": ("cpu", {}, "cpu", {}),
    "any": ("auto", {}, "auto", {}),
}  # fmt: skip


@pytest.mark.parametrize(("device", "before", "name", "after"), CASES.values(), ids=CASES.keys())
def test_the_card_that_a_process_sees(device: str, before: dict[str, str], name: str, after: dict[str, str]) -> None:
    environ = dict(before)
    assert see_alone(device, ("cuda", "xpu"), environ) == name
    assert environ == after


def test_pytorch_counts_the_cards_that_the_variable_leaves() -> None:
    code = (
        "import os; from echo2.engines.devices.own_card import see_alone;"
        "see_alone('cuda:3', ('cuda',), os.environ); import torch; print(torch.cuda._parse_visible_devices())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "CUDA_VISIBLE_DEVICES": "0,1,2,5"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[5]"


def seen() -> Inventory:
    """Return what a library lists: the cards that the variable leaves."""
    numbers = [int(part) for part in os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")]
    return Inventory(cpu="a CPU", gpus={"cuda": [Gpu(name=f"card {number}") for number in numbers if number < 2]})


def create(device: str, dtype: str) -> BigramEngine:
    """Return an engine of the only card there is."""
    assert device == "cuda:0"
    return BigramEngine()


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    row = registry.EngineRow(
        name="two", factory=f"{__name__}:create", finder=f"{__name__}:seen", devices=("cuda", "cpu"),
        dtypes=("float32",), packages=("numpy",), sampling="none", alone=("cuda",),
    )  # fmt: skip
    monkeypatch.setitem(registry._ROWS, row.name, row)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr("echo2.engines.process.host.priority.give_way", lambda asked: None)


def test_a_process_reports_the_card_by_the_machines_number_and_computes_on_the_only_one_that_it_sees(
    two_cards: None,
) -> None:
    probed = EngineHost().probe(ProbeCall(engine="two", device="cuda:1"))
    assert (probed.kind, probed.name, os.environ["CUDA_VISIBLE_DEVICES"]) == ("cuda:1", "card 1", "1")
    assert probed.engine_class == "two/float32/cuda"


def test_a_card_that_does_not_exist_is_refused_by_the_number_that_was_asked_for(
    two_cards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(NoDevice, match="cuda:5 does not exist"):
        EngineHost().probe(ProbeCall(engine="two", device="cuda:5"))
