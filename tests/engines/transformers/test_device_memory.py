from types import SimpleNamespace

import psutil
import pytest
import torch

from echo2.engines.transformers.device_memory import free_memory, release


def test_a_cpus_memory_is_the_machines() -> None:
    assert 0 < free_memory(torch.device("cpu")) <= psutil.virtual_memory().total
    release(torch.device("cpu"))


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_a_gpus_memory_counts_what_pytorch_keeps_for_reuse(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[bool] = []
    module = SimpleNamespace(
        mem_get_info=lambda device: (100, 1000), memory_reserved=lambda device: 50,
        memory_allocated=lambda device: 20, empty_cache=lambda: released.append(True),
    )  # fmt: skip
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    assert free_memory(torch.device(kind)) == 130
    release(torch.device(kind))
    assert released == [True]


def test_mps_is_asked_by_its_own_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    mps = SimpleNamespace(
        recommended_max_memory=lambda: 10, driver_allocated_memory=lambda: 12, empty_cache=lambda: None
    )
    monkeypatch.setattr(torch, "mps", mps)
    assert free_memory(torch.device("mps")) == 0
    release(torch.device("mps"))
