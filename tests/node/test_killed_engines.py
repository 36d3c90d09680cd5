"""`kill -9` of a node's engine in mid-lease, through real processes: nothing is lost, and every group is credited."""

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.harness import volunteer
from tests.support import llama_cpp, tiny_model, vllm_models

WITHIN = volunteer.WITHIN


def engines_of(folder: Path) -> list[int]:
    """Return the engines' processes of the node whose home is in `folder`, the oldest first."""
    home = str(folder / "node")
    nodes = [one for one in psutil.process_iter(["cmdline"]) if home in (one.info["cmdline"] or [])]
    children = [child for one in nodes for child in one.children() if "echo2.engines.process.host" in child.cmdline()]
    return [child.pid for child in sorted(children, key=lambda child: child.create_time())]


def kill_in_mid_lease(folder: Path, killed: list[int]) -> None:
    """Kill the node's first engine once a lease was received that is not generated yet."""
    log, until = folder / "node.log", time.monotonic() + WITHIN
    while time.monotonic() < until:
        text = log.read_text(errors="replace") if log.exists() else ""
        if text.count("lease received") > text.count("group generated") and text.count("group generated"):
            killed += engines_of(folder)[:1]
            os.kill(killed[0], signal.SIGKILL)
            return
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    ["transformers", pytest.param("llamacpp", marks=llama_cpp.needed), pytest.param("vllm", marks=vllm_models.REAL)],
)
def test_an_engine_killed_in_mid_lease_costs_no_group(engine: str, tmp_path: Path) -> None:
    tiny = (vllm_models if engine == "vllm" else tiny_model).make(tmp_path / "model")
    shutil.copyfile(tiny.snapshot, tmp_path / "model" / "model.safetensors")
    killed: list[int] = []
    with volunteer.joined(
        tiny.folder, tiny.snapshot, tmp_path, task="reverse", limit=200, group=8, groups=12, per_node=2,
        engines=[engine], env={"ECHO2_LOG": "debug", "ECHO2_ENGINE": engine},
    ) as candidate:  # fmt: skip
        killer = threading.Thread(target=kill_in_mid_lease, args=(tmp_path, killed), daemon=True)
        killer.start()
        measured = candidate()
        killer.join()
    assert len(killed) == 1
    assert measured.work >= 12 * 8
    log = (tmp_path / "node.log").read_text()
    assert "engine died, restarting" in log
    assert "generating the lease again" in log
