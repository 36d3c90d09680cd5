"""What `make dist` built, and environments in which a stranger would install it, each made once."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installations import Installation
from tests.support.paths import ROOT

TORCH = (ROOT / "requirements-torch.lock").read_text().split()[-1]
"""The pinned PyTorch: elsewhere than here pip takes the newest, on Linux with CUDA."""
SETTINGS = ("--set", 'network.listen=["/ip4/127.0.0.1/tcp/0"]', "--set", "network.mdns=false", "--set", "web.port=0")


@pytest.fixture(scope="session")
def wheel() -> Path:
    return _built("*.whl")


@pytest.fixture(scope="session")
def sdist() -> Path:
    return _built("*.tar.gz")


def _built(pattern: str) -> Path:
    files = list((ROOT / "dist").glob(pattern))
    assert len(files) == 1, f"run `make dist` first: dist/ holds {len(files)} of {pattern}"
    return files[0]


@pytest.fixture(scope="session")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("bare")).make(str(wheel))


@pytest.fixture(scope="session")
def with_torch(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("with_torch")).make(f"{wheel}[torch]", TORCH)


@pytest.fixture(scope="session")
def light_lock(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The lock that `make setup-light` installs."""
    return _locked(tmp_path_factory.mktemp("light_lock"), wheel, "requirements-light.lock")


@pytest.fixture(scope="session")
def whole_lock(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The locks that `make setup` installs."""
    place = _locked(tmp_path_factory.mktemp("whole_lock"), wheel, "requirements.lock")
    place.check("python", "-m", "pip", "install", "--quiet", TORCH)
    return place


def _locked(folder: Path, wheel: Path, lock: str) -> Installation:
    flags = ("--require-hashes", "--no-deps", "--only-binary", ":all:")
    place = Installation(folder).make("--requirement", str(ROOT / lock), flags=flags)
    place.check("python", "-m", "pip", "install", "--quiet", "--no-deps", str(wheel))
    return place


@pytest.fixture(scope="session")
def invite(with_torch: Installation) -> Iterator[str]:
    """The invite of a run of the tiny model, whose coordinator is up; made and run in the environment with PyTorch."""
    run = with_torch.folder / "run"
    with_torch.check("echo2-coord", "init", str(run), "--model", "tiny", "--yes", *SETTINGS)
    with with_torch.running("echo2-coord", "run", "--home", str(run)) as log:
        yield with_torch.invite(run, log)


@pytest.fixture(scope="session")
def commit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this checkout in which all that the work tree changes is committed."""
    clone = tmp_path_factory.mktemp("clone") / "echo2"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    words = ["git", "ls-files", "-z", "--modified", "--others", "--exclude-standard"]
    changed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, changed):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name, follow_symlinks=False)
        else:
            (clone / name).unlink(missing_ok=True)
    who = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    subprocess.run(["git", "add", "--all"], cwd=clone, check=True)
    subprocess.run(["git", *who, "commit", "--quiet", "--allow-empty", "-m", "as it stands"], cwd=clone, check=True)
    return clone


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """uv's cache: what one command downloads and builds, the next one has."""
    return Path(os.environ.get("UV_CACHE_DIR") or tmp_path_factory.mktemp("uv_cache"))


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of uv's and pipx's programs."""
    folder = tmp_path_factory.mktemp("tools")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "uv", "pipx"], check=True)
    return folder / "bin"
