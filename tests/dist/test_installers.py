"""One command of each installer, in an empty environment, without a compiler."""

import subprocess
from pathlib import Path

import pytest

from tests.support.installations import Installation

COMMANDS = {"uv": ("tool", "install", "--quiet"), "pipx": ("install", "--quiet")}


@pytest.mark.parametrize("tool", COMMANDS)
def test_one_command_installs_both_programs(
    tool: str, tools: Path, uv_cache: Path, wheel: Path, tmp_path: Path
) -> None:
    place = Installation(tmp_path)
    made = tmp_path / "made"
    own = {
        "UV_TOOL_DIR": str(made / "uv"), "UV_TOOL_BIN_DIR": str(made / "bin"), "PIPX_HOME": str(made / "pipx"),
        "PIPX_BIN_DIR": str(made / "bin"), "UV_CACHE_DIR": str(uv_cache),
        "PATH": f"{tools}:{made / 'bin'}", "UV_PYTHON": str(tools / "python"),
        "PIPX_DEFAULT_PYTHON": str(tools / "python"),
    }  # fmt: skip
    env = place.environment(own)
    done = subprocess.run(
        [str(tools / tool), *COMMANDS[tool], str(wheel)], cwd=place.elsewhere, env=env, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    for program in ("echo2-node", "echo2-coord"):
        command = [str(made / "bin" / program), "version"]
        said = subprocess.run(command, cwd=place.elsewhere, env=env, text=True, capture_output=True, check=False)
        assert said.stdout.startswith("echo2 0.1.0"), said.stderr
