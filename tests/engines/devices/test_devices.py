from types import SimpleNamespace

import pytest

from echo2.engines.devices.devices import Gpu, Inventory, NoDevice, check_name, choose, inventory
from echo2.engines.registry import TRANSFORMERS

GIB = 2**30
SMALL = Gpu(name="small card", free=6 * GIB, total=8 * GIB)
LARGE = Gpu(name="large card", free=70 * GIB, total=80 * GIB)
BROKEN = Gpu(name="old card", free=0, total=0, fault="no kernel image is available")
APPLE = Gpu(name="Apple GPU")
EMULATED = Gpu(name="llvmpipe", free=16 * GIB, total=16 * GIB, emulated=True)
CPU_ONLY = Inventory(cpu="a CPU", unused="an NVIDIA GPU is present, but this PyTorch is built for CPUs only")

AUTO: dict[str, tuple[Inventory, str, str]] = {
    "no GPU": (Inventory(cpu="a CPU"), "cpu", "no GPU found"),
    "one GPU": (Inventory(cpu="a CPU", gpus={"cuda": [SMALL]}), "cuda:0", "most free memory: 6 of 8 GiB"),
    "two GPUs": (Inventory(cpu="a CPU", gpus={"cuda": [SMALL, LARGE]}), "cuda:1", "of 2 GPUs: 70 of 80 GiB"),
    "a broken GPU and a good one": (Inventory(cpu="a CPU", gpus={"cuda": [BROKEN, SMALL]}), "cuda:1", "6 of 8 GiB"),
    "only a broken GPU": (Inventory(cpu="a CPU", gpus={"cuda": [BROKEN]}), "cpu", "old card.* no kernel image"),
    "a GPU and a CPU-only build": (CPU_ONLY, "cpu", "NVIDIA GPU is present, but"),
    "a GPU that the CPU emulates": (Inventory(cpu="a CPU", gpus={"vulkan": [EMULATED]}), "cpu", "no GPU found"),
    "an emulated GPU and a real one": (
        Inventory(cpu="a CPU", gpus={"vulkan": [EMULATED, SMALL]}),
        "vulkan:1",
        "memory: 6 of 8 GiB",
    ),
    "one card that two programs see": (
        Inventory(cpu="a CPU", gpus={"vulkan": [LARGE], "rocm": [LARGE]}),
        "rocm:0",
        "70 of 80 GiB",
    ),
    "a Mac": (Inventory(cpu="M4", gpus={"mps": [APPLE]}), "mps", "this machine's own GPU"),
}


@pytest.mark.parametrize(("present", "kind", "why"), AUTO.values(), ids=AUTO.keys())
def test_auto_picks_the_best_device_and_says_why(present: Inventory, kind: str, why: str) -> None:
    device = choose("auto", present)
    assert device.kind == kind
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(device.why)


REFUSED: dict[str, tuple[str, Inventory, str]] = {
    "a GPU that is not there": ("cuda:1", Inventory(cpu="a CPU", gpus={"cuda": [SMALL]}), "sees 1 cuda device"),
    "a GPU and a CPU-only build": ("cuda", CPU_ONLY, "CPUs only"),
    "a broken GPU": ("cuda:0", Inventory(cpu="a CPU", gpus={"cuda": [BROKEN]}), "no kernel image"),
    "Metal where there is none": ("mps", Inventory(cpu="a CPU"), "mps does not exist"),
    "a word that is no device": ("gpu", Inventory(cpu="a CPU"), "is no device"),
    "a number of a device that is alone": ("cpu:1", Inventory(cpu="a CPU"), "is no device"),
    "a number that is none": ("cuda:x", Inventory(cpu="a CPU", gpus={"cuda": [SMALL]}), "is no device"),
}


@pytest.mark.parametrize(("spec", "present", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_a_named_device_is_used_or_refused(spec: str, present: Inventory, sentence: str) -> None:
    with pytest.raises(NoDevice, match=sentence):
        choose(spec, present)


@pytest.mark.parametrize(("spec", "kind"), [("cpu", "cpu"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("mps", "mps")])
def test_a_named_device_that_is_there_is_used(spec: str, kind: str) -> None:
    assert choose(spec, Inventory(cpu="a CPU", gpus={"cuda": [SMALL, LARGE], "mps": [APPLE]})).kind == kind


def test_this_machine_has_a_device() -> None:
    present = inventory()
    assert present.cpu
    assert choose("cpu", present).name == present.cpu
    assert choose("auto", present).why


def test_intels_gpus_are_seen_by_their_own_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """The card itself is played: nothing is computed on it."""
    import torch

    xpu = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, get_device_name=lambda index: f"Arc {index}",
        mem_get_info=lambda index: (6 * GIB, 8 * GIB),
    )  # fmt: skip
    whole = torch.ones

    def ones(size: int, device: str) -> torch.Tensor:
        if device == "xpu:1":
            raise RuntimeError("no kernel\nfor this card")
        return whole(size)

    monkeypatch.setattr(torch, "xpu", xpu)
    monkeypatch.setattr(torch, "ones", ones)
    good, broken = inventory().gpus["xpu"]
    assert good == Gpu(name="Arc 0", free=6 * GIB, total=8 * GIB)
    assert broken == Gpu(name="Arc 1", fault="no kernel")
    assert choose("auto", Inventory(cpu="a CPU", gpus={"xpu": [good, broken]})).kind == "xpu:0"


def test_a_misspelt_device_names_the_kinds_of_its_engine_alone() -> None:
    with pytest.raises(NoDevice, match="'cudda' is no device: use auto, cuda, xpu, mps, cpu, or a number too"):
        check_name("cudda", TRANSFORMERS.devices)
