"""The report on a run: one file that loads nothing, with the figures and the settings."""

import errno
import os
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.web import page, report_file
from echo2.ledger.standing import minute
from echo2.runtime.errors import LocalFault
from tests.support import pictures
from tests.support.run_folders import make_run, write_model
from tests.support.site_visits import Drawn

HOSTILE = "</style><script>alert(1)</script>"


def test_a_report_has_figures_and_settings_and_loads_nothing() -> None:
    text = page.report(pictures.PAID, ["run.steps = 40  # default unset, from coordinator.toml"])
    words = " ".join(Drawn(text).words.split())
    for wanted in ("brave-otter", "65 %", "run.steps = 40", "Market"):
        assert wanted in words
    assert not Drawn(text).loaded()
    assert "<a href" not in text
    assert "<script" not in text
    assert "echo2-node join" not in text


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
