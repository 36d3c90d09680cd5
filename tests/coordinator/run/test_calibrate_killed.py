"""`kill -9` of a calibration with real engine processes, on a tiny model: what it leaves, and what follows."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from echo2.coordinator.calibration import calibrate as calibration
from echo2.coordinator.calibration.calibrate import WEIGHTS, calibrate
from echo2.coordinator.run import first_model, setup
from echo2.coordinator.run.setup import Run
from echo2.coordinator.verification.mixed_machines import MixedMachine
from echo2.coordinator.verification.open_classes import OpenClasses, ledger_keys
from echo2.runtime.child import environment
from echo2.weights.snapshot import Snapshot

pytestmark = pytest.mark.slow
CLASS = "transformers/bfloat16/cpu"
MOST_SECONDS = 300.0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + MOST_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def make(folder: Path) -> Run:
    flags = {"run": {"name": "killed", "compute_dtype": "bfloat16", "engines": ("transformers",)}}
    warm_up = msgspec.structs.replace(first_model.default_warm_up(), steps=2, batch=4)
    now = time.time_ns() // 1_000_000
    return setup.init(folder, "tiny", setup.settings_for("tiny", flags, env={}), now=now, warm_up=warm_up)


def killed(run: Run) -> None:
    """Kill a calibration while an engine of it generates."""
    words = [sys.executable, "-m", "echo2.coordinator.cli", "calibrate", CLASS, "--home", str(run.folder.path)]
    process = subprocess.Popen([*words, "--tokens", "1000000"], env=environment())
    own = psutil.Process(process.pid)
    until(lambda: len(own.children(recursive=True)) == 2)  # the scorer, and the first machine
    engines = own.children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(engines, timeout=MOST_SECONDS)
    assert alive == []


def test_a_killed_calibration_leaves_a_link_and_no_process_and_the_next_one_opens_the_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path / "run")
    killed(run)
    weights = run.folder.calibrations / WEIGHTS
    assert {path.suffix for path in run.folder.calibrations.iterdir()} == {"", ".safetensors"}
    root = Snapshot(weights).root
    monkeypatch.setattr(calibration, "mixed_machines", lambda engine, device: {"one": MixedMachine(rows=64)})
    calibrate(run, CLASS, 2_000, time.time_ns() // 1_000_000)
    classes = OpenClasses()
    assert classes.read(run.folder.calibrations, run.id, ledger_keys(run.chain), lambda era, version: root) == [
        "bfloat16"
    ]
    (document,) = classes.newest()
    assert (document.era, document.version, document.root) == (1, 0, root)
    assert document.builds[0].startswith("torch ")
    assert not weights.exists()
