"""The unit and the agent run exactly the command that they are given, and name nothing secret."""

import os
import plistlib
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from echo2.runtime import service_unit
from echo2.runtime.exit_codes import Exit
from echo2.runtime.service_unit import agent_text, changes, home_of_agent, home_of_unit, unit_text
from tests.support.played_service import exec_start
from tests.support.service_stubs import service_in

STRANGE = "a \"b\" %h $HOME ${USER} \\n 'x' [y]*"


def settings(text: str) -> dict[str, str]:
    return dict(row.partition("=")[::2] for row in text.splitlines() if "=" in row)


def test_a_unit_starts_again_unless_a_person_must_help(tmp_path: Path) -> None:
    unit = settings(unit_text(service_in(tmp_path)))
    assert unit["RestartPreventExitStatus"] == f"{Exit.REFUSED} {Exit.CONFIG} {Exit.TRUST}" == "77 78 81"
    assert (unit["Type"], unit["Restart"], unit["KillMode"], unit["OOMPolicy"]) == (
        "notify", "on-failure", "mixed", "continue",
    )  # fmt: skip
    assert not {"Nice", "IOSchedulingClass", "IOSchedulingPriority", "CPUSchedulingPolicy", "CPUWeight"} & set(unit)


def test_a_unit_leaves_what_children_need(tmp_path: Path) -> None:
    """Namespaces of runtime/hidden_folder.py, own_network.py and own_processes.py; no limit needs a namespace of its
    own, hides a device, or forbids memory that is written and run, as drivers of GPUs have."""
    unit = settings(unit_text(service_in(tmp_path)))
    assert set(unit["RestrictNamespaces"].split()) == {"user", "mnt", "pid", "net"}
    assert set(unit["RestrictAddressFamilies"].split()) == {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}
    assert "@mount" not in unit["SystemCallFilter"]
    assert unit["SystemCallFilter"].startswith("~")
    needless = ("Private", "Protect", "Device", "ReadOnly", "ReadWrite", "Inaccessible", "MemoryDeny", "Capability")
    assert not [name for name in unit if name.startswith(needless)]


def test_a_unit_names_a_strange_home_verbatim(tmp_path: Path) -> None:
    service = service_in(tmp_path / STRANGE)
    unit = unit_text(service)
    assert home_of_unit(unit) == service.home
    escaped = str(service.home).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    assert settings(unit)["ExecStart"].endswith(f'"run" "--home" "{escaped}"')
    assert home_of_unit("[Service]\nExecStart=/bin/true\n") is None


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_finds_no_fault_in_a_unit(short_path: Path) -> None:
    python = shutil.which("true")
    service = service_in(short_path / STRANGE, command=(python, "run", "--home", str(short_path / STRANGE)))
    file = short_path / "echo2-node.service"
    file.write_text(unit_text(service))
    environ = {**os.environ, "HOME": str(short_path), "XDG_RUNTIME_DIR": str(short_path)}
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(file)], capture_output=True, text=True, check=False, env=environ,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_an_agent_starts_again_and_gets_time_to_end(tmp_path: Path) -> None:
    service = service_in(tmp_path / STRANGE)
    text = agent_text(service, tmp_path / "log")
    facts = plistlib.loads(text.encode())
    assert home_of_agent(text) == service.home
    assert tuple(facts["ProgramArguments"][4:]) == service.command
    assert (facts["KeepAlive"], facts["RunAtLoad"], facts["ExitTimeOut"]) == ({"SuccessfulExit": False}, True, 300)
    assert not {"Nice", "LowPriorityIO", "ProcessType", "EnvironmentVariables"} & set(facts)
    assert [home_of_agent(other) for other in ("", "<plist>", "<plist><dict/></plist>", "{}")] == [None] * 4


@pytest.mark.parametrize(("ended", "told"), [(0, 0), (77, 0), (78, 0), (81, 0), (70, 70), (75, 75)])
def test_an_agent_ends_for_good_where_a_person_must_help(ended: int, told: int, tmp_path: Path) -> None:
    service = service_in(tmp_path / STRANGE, command=("/bin/sh", "-c", f'test "$WORD" = "a b" && exit {ended}'))
    service.variables.write_text("WORD='a b'\n")
    facts = plistlib.loads(agent_text(service, tmp_path / "log").encode())
    assert subprocess.run(facts["ProgramArguments"], check=False, timeout=30).returncode == told


def test_an_agent_passes_the_signal_to_stop_on_and_waits(tmp_path: Path) -> None:
    daemon = "trap 'sleep 0.2; echo ended > ended; exit 7' TERM; echo up > up; while :; do sleep 0.05; done"
    service = service_in(tmp_path, command=("/bin/sh", "-c", daemon))
    facts = plistlib.loads(agent_text(service, tmp_path / "log").encode())
    agent = subprocess.Popen(facts["ProgramArguments"], cwd=tmp_path)
    while not (tmp_path / "up").exists():
        time.sleep(0.02)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=30) == 7
    assert (tmp_path / "ended").exists()


def test_changes_are_the_lines_that_differ() -> None:
    assert changes("a\nb\n", "a\nc\n") == ["- b", "+ c"]
    assert changes("a\n", "a\n") == []


def test_no_text_holds_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO2_KEY_PASSPHRASE", "open sesame")
    service = service_in(tmp_path)
    service.variables.write_text("ECHO2_KEY_PASSPHRASE='open sesame'\n")
    for text in (unit_text(service), agent_text(service, tmp_path / "log")):
        assert "sesame" not in text
        assert service_unit.VARIABLES in text


@pytest.mark.parametrize("name", ["a home", "100 %", "for $5", 'a "b"', "back\\slash", "ümlaut"])
def test_a_player_of_systemd_reads_the_command_that_was_written(name: str, tmp_path: Path) -> None:
    service = service_in(tmp_path / name)
    (tmp_path / "a.service").write_text(unit_text(service))
    assert exec_start(tmp_path / "a.service") == list(service.command)
