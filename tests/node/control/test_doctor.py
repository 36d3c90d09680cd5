"""The command `echo2-node doctor`: rows, text, exit code."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from echo2.node.config import NodeConfig
from echo2.node.control.doctor import diagnose
from echo2.node.errors import BadConfig
from echo2.node.home import lock_home
from echo2.runtime.exit_codes import Exit
from echo2.runtime.files import room


@pytest.mark.slow
def test_the_command_gives_json_without_an_invite_and_imports_no_torch(tmp_path):
    program = (
        "import sys; sys.argv = ['echo2-node', 'doctor', '--json', '--home', sys.argv[1]]\n"
        "from echo2.node.cli import app\n"
        "try: app()\n"
        "finally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "home")], capture_output=True, check=False)
    rows = json.loads(done.stdout)
    assert {"check", "found", "wanted", "remedy"} <= rows[0].keys()
    assert rows[-1]["check"] == "invite"


@pytest.mark.slow
def test_with_a_running_daemon_its_ports_are_not_tested(tmp_path: Path) -> None:
    config = NodeConfig(home=tmp_path, listen=("/ip4/127.0.0.1/tcp/0",), disk=0.001)
    lines, _ = diagnose(config, as_json=True)
    assert "listening" in {row["check"] for row in json.loads(lines[0])}
    with lock_home(tmp_path):
        lines, code = diagnose(config, as_json=True)
    rows = {row["check"]: row for row in json.loads(lines[0])}
    assert "listening" not in rows
    assert rows["invite"]["found"] == "none"
    assert code == Exit.OK


@pytest.mark.parametrize(
    ("fault", "remedy", "exits"),
    [(errno.ENOSPC, "free space", Exit.TEMPORARY), (errno.EROFS, "--home", Exit.CONFIG)],
    ids=["a full disk", "a disk that is read-only"],
)
@pytest.mark.slow_but("a disk that is read-only")
def test_a_home_that_cannot_be_written_is_not_taken_for_a_running_daemon(
    fault: int, remedy: str, exits: Exit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a full disk hid the row of the ports, and a read-only one ended the command without any row."""

    def refuse(*_: object, **__: object) -> None:
        with room(tmp_path / "lock"):
            raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr("echo2.node.home.lock_file", refuse)
    lines, code = diagnose(NodeConfig(home=tmp_path, listen=("/ip4/127.0.0.1/tcp/0",), disk=0.001), as_json=True)
    rows = {row["check"]: row for row in json.loads(lines[0])}
    assert code == exits
    assert rows["home"]["verdict"] == "bad"
    assert remedy in rows["home"]["remedy"]
    assert rows["listening"]["verdict"] == "good"


def test_a_damaged_invite_is_a_bad_setting(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="copy it again"):
        diagnose(NodeConfig(home=tmp_path, invite="echo2-abc"), as_json=False)
