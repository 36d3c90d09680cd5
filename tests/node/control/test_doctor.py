"""The command `echo2-node doctor`: rows, text, exit code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from node.config import NodeConfig
from node.control.doctor import diagnose
from node.errors import BadConfig
from node.home import locked
from runtime.exit_codes import Exit


@pytest.mark.slow
def test_the_command_gives_json_without_an_invite_and_imports_no_torch(tmp_path):
    program = (
        "import sys; sys.argv = ['echo2-node', 'doctor', '--json', '--home', sys.argv[1]]\n"
        "from node.cli import app\n"
        "try: app()\n"
        "finally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "home")], capture_output=True, check=False)
    rows = json.loads(done.stdout)
    assert {"check", "found", "wanted", "remedy"} <= rows[0].keys()
    assert rows[-1]["check"] == "invite"


def test_with_a_running_daemon_its_ports_are_not_tested(tmp_path: Path) -> None:
    config = NodeConfig(home=tmp_path, listen=("/ip4/127.0.0.1/tcp/0",), disk=0.001)
    lines, _ = diagnose(config, as_json=True)
    assert "listening" in {row["check"] for row in json.loads(lines[0])}
    with locked(tmp_path):
        lines, code = diagnose(config, as_json=True)
    rows = {row["check"]: row for row in json.loads(lines[0])}
    assert "listening" not in rows
    assert rows["invite"]["found"] == "none"
    assert code == Exit.OK


def test_a_damaged_invite_is_a_bad_setting(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="copy it again"):
        diagnose(NodeConfig(home=tmp_path, invite="echo2-abc"), as_json=False)
