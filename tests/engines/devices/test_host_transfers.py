"""Copies to and from a device. Devices with pinned memory are played by the CPU; nothing here was shown on a GPU."""

from typing import Any

import numpy as np
import pytest
import torch

from echo2.engines.devices import host_transfers
from echo2.engines.devices.host_transfers import download, upload

CPU = torch.device("cpu")


@pytest.mark.parametrize("values", [[3, 1, 2], [[1, 2], [3, 4]], [True, False], range(4), np.arange(3)])
def test_numbers_arrive_as_they_are(values: Any) -> None:
    assert upload(values, CPU).tolist() == [list(one) if isinstance(one, list) else one for one in values]
    assert upload(values, torch.device("meta")).device.type == "meta"


def test_values_of_a_device_without_pinned_memory_are_read_when_they_are_asked_for() -> None:
    parts = torch.tensor([1, 2]), torch.tensor([0.5, 0.25])
    assert download(parts)() == [[1, 2], [0.5, 0.25]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the CPU play a device with pinned memory; return what is asked of it, in order."""
    asked: list[str] = []

    class Event:
        def __init__(self, device: str) -> None:
            asked.append(f"event on {device}")

        def record(self) -> None:
            asked.append("record")

        def synchronize(self) -> None:
            asked.append("wait")

    def empty(*shape: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        asked.append(f"room, pinned: {pin_memory}")
        return plain_empty(*shape, **kwargs)

    def copied(self: torch.Tensor, source: torch.Tensor, *, non_blocking: bool = False) -> torch.Tensor:
        asked.append(f"copy, waits: {not non_blocking}")
        return plain_copy(self, source)

    plain_empty, plain_copy = torch.empty, torch.Tensor.copy_
    monkeypatch.setattr(host_transfers, "PINNED_DEVICE_KINDS", ("cpu",))
    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    return asked


def test_a_download_waits_for_its_own_copies_and_only_when_it_is_read(told: list[str]) -> None:
    read = download((torch.tensor([7, 8]), torch.tensor([0.5])))
    begun = ["room, pinned: True"] * 2 + ["copy, waits: False"] * 2 + ["event on cpu", "record"]
    assert told == begun
    assert read() == [[7, 8], [0.5]]
    assert told == [*begun, "wait"]
