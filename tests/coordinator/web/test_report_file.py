"""The report on a run: one file that loads nothing, with the figures and the settings."""

import errno
import os
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.metrics.trouble_views import GuardView
from echo2.coordinator.web import page, report_file
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import minute
from tests.support import pictures
from tests.support.run_folders import make_run, write_model
from tests.support.site_visits import Drawn

HOSTILE = "</style><script>alert(1)</script>"
SETTLED = msgspec.structs.replace(pictures.PAID, rollouts=2_000, guard=GuardView(best_era=1, best_version=24))


def test_a_report_has_figures_and_settings_and_loads_nothing() -> None:
    text = page.report(pictures.PAID, ["run.steps = 40  # default unset, from coordinator.toml"])
    words = " ".join(Drawn(text).words.split())
    for wanted in ("brave-otter", "65 %", "run.steps = 40", "Market"):
        assert wanted in words
    assert not Drawn(text).loaded()
    assert "<a href" not in text
    assert "<script" not in text
    assert "echo2-node join" not in text


def test_a_report_has_curves_tables_versions_who_took_part_and_what_it_cost() -> None:
    text = page.report(SETTLED, [])
    words = " ".join(Drawn(text).words.split())
    for title in ("Held-out accuracy", "Reward", "The learner, step by step", "Volunteers by accepted work",
                  "Teams by accepted work", "Outcome of the work", "Weights on the wire", "Market"):  # fmt: skip
        assert title in words, title
    charts = [attrs for tag, attrs in Drawn(text).tags if tag == "svg" and "plot" in (attrs.get("class") or "").split()]
    assert len(charts) >= 8
    took = words[words.index("What it took") :]
    for figure in ("the last1 min 28 s", "rollouts2,000", "closed epochs14.30 USD", "rollouts cost7.15 USD",
                   "newest version26 best by held-out results: 24", f"by echo2 {version('echo2')} at"):  # fmt: skip
        assert figure in took, figure
    in_points = " ".join(Drawn(page.report(msgspec.structs.replace(SETTLED, market=None), [])).words.split())
    assert "paid in points8,643" in in_points
    assert "closed epochs" not in in_points


def test_what_a_run_says_of_itself_is_text_in_a_report() -> None:
    state = msgspec.structs.replace(pictures.BUSY, name=HOSTILE[:80], description=HOSTILE, contact=HOSTILE)
    assert "<script" not in page.report(state, [HOSTILE])


def test_a_stopped_runs_last_state_is_reported(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", write_model(tmp_path / "model"))
    state = msgspec.structs.replace(pictures.FINISHED, run=run.id.hex())
    file = tmp_path / "report.html"
    with pytest.raises(LocalFault, match="none has ended in order there"):
        report_file.write(run.folder.path, file)
    run.folder.last_state.write_bytes(msgspec.json.encode(state))
    said = report_file.write(run.folder.path, file)
    assert said == (
        f"{file}: the state when a coordinator last ended in order ({minute(state.now)}), step 40, version 40"
    )
    assert "Settings that differ" in file.read_text()
    with pytest.raises(LocalFault, match="exists: name another file"):
        report_file.write(run.folder.path, file)
    with pytest.raises(LocalFault, match="cannot write"):
        report_file.write(run.folder.path, tmp_path / "none" / "report.html")


def test_a_report_for_which_no_room_is_left_is_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", write_model(tmp_path / "model"))
    run.folder.last_state.write_bytes(msgspec.json.encode(msgspec.structs.replace(pictures.FINISHED, run=run.id.hex())))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(LocalFault, match=r"cannot write|no room to write"):
            report_file.write(run.folder.path, tmp_path / "report.html")
    assert not list(tmp_path.glob("*report*"))
    report_file.write(run.folder.path, tmp_path / "report.html")
