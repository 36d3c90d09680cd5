"""The device files of CUDA: NVIDIA's own program is started where the driver is there without them, and only there."""

from pathlib import Path

import pytest

from echo2.engines.devices import nvidia_files


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a driver, and a program of NVIDIA's that makes the file and notes its arguments."""
    for name in ("dev", "driver", "bin"):
        (tmp_path / name).mkdir()
    program = tmp_path / "bin" / "nvidia-modprobe"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/dev/nvidia-uvm\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_files_that_are_missing_are_made_and_those_that_are_there_stay(machine: Path) -> None:
    file = machine / "dev" / "nvidia-uvm"
    nvidia_files.make(machine / "dev", machine / "driver")
    assert file.read_text() == "-u -c 0\n"
    file.write_text("as it was")
    nvidia_files.make(machine / "dev", machine / "driver")
    assert file.read_text() == "as it was"


def test_a_machine_without_the_driver_or_without_the_program_is_left_alone(machine: Path) -> None:
    nvidia_files.make(machine / "dev", machine / "no driver")
    (machine / "bin" / "nvidia-modprobe").unlink()
    nvidia_files.make(machine / "dev", machine / "driver")
    assert not list((machine / "dev").iterdir())


def test_a_program_that_cannot_start_hinders_nothing(machine: Path) -> None:
    (machine / "bin" / "nvidia-modprobe").write_bytes(b"\x7fELF no program")
    nvidia_files.make(machine / "dev", machine / "driver")
    assert not list((machine / "dev").iterdir())
