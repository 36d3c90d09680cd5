"""Test devices of a node's settings: the engine that computes on each, and settings that cannot be."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echo2.engines.devices.devices import Gpu, Inventory
from echo2.engines.process.candidates import Sight
from echo2.engines.process.process import EngineProcess
from echo2.node import engine_devices
from echo2.node.config import NodeConfig
from echo2.node.engine_devices import candidates_of, dtype_for, engine_for, with_devices
from echo2.node.errors import BadConfig, NoUsableDevice
from tests.support.group_world import SPEC

NEAR, FAR = Gpu(name="a card"), Gpu(name="another card")


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for a machine with two GPUs and two engines, of which one computes on Vulkan."""

    async def sights(make: object, names: Sequence[str]) -> list[Sight]:
        inventory = Inventory(cpu="a CPU", gpus={"cuda": [NEAR, FAR]})
        return [
            Sight(engine=name, devices=("cuda", "cpu"), dtypes=("float32", "float16"), inventory=inventory)
            for name in names
        ]

    monkeypatch.setattr(engine_devices, "sights", sights)
    monkeypatch.setattr("echo2.engines.registry.installed_engines", lambda: ["transformers", "llamacpp"])
    monkeypatch.setattr("echo2.engines.registry.EngineRow.missing", lambda row: [])


def config(**settings: Any) -> NodeConfig:
    return NodeConfig(home=Path(), **settings)


@pytest.mark.parametrize(
    ("gpu", "devices"),
    [
        ("auto", "auto"),
        ("cuda:1", "cuda:1"),
        ("cpu,cpu", "cpu,cpu"),
        ("1,0", "cuda:1,cuda:0"),
        ("all", "cuda:0,cuda:1"),
    ],
)
async def test_numbers_get_their_kind_and_the_rest_stays(gpu: str, devices: str) -> None:
    assert (await with_devices(config(gpu=gpu), EngineProcess)).gpu == devices


async def test_what_no_machine_could_meet_is_a_setting_s_fault_and_what_this_one_cannot_is_the_machine_s() -> None:
    with pytest.raises(BadConfig, match="names cuda:0 twice"):
        await with_devices(config(gpu="cuda,cuda:0"), EngineProcess)
    with pytest.raises(NoUsableDevice, match="there is no GPU 2"):
        await with_devices(config(gpu="0,2"), EngineProcess)
    for several in ("0,1", "all"):
        with pytest.raises(BadConfig, match="a server that runs already is one engine"):
            await with_devices(config(gpu=several, engine="server"), EngineProcess)


def test_of_several_devices_each_gets_the_first_engine_that_computes_on_it() -> None:
    several = config(gpu="cuda:0,vulkan:1,cpu")
    assert [engine_for(device, several) for device in ("cuda:0", "vulkan:1", "cpu")] == [
        "transformers", "llamacpp", "transformers",
    ]  # fmt: skip
    assert engine_for("cpu", config(gpu="cpu,cpu", engine="llamacpp")) == "llamacpp"
    assert engine_for("cpu", config(gpu="cpu,cpu", dtype="blocks")) == "llamacpp"
    assert engine_for("cuda:0", config(gpu="cuda:0")) == "auto"


async def test_what_bench_times_is_what_the_node_would_run_on_each_device() -> None:
    ones = await candidates_of(config(gpu="1,0"), EngineProcess, "float16")
    assert [one.text for one in ones] == [
        "transformers/float16/cuda:1 (another card)",
        "transformers/float16/cuda:0 (a card)",
    ]
    (one,) = await candidates_of(config(gpu="cpu", dtype="float32", engine="llamacpp"), EngineProcess, "float16")
    assert one.text == "llamacpp/float32/cpu (a CPU)"


@pytest.mark.parametrize(
    ("admitted", "engine_class", "dtype"),
    [
        (["transformers"], "transformers/float32/cpu", "float16"),
        (["transformers", "llamacpp/float32"], "llamacpp/float32/cpu", "float32"),
        (["transformers", "llamacpp/float32/cpu"], "llamacpp/float32/vulkan", "float16"),
        (["transformers"], "another/float32/cpu", "float16"),
    ],
)
def test_an_engine_computes_in_the_run_s_own_format_or_else_in_one_that_the_run_admits(
    admitted: list[str], engine_class: str, dtype: str
) -> None:
    spec = msgspec.structs.replace(SPEC, compute_dtype="float16", engines=admitted)
    assert dtype_for(spec, engine_class) == dtype
