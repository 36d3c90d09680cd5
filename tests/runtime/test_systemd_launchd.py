"""The service manager of a machine is recognised, or missed in one sentence."""

from pathlib import Path

import pytest

from echo2.runtime import systemd_launchd
from echo2.runtime.errors import LocalFault
from echo2.runtime.systemd_launchd import LaunchdOfUser, SystemdOfUser, manager_here
from tests.support.service_stubs import Stubs, stubs_on_path


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stubs:
    return stubs_on_path(tmp_path, monkeypatch)


def test_systemd_and_launchd_are_recognised(stubs: Stubs, tmp_path: Path) -> None:
    assert isinstance(manager_here("echo2-node", "linux", tmp_path), SystemdOfUser)
    assert isinstance(manager_here("echo2-node", "darwin", tmp_path), LaunchdOfUser)


@pytest.mark.parametrize("platform", ["linux", "darwin", "freebsd14"])
def test_a_machine_with_neither_is_told_what_to_do(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalFault, match=r"neither systemd nor launchd runs here: .*`echo2-node run --home HOME`"):
        manager_here("echo2-node", platform, tmp_path)


def test_a_linux_that_systemd_did_not_boot_is_told_the_same(stubs: Stubs, tmp_path: Path) -> None:
    with pytest.raises(LocalFault, match="neither systemd nor launchd"):
        manager_here("echo2-node", "linux", tmp_path / "absent")


def test_lingering_is_asked_for_where_it_is_needed(
    stubs: Stubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd_launchd, "_LINGERING_FOLDER", tmp_path)
    said = SystemdOfUser().presence()
    user = said.rpartition(" ")[2]
    assert f"sudo loginctl enable-linger {user}" in said
    (tmp_path / user).touch()
    assert SystemdOfUser().presence() == "it starts with the machine"


@pytest.mark.parametrize("listed", ["{folder}", '"{folder}"', "/other/systemd/user"])
def test_a_folder_of_the_shell_alone_from_which_systemd_reads_nothing_is_refused(
    listed: str, stubs: Stubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "my config"))
    (stubs.folder / "units").write_text(listed.format(folder=tmp_path / "my config/systemd/user"))
    if "folder" in listed:
        SystemdOfUser().check()
        return
    with pytest.raises(LocalFault, match=r"reads no services from .*my config.*`unset XDG_CONFIG_HOME`"):
        SystemdOfUser().check()
    monkeypatch.delenv("XDG_CONFIG_HOME")
    SystemdOfUser().check()


def test_a_service_that_starts_has_begun_and_one_that_waits_to_start_again_has_not(stubs: Stubs) -> None:
    for state, begun in {"activating\nSubState=start": True, "activating\nSubState=auto-restart": False,
                         "active\nSubState=running": True, "failed\nSubState=failed": False}.items():  # fmt: skip
        (stubs.folder / "state").write_text(f"ActiveState={state}\n")
        assert SystemdOfUser().state("echo2-node").begun == begun


def test_units_are_reloaded_and_enabled_before_the_start(stubs: Stubs) -> None:
    SystemdOfUser().start("echo2-node")
    assert stubs.calls == [
        "--user daemon-reload", "--user enable echo2-node.service", "--user start echo2-node.service",
    ]  # fmt: skip


def test_an_agent_that_is_loaded_is_started_and_not_loaded_twice(stubs: Stubs) -> None:
    LaunchdOfUser().start("echo2-node")
    LaunchdOfUser().start("echo2-node")
    verbs = [call.split()[0] for call in stubs.calls if not call.startswith("print")]
    assert verbs == ["enable", "bootstrap", "enable", "kickstart"]
    assert LaunchdOfUser().state("echo2-node").described == "running, last ended with 75 (TEMPORARY)"
