"""`echo2-node service`: the service continues the run joined last, from wherever it starts."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo2.node import cli
from echo2.node.config import load_config
from echo2.node.control.node_service import service_of
from echo2.node.daemon import END_SECONDS
from echo2.node.errors import BadConfig
from echo2.p2p.discovery.invite import Invite
from echo2.runtime import systemd_launchd
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from tests.support.service_stubs import Stubs, stubs_on_path

INVITE = Invite(run=b"r" * 32, root_hash=b"h" * 32, addresses=["/ip4/127.0.0.1/tcp/1/p2p/x"]).to_text()


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stubs:
    monkeypatch.setattr(systemd_launchd.manager_here, "__defaults__", ("linux", tmp_path))
    return stubs_on_path(tmp_path, monkeypatch)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "a home"
    folder.mkdir()
    (folder / "invite").write_text(INVITE)
    return folder


def said(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_a_node_is_installed_shown_and_removed_by_commands(stubs: Stubs, home: Path) -> None:
    code, out, _ = said("service", "install", "--home", str(home))
    assert (code, "echo2-node is installed" in out) == (0, True)
    assert "--user start echo2-node.service" in stubs.calls
    code, out, _ = said("service", "status")
    assert (code, f"home: {home}" in out, "active (running)" in out) == (0, True, True)
    assert said("service", "install", "--home", str(home), "--name", "../x")[0] == Exit.CONFIG
    assert said("service", "uninstall")[0] == 0
    assert said("service", "status")[0] == Exit.UNREACHABLE


def test_a_home_without_a_run_is_refused_before_anything_is_written(stubs: Stubs, tmp_path: Path) -> None:
    code, _, err = said("service", "install", "--home", str(tmp_path / "none"))
    assert (code, err.count("\n")) == (Exit.CONFIG, 1)
    assert "no run was joined" in err
    assert not [path for path in (tmp_path / "user").rglob("*") if path.is_file()]


def test_a_machine_without_a_service_manager_is_one_sentence(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd_launchd.manager_here, "__defaults__", ("linux", tmp_path / "absent"))
    for word in ("install", "uninstall", "status"):
        code, _, err = said("service", word)
        assert (code, err.count("\n"), "neither systemd nor launchd" in err) == (Exit.CONFIG, 1, True)


def test_a_service_has_more_time_to_stop_than_a_node_takes(home: Path) -> None:
    config, _ = load_config({"home": home}, {})
    assert service_of(config).stop_seconds > END_SECONDS
    (home / "invite").write_text("damaged")
    with pytest.raises((BadConfig, LocalFault)):
        service_of(config)


@pytest.mark.slow
def test_a_services_command_runs_this_program_from_any_folder(home: Path, tmp_path: Path) -> None:
    """The command, with another subcommand in place of `run`, beside a file whose name we import."""
    (tmp_path / "tasks.py").write_text("raise SystemExit('the wrong tasks')")
    command = service_of(load_config({"home": home}, {})[0]).command
    assert command[-3:] == ("run", "--home", str(home))
    done = subprocess.run(
        [*command[:-3], "config", "get", "home", *command[-2:]], cwd=tmp_path, capture_output=True, text=True,
        check=False, env={**os.environ, "ECHO2_CONTAINER": "echo2-node"},
    )  # fmt: skip
    assert (done.returncode, json.dumps(str(home))[1:-1] in done.stdout) == (0, True), done.stderr
