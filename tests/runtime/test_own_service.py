"""A service is installed once, says what it changes, and leaves what is not its own."""

import os
import shlex
from pathlib import Path

import pytest

from echo2.runtime import own_service
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from echo2.runtime.lock import lock_file
from echo2.runtime.systemd_launchd import LaunchdOfUser, ServiceManager, SystemdOfUser
from tests.support.service_stubs import IDLE, Stubs, service_in, stubs_on_path


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stubs:
    return stubs_on_path(tmp_path, monkeypatch)


@pytest.fixture(params=[SystemdOfUser, LaunchdOfUser])
def manager(request: pytest.FixtureRequest, stubs: Stubs) -> ServiceManager:
    return request.param()  # type: ignore[no-any-return]


def test_a_service_is_installed_started_shown_and_removed(manager: ServiceManager, tmp_path: Path) -> None:
    service = service_in(tmp_path / "home")
    said = own_service.install(manager, service, {})
    path = manager.path("echo2-node")
    assert said[0] == f"echo2-node is installed: {path}"
    assert path.is_relative_to(tmp_path)
    assert path.read_text() == manager.text(service)
    rows, code = own_service.describe(manager, "echo2-node", "echo2-node", None)
    assert (code, f"home: {service.home}" in rows) == (Exit.OK, True)
    assert own_service.uninstall(manager, "echo2-node", None)[0].endswith(f"its home {service.home} stays")
    assert not path.exists()
    assert own_service.uninstall(manager, "echo2-node", None) == ["echo2-node is not installed"]
    assert own_service.describe(manager, "echo2-node", "echo2-node", None)[1] == Exit.UNREACHABLE


def test_a_service_installed_twice_is_unchanged(manager: ServiceManager, tmp_path: Path) -> None:
    service = service_in(tmp_path / "home")
    own_service.install(manager, service, {})
    before = manager.path("echo2-node").stat()
    assert "is unchanged" in own_service.install(manager, service, {})[0]
    assert manager.path("echo2-node").stat().st_mtime_ns == before.st_mtime_ns


def test_a_service_installed_otherwise_says_which_lines_changed_and_interrupts_nothing(
    manager: ServiceManager, tmp_path: Path, stubs: Stubs
) -> None:
    own_service.install(manager, service_in(tmp_path / "home"), {})
    said = own_service.install(manager, service_in(tmp_path / "home", stop_seconds=999), {})
    assert said[0].startswith("echo2-node was installed already; changed in ")
    assert any(row.startswith("+ ") and "999" in row for row in said)
    assert any(manager.restart_command("echo2-node") in row for row in said)
    assert not [call for call in stubs.calls if "restart" in call or "bootout" in call]


def test_a_service_whose_home_has_moved_says_so_and_takes_the_new_one(manager: ServiceManager, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    own_service.install(manager, service_in(old), {})
    old.rename(new)
    rows, code = own_service.describe(manager, "echo2-node", "echo2-node", None)
    command = "echo2-node service install --home NEW_HOME"
    assert (code, rows[-1]) == (Exit.CONFIG, f"its home {old} is not there: if it has moved, {command}")
    said = own_service.install(manager, service_in(new), {})
    assert f"had the home {old}, which is not there any more" in said[0]
    assert own_service.describe(manager, "echo2-node", "echo2-node", new)[1] == Exit.OK


def test_a_service_of_another_home_stays(manager: ServiceManager, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    own_service.install(manager, service_in(first), {})
    before = manager.path("echo2-node").read_text()
    with pytest.raises(LocalFault, match=r"give the one for .*second a --name of its own"):
        own_service.install(manager, service_in(second), {})
    with pytest.raises(LocalFault, match=r"is installed for .*first, not for .*second"):
        own_service.uninstall(manager, "echo2-node", second)
    assert own_service.describe(manager, "echo2-node", "echo2-node", second)[1] == Exit.CONFIG
    assert manager.path("echo2-node").read_text() == before
    own_service.install(manager, service_in(second, name="echo2-node-two"), {})
    assert own_service.describe(manager, "echo2-node", "echo2-node-two", second)[1] == Exit.OK


def test_a_file_that_is_none_of_ours_stays(manager: ServiceManager, tmp_path: Path) -> None:
    path = manager.path("echo2-node")
    path.parent.mkdir(parents=True)
    path.write_text("[Service]\nExecStart=/bin/true\n")
    for act in (
        lambda: own_service.install(manager, service_in(tmp_path / "home"), {}),
        lambda: own_service.uninstall(manager, "echo2-node", None),
        lambda: own_service.describe(manager, "echo2-node", "echo2-node", None),
    ):
        with pytest.raises(LocalFault, match="is none of ours: remove it, or choose another --name"):
            act()
    assert path.read_text() == "[Service]\nExecStart=/bin/true\n"


def test_a_systemd_that_does_not_answer_is_one_sentence_and_nothing_is_written(tmp_path: Path, stubs: Stubs) -> None:
    stubs.mark("no-bus")
    with pytest.raises(LocalFault, match=r"the systemd of this user does not answer .*XDG_RUNTIME_DIR"):
        own_service.install(SystemdOfUser(), service_in(tmp_path / "home"), {})
    assert not SystemdOfUser().path("echo2-node").exists()


def test_a_daemon_that_does_not_start_names_its_log(tmp_path: Path, stubs: Stubs) -> None:
    stubs.mark("fails")
    with pytest.raises(LocalFault, match=r"installed and did not start .*journalctl --user -u echo2-node"):
        own_service.install(SystemdOfUser(), service_in(tmp_path / "home"), {})
    rows, code = own_service.describe(SystemdOfUser(), "echo2-node", "echo2-node", None)
    assert (code, "inactive (dead)" in rows[2]) == (Exit.UNREACHABLE, True)


def test_a_failed_service_names_its_exit_code(tmp_path: Path, stubs: Stubs) -> None:
    own_service.install(SystemdOfUser(), service_in(tmp_path / "home"), {})
    (stubs.folder / "state").write_text(IDLE.replace("inactive", "failed").replace("MainStatus=0", "MainStatus=77"))
    rows, code = own_service.describe(SystemdOfUser(), "echo2-node", "echo2-node", None)
    assert (code, "last ended with 77 (REFUSED)" in rows[2]) == (Exit.UNREACHABLE, True)
    (stubs.folder / "state").write_text(IDLE.replace("MainStatus=0", "MainStatus=9\nExecMainCode=2"))
    assert "last ended by signal 9" in own_service.describe(SystemdOfUser(), "echo2-node", "echo2-node", None)[0][2]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_without_permission_to_write_are_one_sentence(manager: ServiceManager, tmp_path: Path) -> None:
    service = service_in(tmp_path / "home")
    service.home.chmod(0o500)
    with pytest.raises(LocalFault, match=r"cannot write to .*home"):
        own_service.install(manager, service, {})
    service.home.chmod(0o700)
    manager.path("echo2-node").parent.mkdir(parents=True)
    manager.path("echo2-node").parent.chmod(0o500)
    with pytest.raises(LocalFault, match=r"cannot write .*: Permission denied"):
        own_service.install(manager, service, {})


def test_a_folder_of_units_that_is_a_file_is_one_sentence(manager: ServiceManager, tmp_path: Path) -> None:
    folder = manager.path("echo2-node").parent
    folder.parent.mkdir(parents=True)
    folder.write_text("")
    with pytest.raises(LocalFault, match=r"cannot (read|write) .*echo2-node"):
        own_service.install(manager, service_in(tmp_path / "home"), {})


def test_secrets_that_others_can_read_are_refused(manager: ServiceManager, tmp_path: Path) -> None:
    service = service_in(tmp_path / "home")
    service.variables.write_text("ECHO2_KEY_PASSPHRASE='x'\n")
    service.variables.chmod(0o644)
    with pytest.raises(LocalFault, match=r"others can read .*service.env, .* chmod 600"):
        own_service.install(manager, service, {})
    service.variables.chmod(0o600)
    own_service.install(manager, service, {})


@pytest.mark.parametrize("name", ["a\nb", "ends in a space ", "ends in a backslash\\"])
def test_a_home_that_no_service_can_name_is_refused(name: str, manager: ServiceManager, tmp_path: Path) -> None:
    with pytest.raises(LocalFault, match=r"a character that no service can name, or a space or backslash at its end"):
        own_service.install(manager, service_in(tmp_path / name), {})
    assert not manager.path("echo2-node").exists()


def test_a_home_in_which_a_daemon_runs_is_refused_and_the_services_own_daemon_is_none(
    manager: ServiceManager, tmp_path: Path
) -> None:
    service = service_in(tmp_path / "home")
    with lock_file(service.home / "lock", name_holder=True):
        with pytest.raises(LocalFault, match=rf"an echo2 node runs in .*home \(process {os.getpid()}\): end it first"):
            own_service.install(manager, service, {})
        assert not manager.path("echo2-node").exists()
    own_service.install(manager, service, {})
    with lock_file(service.home / "lock", name_holder=True):
        assert "is unchanged" in own_service.install(manager, service, {})[0]


def test_a_link_to_a_home_is_the_same_home(manager: ServiceManager, tmp_path: Path) -> None:
    own_service.install(manager, service_in(tmp_path / "home"), {})
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "home")
    assert own_service.describe(manager, "echo2-node", "echo2-node", link)[1] == Exit.OK
    said = own_service.install(manager, service_in(link), {})
    assert said[0].startswith("echo2-node was installed already; changed in ")
    own_service.uninstall(manager, "echo2-node", tmp_path / "home")
    assert not manager.path("echo2-node").exists()


def test_commands_for_a_person_name_strange_paths_in_quotes(
    manager: ServiceManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "a $user"))
    home, other = tmp_path / "the first's home", tmp_path / "another home"
    own_service.install(manager, service_in(home), {})
    rows, _ = own_service.describe(manager, "echo2-node", "echo2-node", other)
    assert shlex.split(rows[-1].partition(": ")[2])[-1] == str(other)
    home.rename(other)
    rows, _ = own_service.describe(manager, "echo2-node", "echo2-node", other)
    assert shlex.split(rows[-1].partition("if it has moved, ")[2])[-1] == str(other)
    service = service_in(home)
    service.variables.touch()
    service.variables.chmod(0o644)
    with pytest.raises(LocalFault) as refused:
        own_service.install(manager, service, {})
    assert shlex.split(str(refused.value).partition("secrets: ")[2]) == ["chmod", "600", str(service.variables)]
    for command in (manager.restart_command("echo2-node"), manager.log_command("echo2-node")):
        assert str(tmp_path) not in command or str(tmp_path / "a $user") in " ".join(shlex.split(command))


def test_variables_of_the_shell_that_a_service_does_not_see_are_named_without_their_values(
    manager: ServiceManager, tmp_path: Path
) -> None:
    environ = {"ECHO2_KEY_PASSPHRASE": "sesame", "ECHO2_GPU": "cpu", "ECHO2_HOME": "/x", "PATH": "/bin"}
    said = "\n".join(own_service.install(manager, service_in(tmp_path / "home"), environ))
    assert "does not see ECHO2_GPU, ECHO2_KEY_PASSPHRASE of this shell" in said
    assert "sesame" not in said + manager.path("echo2-node").read_text()
