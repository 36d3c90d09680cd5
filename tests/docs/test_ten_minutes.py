"""The commands of docs/environment-in-ten-minutes.md, run as they stand, in an environment of their own.

The environment stands above the packages of the one that runs the tests, and has no network: pip installs the page's
package with the build tools that are there.
"""

import os
import re
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PAGE = ROOT / "docs/environment-in-ten-minutes.md"
SCRIPTS = {
    "pip": "-m pip",
    "echo2-coord": "-c 'import sys; from echo2.coordinator.cli import main; sys.exit(main())'",
    "echo2-node": "-c 'import sys; from echo2.node.cli import main; sys.exit(main())'",
}


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def environment(folder: Path) -> dict[str, str]:
    venv.create(folder, with_pip=False, symlinks=True)
    own = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "installed_base": str(folder)}))
    (own / "tests.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    shared = Path(sysconfig.get_path("purelib"))
    for below in shared.glob("*.pth"):
        (own / below.name).write_text(below.read_text())
    for name, arguments in SCRIPTS.items():
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{folder}/bin/python" {arguments} "$@"\n')
        script.chmod(0o755)
    return {
        "PATH": f"{folder}/bin:{os.environ['PATH']}", "HOME": str(folder), "OMP_NUM_THREADS": "1",
        "ECHO2_PRIORITY": "normal",  # beside other tests an idle one starves
        "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }  # fmt: skip


def run(commands: str, folder: Path, variables: dict[str, str], seconds: float) -> str:
    """Run commands in one shell that stops at the first that fails; return what they print."""
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", commands],
        cwd=folder, env=variables, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """The page's folder and variables, with its package installed."""
    pytest.importorskip("hatchling", reason="the package is built without the network: needs the extra dev")
    pytest.importorskip("editables", reason="the package is built without the network: needs the extra dev")
    pytest.importorskip("pip", reason="the page installs its package by pip")
    variables = environment(tmp_path / "environment")
    work = tmp_path / "work"
    work.mkdir()
    run(blocks()[0], work, variables, 90)
    return work, variables


@pytest.mark.slow
def test_the_package_is_installed_shown_and_passes_the_checks(place: tuple[Path, dict[str, str]]) -> None:
    told = run(blocks()[1], *place, 90)
    assert re.search(r"^missing +echo2-missing 1\.0$", told, re.MULTILINE)
    assert "missing version 1: 900000 prompts in train, 100000 in heldout" in told
    assert re.search(r"its own answer '\d': reward 1, success", told)
    assert re.search(r"your answer '0123456789': reward 0\.\d", told)
    assert told.endswith("missing passes\n")


@pytest.mark.slow
def test_the_run_is_learned_by_a_volunteer_without_the_package(place: tuple[Path, dict[str, str]]) -> None:
    ports = "--port 0 --set 'network.listen=[\"/ip4/127.0.0.1/tcp/0\"]' --set 'https.listen=[\"/ip4/127.0.0.1/tcp/0\"]'"
    run(blocks()[2].replace("init run ", f"init run {ports} "), *place, 280)
    told = run(blocks()[3], *place, 280)
    assert "phase    finished; step 60 of 60" in told
    assert " 0 refused" in told
    greedy = [float(share) for share in re.findall(r"greedy=(\S+) ", told)]
    assert greedy[-1] > greedy[0] + 0.3
