"""What `make dist` built, and environments in which a stranger would install it, each made once."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import readme
from tests.support.installations import Installation
from tests.support.paths import ROOT

TORCH = (ROOT / "constraints.txt").read_text().split()[-1]
"""The pinned PyTorch: elsewhere than here pip takes the newest, on Linux with CUDA."""


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
def operator(tools: Path, commit: Path, uv_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """What README has an operator install."""
    return readme.installed(readme.TRAIN, tools, commit, uv_cache, tmp_path_factory.mktemp("operator"))


@pytest.fixture(scope="session")
def invite(operator: Installation) -> Iterator[str]:
    """The invite of a run of the tiny model, which README's commands made and started."""
    make, start, *_ = readme.blocks("Train your model")
    made = readme.shell(operator, make)
    assert made.returncode == 0, made.stdout
    with operator.running("/bin/sh", "-ec", f"exec {start}", more=readme.SURROUNDINGS) as log:
        yield operator.invite(operator.elsewhere / shlex.split(start)[-1], log)


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
    """The folder of the newest uv, pipx and pip."""
    folder = tmp_path_factory.mktemp("tools")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run(
        [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--upgrade", "uv", "pipx", "pip"], check=True
    )
    return folder / "bin"
