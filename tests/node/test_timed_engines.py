"""`join --gpu auto` through real processes: the engines are timed, one is kept, and its groups are credited."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import volunteer
from tests.support import llama_cpp, tiny_model
from tests.support.paths import ROOT


@pytest.mark.slow
@llama_cpp.needed
def test_a_node_times_its_engines_keeps_the_fastest_and_is_credited(tmp_path: Path) -> None:
    tiny = tiny_model.make(tmp_path / "model")
    shutil.copyfile(tiny.snapshot, tmp_path / "model" / "model.safetensors")
    with volunteer.joined(
        tiny.folder, tiny.snapshot, tmp_path, task="reverse", limit=12, group=8, groups=4, gpu="auto",
        engines=["llamacpp", "transformers"],
    ) as candidate:  # fmt: skip
        assert candidate().work >= 4 * 8
    log = (tmp_path / "node.log").read_text()
    assert log.count("timing engines") == 1
    assert log.count(": chosen") == 1
    assert log.count("of the chosen rate") == 1
    bench = [sys.executable, "-m", "echo2.node.cli", "bench", "--home", str(tmp_path / "node"), "--json"]
    rows = json.loads(subprocess.run(bench, check=True, capture_output=True, cwd=ROOT).stdout)
    by_engine = {row["engine"]: row for row in rows if row["dtype"] == "float32"}
    assert by_engine.keys() == {"llamacpp", "transformers"}
    assert all(row["tokens_per_second"] > 0 for row in by_engine.values())
    (used,) = [row for row in rows if row["chosen"]]
    assert log.count(f"({used['engine']}/float32/cpu)") >= 1
    assert {row["reason"] for row in rows if row["dtype"] != "float32"} == {"the run admits llamacpp/float32, "
                                                                           "transformers/float32 only"}  # fmt: skip
