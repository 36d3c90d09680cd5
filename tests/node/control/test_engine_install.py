"""`echo2-node engine install vllm`: its steps, what it refuses, and what a failure leaves."""

import sys
from pathlib import Path

import pytest

from echo2.engines.devices.system_gpus import SystemGpu
from echo2.engines.vllm import own_environment
from echo2.node.control import engine_install
from echo2.node.control.engine_install import BUILD_LOCK, LOCKS, TORCH_LOCKS, InstallStep, check, install, lock, steps
from echo2.node.errors import BadConfig, NoUsableDevice, TryLater
from echo2.runtime.installation import Installation, InstallSource, RunsUninstalled
from echo2.runtime.lock import lock_file
from tests.support.paths import ROOT

CHECKOUT = InstallSource("checkout", str(ROOT))
WHEEL = InstallSource("file", "/w/echo2-1.0-py3-none-any.whl")
PROGRAM = f"""
import os, sys
python = sys.argv[1] + "/bin/python"
os.makedirs(os.path.dirname(python), exist_ok=True)
with open(python, "w") as file:
    file.write('#!/bin/sh\\nPYTHONPATH={ROOT} exec {sys.executable} "$@"')
os.chmod(python, 0o755)
print("words of an installer")
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for installers: a step makes a folder with a Python, in which echo2 is this one."""
    monkeypatch.setenv(own_environment.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(engine_install, "system_gpus", lambda: [SystemGpu(vendor="nvidia", driver="nvidia")])
    monkeypatch.setattr(engine_install, "read_installation", lambda: Installation("pip", CHECKOUT, sys.executable))
    monkeypatch.setattr(engine_install, "PACKAGES", ("msgspec", "pytest"))
    of_steps(monkeypatch, 0)
    return own_environment.folder()


def of_steps(monkeypatch: pytest.MonkeyPatch, *statuses: int) -> None:
    monkeypatch.setattr(
        engine_install, "steps",
        lambda new, source, **_: [
            InstallStep(f"step {status}", [sys.executable, "-c", PROGRAM, str(new), str(status)]) for status in statuses
        ],
    )  # fmt: skip


def test_an_environment_that_is_whole_takes_the_place_of_the_old_one(place: Path) -> None:
    said: list[str] = []
    install("vllm", cpu=False, say=said.append)
    mark = own_environment.mark()
    assert mark is not None
    assert (mark.echo2, mark.vllm.partition(" ")[0]) == (own_environment.own_build(), "msgspec")
    assert said[0].split()[:2] == ["step", "0"]
    (place / "left").write_text("of the old one")
    install("vllm", cpu=True, say=said.append)
    assert not (place / "left").exists()
    assert sorted(one.name for one in place.parent.iterdir()) == ["vllm", "vllm.lock"]


def test_a_step_that_fails_says_why_and_leaves_the_old_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("vllm", cpu=False, say=lambda text: None)
    of_steps(monkeypatch, 0, 7, 0)
    with pytest.raises(TryLater, match="step 7 failed with status 7: words of an installer"):
        install("vllm", cpu=False, say=lambda text: None)
    assert own_environment.mark() is not None
    assert sorted(one.name for one in place.parent.iterdir()) == ["vllm", "vllm.lock"]


def test_an_environment_with_another_echo2_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_environment, "own_build", lambda: "9.9")
    with pytest.raises(TryLater, match=r"its source gives echo2 .*, and this one is 9\.9: update this echo2 first"):
        install("vllm", cpu=False, say=lambda text: None)
    assert not place.exists()


def test_two_at_a_time_are_refused(place: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    with lock_file(place.with_name("vllm.lock")), pytest.raises(TryLater, match="wait for its end"):
        install("vllm", cpu=False, say=lambda text: None)


def test_what_is_refused_before_anything_is_made(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadConfig, match="no engine llamacpp has an environment of its own"):
        check("llamacpp", cpu=False)
    gone = Installation("pip", InstallSource("file", "/gone.whl", there=False), sys.executable)
    monkeypatch.setattr(engine_install, "read_installation", lambda: gone)
    with pytest.raises(BadConfig, match="which is not there any more: install echo2 from a wheel or a folder"):
        check("vllm", cpu=False)
    monkeypatch.setattr(engine_install, "read_installation", lambda: Installation("pip", InstallSource("index"), ""))
    with pytest.raises(BadConfig, match="installed from a package index"):
        check("vllm", cpu=False)

    def uninstalled() -> Installation:
        raise RunsUninstalled("echo2 runs from a folder")

    monkeypatch.setattr(engine_install, "read_installation", uninstalled)
    with pytest.raises(BadConfig, match="runs from a folder"):
        check("vllm", cpu=False)
    monkeypatch.setattr(engine_install, "system_gpus", lambda: [SystemGpu(vendor="amd", driver="amdgpu")])
    with pytest.raises(NoUsableDevice, match="vLLM is for NVIDIA GPUs, and this machine shows none"):
        check("vllm", cpu=False)


def test_a_folder_that_cannot_be_written_is_named(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(own_environment.FOLDER_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(BadConfig, match="name another folder with ECHO2_ENGINES"):
        install("vllm", cpu=False, say=lambda text: None)


@pytest.mark.parametrize("uv", ["", "/bin/uv"])
@pytest.mark.parametrize("cpu", [False, True])
@pytest.mark.parametrize("source", [CHECKOUT, WHEEL], ids=["checkout", "wheel"])
def test_all_but_this_echo2_is_installed_by_hashes(source: InstallSource, cpu: bool, uv: str) -> None:
    all_steps = steps(Path("/new"), source, cpu=cpu, uv=uv)
    commands = [" ".join(step.command) for step in all_steps]
    hashed = [one for one in commands if "--require-hashes --no-deps --only-binary :all:" in one]
    wanted = "requirements-vllm.lock" if cpu else "requirements-vllm-cuda.lock"
    plain = cpu and sys.platform == "linux"
    torch = "requirements-torch-cpu.lock" if plain else "requirements-torch.lock"
    assert [one.rpartition("/")[2] for one in hashed] == ["requirements-build.lock", wanted, torch]
    assert all(one.startswith(uv or "/new/bin/python -m pip install") for one in hashed)
    assert ("--torch-backend cpu" in hashed[-1] or "/whl/cpu" in hashed[-1]) == plain
    last = f"-e {ROOT}" if source is CHECKOUT else WHEEL.place
    assert [one for one in commands if one.endswith(f"--no-deps --no-build-isolation {last}")]


@pytest.mark.parametrize("name", [BUILD_LOCK, *LOCKS.values(), *TORCH_LOCKS.values()])
def test_the_locks_are_there_and_each_requirement_has_hashes(name: str) -> None:
    pinned = [one for one in lock(name).read_text().splitlines() if "==" in one and not one.startswith(("#", " "))]
    assert all(one.endswith("\\") for one in pinned)
    torch = [one for one in pinned if one.startswith("torch==")]
    assert (torch == pinned) if name in TORCH_LOCKS.values() else (len(pinned) > 3 and not torch)


def test_the_lock_for_cards_has_vllm_of_the_extra_and_the_libraries_of_cuda() -> None:
    text = lock("requirements-vllm-cuda.lock").read_text()
    assert "\nvllm==0.32.0 " in text
    assert "\nnvidia-cublas==" in text
