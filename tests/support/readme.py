"""Shell commands that README.md shows, read from its text and run as they stand.

Only their surroundings are ours: free ports, no announcement in the local network, and PyTorch's build for CPUs where
it lies in a folder of wheels instead of on its own index.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

from tests.support.installations import Installation
from tests.support.paths import ROOT

BARE = "uv tool install ."
TORCH, TRAIN = (f"uv tool install --torch-backend auto '.[{extra}]'" for extra in ("torch", "train"))
"""README's commands that install; test_readme.py holds them against its text."""
SURROUNDINGS = {
    "ECHO2_COORD_NETWORK_LISTEN": "/ip4/127.0.0.1/tcp/0", "ECHO2_COORD_NETWORK_MDNS": "false",
    "ECHO2_COORD_WEB_PORT": "0", "ECHO2_LISTEN": "/ip4/127.0.0.1/tcp/0",
}  # fmt: skip


def section(title: str, page: str = "README.md") -> str:
    """Return the text of a section of README.md or of another page."""
    found = re.search(rf"(?ms)^## {re.escape(title)}\n(.*?)(?=^## |\Z)", (ROOT / page).read_text())
    assert found, f"{page} has no section {title}"
    return found[1]


def blocks(title: str, page: str = "README.md") -> list[str]:
    """Return the commands of a section's blocks of shell, one a line, without their comments."""
    lines = "".join(re.findall(r"(?ms)^```sh\n(.*?)^```", section(title, page))).splitlines()
    return [shlex.join(words) if "$" not in line else line for line in lines if (words := shlex.split(line, True))]


def in_text(title: str, *programs: str) -> list[str]:
    """Return the commands that stand between backticks in a section's text and begin with one of these words."""
    text = re.sub(r"(?ms)^```sh\n.*?^```", "", section(title))
    return [code for code in re.findall(r"`([^`]+)`", text) if code.split()[0] in programs]


def installed(command: str, tools: Path, commit: Path, cache: Path, folder: Path) -> Installation:
    """Run one of README's commands of uv in a clone."""
    place = Installation(folder)
    place.bin, place.venv = folder / "bin", folder / "uv" / "echo2"
    more = {
        "UV_TOOL_DIR": str(folder / "uv"), "UV_TOOL_BIN_DIR": str(place.bin), "UV_CACHE_DIR": str(cache),
        "PATH": f"{tools}:{place.bin}", "UV_PYTHON": str(tools / "python"),
    }  # fmt: skip
    if wheels := os.environ.get("PIP_FIND_LINKS"):
        pinned = ROOT / "constraints.txt"
        local = f"--find-links {shlex.quote(wheels)} --constraints {shlex.quote(str(pinned))}"
        command = command.replace("--torch-backend auto", local)
    done = subprocess.run(
        ["/bin/sh", "-ec", command], cwd=commit, env=place.environment(more), text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return place


def shell(place: Installation, command: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of README in the hostile folder."""
    return subprocess.run(
        ["/bin/sh", "-ec", command], cwd=place.elsewhere, env=place.environment({**SURROUNDINGS, **more}), text=True,
        check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900,
    )  # fmt: skip
