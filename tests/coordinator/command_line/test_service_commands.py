"""`echo2-coord service`: the coordinator of a run folder as a service."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.runtime import systemd_launchd
from echo2.runtime.exit_codes import Exit
from echo2.runtime.systemd_launchd import SystemdOfUser
from tests.support.service_stubs import Stubs, stubs_on_path


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stubs:
    monkeypatch.setattr(systemd_launchd.manager_here, "__defaults__", ("linux", tmp_path))
    return stubs_on_path(tmp_path, monkeypatch)


def said(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_a_coordinator_is_installed_for_its_run_folder(
    stubs: Stubs, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    code, out, err = said("service", "install")
    assert (code, "echo2-coord is installed" in out) == (0, True), err
    unit = SystemdOfUser().path("echo2-coord").read_text()
    assert f'"echo2.coordinator.cli" "run" "--home" "{home}"' in unit
    assert said("service", "status")[0] == 0
    assert "is unchanged" in said("service", "install", "--home", str(home))[1]
    assert said("service", "uninstall", "--home", str(home))[0] == 0


def test_a_folder_without_a_run_is_refused_before_anything_is_written(stubs: Stubs, tmp_path: Path) -> None:
    code, _, err = said("service", "install", "--home", str(tmp_path / "none"))
    assert (code, err.count("\n")) == (Exit.CONFIG, 1)
    assert "no run in" in err
    assert stubs.calls == []
