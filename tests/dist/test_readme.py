"""README's commands, as its text has them, run by a volunteer and an operator who installed by README's commands.

Only their surroundings are ours: free ports, no announcement in the local network, and PyTorch's build for CPUs where
it lies in a folder of wheels instead of on its own index.
"""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import readme
from tests.support.installations import Installation
from tests.support.paths import ROOT

INSTALLS = {*readme.blocks("Install"), *readme.in_text("Install", "uv", "pipx", "pip")}
BARE, TORCH, TRAIN = "uv tool install .", *(f"uv tool install --torch-backend auto '.[{one}]'" for one in ("torch", "train"))
VOLUNTEERS = ["status", "why", "doctor", "service install", "earnings"]
SURROUNDINGS = {
    "ECHO2_COORD_NETWORK_LISTEN": "/ip4/127.0.0.1/tcp/0", "ECHO2_COORD_NETWORK_MDNS": "false",
    "ECHO2_COORD_WEB_PORT": "0", "ECHO2_LISTEN": "/ip4/127.0.0.1/tcp/0",
}  # fmt: skip


@pytest.fixture(scope="module")
def operator(tools: Path, commit: Path, uv_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return installed(TRAIN, tools, commit, uv_cache, tmp_path_factory.mktemp("operator"))


@pytest.fixture(scope="module")
def volunteer(tools: Path, commit: Path, uv_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return installed(BARE, tools, commit, uv_cache, tmp_path_factory.mktemp("volunteer"))


def installed(command: str, tools: Path, commit: Path, cache: Path, folder: Path) -> Installation:
    """Run one of README's commands of uv in a clone."""
    place = Installation(folder)
    place.bin, place.venv = folder / "bin", folder / "uv" / "echo2"
    more = {
        "UV_TOOL_DIR": str(folder / "uv"), "UV_TOOL_BIN_DIR": str(place.bin), "UV_CACHE_DIR": str(cache),
        "PATH": f"{tools}:{place.bin}", "UV_PYTHON": str(tools / "python"),
    }  # fmt: skip
    if wheels := os.environ.get("PIP_FIND_LINKS"):
        lock = ROOT / "requirements-torch.lock"
        local = f"--find-links {shlex.quote(wheels)} --constraints {shlex.quote(str(lock))}"
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


@pytest.fixture(scope="module")
def run(operator: Installation) -> Iterator[Installation]:
    """The operator, whose run is made and up."""
    make, start, _ = readme.blocks("Train your model")
    made = shell(operator, make)
    assert made.returncode == 0, made.stdout
    with operator.running("/bin/sh", "-ec", f"exec {start}", more=SURROUNDINGS):
        yield operator


@pytest.fixture(scope="module")
def lent(run: Installation, volunteer: Installation) -> Iterator[Installation]:
    """The volunteer, whose machine works for the run by README's command."""
    (join,) = readme.blocks("Lend a machine")
    home = shlex.split(readme.blocks("Train your model")[1])[-1]
    more = {**SURROUNDINGS, "INVITE": run.invite(run.elsewhere / home, run.folder / "sh.log")}
    with volunteer.running("/bin/sh", "-ec", f"exec {join}", more=more):
        yield volunteer


def test_each_command_of_the_set_up_is_run_by_a_test() -> None:
    """`pip install .` is what other tests do with the wheel, `pipx install .` is in test_installers.py."""
    assert INSTALLS == {BARE, TORCH, TRAIN, "pipx install .", "pip install ."}


def test_the_extra_of_a_volunteer_with_pytorch_is_installed_by_its_command(
    tools: Path, commit: Path, uv_cache: Path, tmp_path: Path
) -> None:
    place = installed(TORCH, tools, commit, uv_cache, tmp_path)
    assert "transformers" in place.check("echo2-node", "doctor", "--json")


def test_a_machine_is_lent_until_a_group_is_accepted(run: Installation, lent: Installation) -> None:
    status = readme.blocks("Train your model")[2]
    said = ""
    for _ in range(240):
        said = shell(run, status).stdout
        if re.search(r"groups +[1-9]\d* accepted", said):
            return
        time.sleep(1)
    log = (lent.folder / "sh.log").read_text()
    raise AssertionError(f"no group was accepted:\n{said}\n{log}")


def test_a_volunteer_sees_what_the_node_does(lent: Installation) -> None:
    words = readme.in_text("Lend a machine", "echo2-node", *(one.split()[0] for one in VOLUNTEERS))
    assert [one.removeprefix("echo2-node ") for one in words] == VOLUNTEERS
    answers = {one: shell(lent, f"echo2-node {one}") for one in VOLUNTEERS}
    ended = {one: answer.returncode for one, answer in answers.items()}
    # No service manager is on this PATH.
    assert ended == {one: 78 if one == "service install" else 0 for one in VOLUNTEERS}, answers
    assert "neither systemd nor launchd runs here" in answers["service install"].stdout


@pytest.mark.parametrize("command", [*readme.blocks("Try it"), *readme.in_text("Try it", "make")])
def test_a_command_of_make_has_its_target(command: str, commit: Path) -> None:
    program, *targets = shlex.split(command)
    assert program == "make"
    done = subprocess.run(["make", "--dry-run", *targets], cwd=commit, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
