"""The GPUs that the system shows, on trees of files as Linux has them."""

import os
import sys
from pathlib import Path

import pytest

from echo2.engines.devices import system_gpus as subject
from echo2.engines.devices.system_gpus import SystemGpu, nvidia_names, system_gpus

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the files are Linux's")


def card(root: Path, slot: str, vendor: str, driver: str = "", kind: str = "0x030000", render: str = "") -> None:
    """Add a PCI device to a tree."""
    device = root / "sys/bus/pci/devices" / slot
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor + "\n")
    (device / "class").write_text(kind + "\n")
    if driver:
        target = root / "sys/bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(target)
    if render:
        (device / "drm" / render).mkdir(parents=True)
        (root / "dev/dri").mkdir(parents=True, exist_ok=True)
        (root / "dev/dri" / render).touch()


@pytest.fixture(autouse=True)
def no_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "nvidia_names", list)


def test_cards_are_named_by_vendor_and_driver_and_other_devices_are_not(tmp_path: Path) -> None:
    card(tmp_path, "0000:00:02.0", "0x8086", "i915", render="renderD128")
    card(tmp_path, "0000:01:00.0", "0x10de", "nvidia")
    card(tmp_path, "0000:02:00.0", "0x1002", kind="0x038000")
    card(tmp_path, "0000:03:00.0", "0x8086", "e1000e", kind="0x020000")
    card(tmp_path, "0000:04:00.0", "0x1a03", "ast")
    assert system_gpus(tmp_path) == [
        SystemGpu(vendor="intel", driver="i915"), SystemGpu(vendor="nvidia", driver="nvidia"), SystemGpu(vendor="amd"),
    ]  # fmt: skip


def test_a_container_shows_nvidia_s_card_by_its_device_file_alone(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert system_gpus(tmp_path) == [SystemGpu(vendor="nvidia", driver="nvidia")]


def test_a_device_file_that_is_closed_to_this_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card(tmp_path, "0000:01:00.0", "0x1002", "amdgpu", render="renderD128")
    monkeypatch.setattr(os, "access", lambda path, mode: "render" not in str(path))
    assert system_gpus(tmp_path)[0].denied == str(tmp_path / "dev/dri/renderD128")


def test_a_machine_without_any_card_has_none(tmp_path: Path) -> None:
    assert system_gpus(tmp_path) == []


SMI = {
    "two cards": ("echo 'NVIDIA A100'; echo 'NVIDIA T4'", ["NVIDIA A100", "NVIDIA T4"]),
    "a driver that does not answer": ("echo 'NVIDIA-SMI has failed'; exit 9", []),
}


@pytest.mark.parametrize(("program", "names"), SMI.values(), ids=SMI.keys())
def test_nvidia_smi_gives_the_names(
    program: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{program}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert nvidia_names() == names


def test_names_go_to_nvidia_s_cards_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "nvidia_names", lambda: ["NVIDIA A100", "NVIDIA T4"])
    card(tmp_path, "0000:01:00.0", "0x10de", "nvidia")
    card(tmp_path, "0000:02:00.0", "0x1002", "amdgpu")
    card(tmp_path, "0000:03:00.0", "0x10de", "nvidia")
    assert [gpu.name for gpu in system_gpus(tmp_path)] == ["A100", "", "T4"]
