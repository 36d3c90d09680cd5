"""The demo's real processes with injected faults: rewards that are not numbers, a batch that no learner can compute, a
damaged checkpoint. The demo must reach its end without losing a group."""

import io
import json
import os
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from echo2.coordinator.database.database import Database
from echo2.coordinator.demo import demo
from echo2.coordinator.demo.demo_settings import DemoOptions
from echo2.runtime.exit_codes import Exit
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

SABOTEUR = ROOT / "tests/support/demo_saboteur"


def test_the_demo_comes_to_its_end_although_rewards_a_batch_and_a_checkpoint_are_spoilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SABOTEUR), os.environ.get("PYTHONPATH", "")]))
    text = io.StringIO()
    options = DemoOptions(keep=True, faults=False, seconds=480)
    code = demo.play(options, None, Console(file=text, width=200, highlight=False)).code
    print(text.getvalue())
    assert code == Exit.OK, text.getvalue()
    (folder,) = tmp_path.glob("echo2-demo-*")
    assert (folder / "tmp" / "spoilt-checkpoint").exists()
    with Database.read(folder / "run" / "run.sqlite") as database:
        aside = database.all("SELECT lease, reason FROM set_aside")
        assert {reason for _, reason in aside} == {"ValueError: a batch that no learner can compute"}
        assert b"".join(sorted(lease for lease, _ in aside)) == (folder / "tmp" / "spoilt-batch").read_bytes()
        paid = database.value("SELECT count(*) FROM verdicts WHERE code = 'task-score' AND weight > 0")
        assert paid > 0
        trainable = database.value("SELECT count(*) FROM verdicts WHERE code = 'task-score' AND trainable")
        assert trainable == 0
        unpaid = database.value(
            "SELECT count(*) FROM set_aside s JOIN verdicts v ON v.lease = s.lease WHERE v.weight = 0"
        )
        assert unpaid == 0
    log = [
        json.loads(text_line) for text_line in (folder / "run" / "logs" / "coordinator.jsonl").read_text().splitlines()
    ]
    assert [one for one in log if one["event"] == "no finite reward"]
    print({"set aside": len(aside), "task-score": paid, "steps": max(one.get("step", 0) for one in log)})
