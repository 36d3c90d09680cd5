"""Test the values of the setting `gpu`, by example."""

import re

import pytest

from echo2.engines.devices.devices import Gpu, Inventory, NoDevice
from echo2.engines.process.candidates import Sight
from echo2.engines.process.device_list import PATTERN, device_list, hardware_of, has_bare_numbers, numbered_devices

CARD = Gpu(name="a card")
BROKEN = Gpu(name="an old card", fault="no kernel image is available")
EMULATED = Gpu(name="llvmpipe", emulated=True)


@pytest.mark.parametrize(
    "spec", ["auto", "all", "0", "0,1,3", "cpu", "cpu,cpu", "cuda", "cuda:1", "cuda:0,cuda:1,cpu", "metal", "rocm:0"]
)
def test_a_setting_that_can_be_meant(spec: str) -> None:
    assert re.fullmatch(PATTERN, spec)


@pytest.mark.parametrize("spec", ["", "gpu", "auto,cpu", "all,0", "0,cuda:1", "cuda:0,", "cpu:1", "cuda:100", "-1"])
def test_a_setting_that_cannot(spec: str) -> None:
    assert not re.fullmatch(PATTERN, spec)


def test_devices_are_named_one_by_one_and_a_gpu_once() -> None:
    assert device_list("cuda:1") == ["cuda:1"]
    assert device_list("cpu,cuda:0,cpu") == ["cpu", "cuda:0", "cpu"]
    for spec, twice in (("cuda:0,cuda:0", "cuda:0"), ("cuda,cuda:0", "cuda:0"), ("metal,metal", "metal")):
        with pytest.raises(NoDevice, match=f"names {twice} twice"):
            device_list(spec)


def sight(**gpus: list[Gpu]) -> Sight:
    return Sight(
        engine="e", devices=("cuda", "vulkan", "cpu"), dtypes=("float32",), inventory=Inventory(cpu="a CPU", gpus=gpus)
    )


NUMBERED: dict[str, tuple[str, Sight, list[str]]] = {
    "all of a kind": ("all", sight(cuda=[CARD, CARD]), ["cuda:0", "cuda:1"]),
    "all that work": ("all", sight(vulkan=[EMULATED, CARD, BROKEN, CARD]), ["vulkan:1", "vulkan:3"]),
    "those named": ("2,0", sight(cuda=[CARD, CARD, CARD]), ["cuda:2", "cuda:0"]),
    "the quicker kind": ("all", sight(vulkan=[CARD], cuda=[CARD]), ["cuda:0"]),
}


@pytest.mark.parametrize(("spec", "seen", "devices"), NUMBERED.values(), ids=NUMBERED.keys())
def test_numbers_are_those_of_the_first_kind_of_gpus(spec: str, seen: Sight, devices: list[str]) -> None:
    assert has_bare_numbers(spec)
    assert numbered_devices(spec, [seen]) == devices


REFUSED: dict[str, tuple[str, Sight, str]] = {
    "a number that there is not": (
        "0,2",
        sight(cuda=[CARD, CARD]),
        "there is no GPU 2, the engine sees 2 cuda devices",
    ),
    "the same twice": ("1,1", sight(cuda=[CARD, CARD]), "names cuda:1 twice"),
    "one that is broken": ("0,1", sight(cuda=[CARD, BROKEN]), r"GPU 1 \(an old card\) cannot be used: no kernel image"),
    "no GPU": ("all", sight(vulkan=[EMULATED]), "--gpu all: no GPU can be used here"),
}


@pytest.mark.parametrize(("spec", "seen", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_used_is_a_sentence(spec: str, seen: Sight, sentence: str) -> None:
    with pytest.raises(NoDevice, match=sentence):
        numbered_devices(spec, [seen])


def test_where_there_is_no_gpu_the_engine_s_reason_is_told() -> None:
    blind = Sight(
        engine="e", devices=("cuda",), dtypes=("float32",), inventory=Inventory(cpu="", unused="pip install it")
    )
    with pytest.raises(NoDevice, match="pip install it"):
        numbered_devices("all", [blind])


def test_a_device_has_the_name_of_its_hardware() -> None:
    inventory = sight(cuda=[CARD, BROKEN]).inventory
    names = [hardware_of(device, inventory) for device in ("cpu", "cuda", "cuda:1", "cuda:2", "metal")]
    assert names == ["a CPU", "a card", "an old card", "cuda:2", "metal"]
