"""The installation as docs/adr/0001-libp2p-without-its-pins.md decides it: our list of libp2p's needs, lock and pin."""

import ast
import functools
import importlib.metadata
import re
import subprocess
import sys
import tomllib

import pytest

from tests.support.paths import PACKAGES, ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def normal(requirement: str) -> str:
    """The distribution that a requirement names, in the normal form."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip())[0]).lower()


DECLARED = {normal(dependency) for dependency in PROJECT["dependencies"]}
EXTRAS = {normal(need) for extra in PROJECT["optional-dependencies"].values() for need in extra}
"""Not installed by default: a module of the same name may be imported where it is looked for first."""
DISTRIBUTIONS = importlib.metadata.packages_distributions()


def locked(name: str) -> dict[str, str]:
    lines = (text_line for text_line in (ROOT / name).read_text().splitlines() if not text_line.startswith(("#", " ")))
    return {normal(text_line): text_line.partition("==")[2].split(" ")[0] for text_line in lines}


def unhashed(name: str) -> set[str]:
    """The distributions of a lock without a hash."""
    parts = re.split(r"\n(?=[^ ])", (ROOT / name).read_text().strip())
    return {normal(part) for part in parts if not part.startswith("#") and "--hash=sha256:" not in part}


def pinned_libp2p() -> str:
    return re.findall(r"^LIBP2P := libp2p==(\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]


def test_the_installed_libp2p_is_the_pinned_one() -> None:
    assert importlib.metadata.version("libp2p") == pinned_libp2p()


OTHER_PYTHON = {ROOT / "tasks/verifiers/other_python", ROOT / "tasks/verifiers/tasksets"}
"""Run by the Python that has requirements-verifiers.lock, and by no other."""
NOT_LOADED = {
    "grpcio": ("grpc", "generated stubs of autonat that nothing imports"),
    "lru-dict": ("lru", "nothing of libp2p 0.8.1 imports it"),
    "mypy-protobuf": ("mypy_protobuf", "generates the type stubs that libp2p ships"),
    "rpcudp": ("rpcudp", "nothing of libp2p 0.8.1 imports it"),
    "types-requests": ("types_requests", "type stubs, for libp2p's own checks"),
}
"""Dependencies that libp2p declares and we do not install: (module, why it is not missed)."""
LOADED = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    sys.modules[name] = None
import echo2.p2p
for module in pkgutil.walk_packages(echo2.p2p.__path__, "echo2.p2p."):
    importlib.import_module(module.name)
print(*{name.partition(".")[0] for name, module in sys.modules.items() if module is not None})
"""


@functools.cache
def loaded_by_libp2p() -> set[str]:
    """The distributions of all that is loaded with every module of p2p, without what `NOT_LOADED` says."""
    blocked = [module for module, _ in NOT_LOADED.values()]
    command = [sys.executable, "-c", LOADED, *blocked]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120)
    return distributions(set(done.stdout.split()))


def distributions(modules: set[str]) -> set[str]:
    return {normal(name) for module in modules for name in DISTRIBUTIONS.get(module, [])}


@functools.cache
def imported_by_us() -> set[str]:
    """Top-level modules that a module of the packages imports, wherever it stands in it."""
    names: set[str] = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if path.parent in OTHER_PYTHON:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names.add(node.module.partition(".")[0])
    return names


def test_what_libp2p_needs_is_declared_but_for_what_it_never_loads() -> None:
    needs = importlib.metadata.requires("libp2p") or []
    unconditional = {normal(need) for need in needs if "extra ==" not in need and "python_version <" not in need}
    assert unconditional - DECLARED == NOT_LOADED.keys()


def test_every_dependency_is_imported_by_us_or_by_libp2p() -> None:
    assert DECLARED - distributions(imported_by_us()) - loaded_by_libp2p() == set()


def test_what_we_import_is_declared() -> None:
    ours = {"libp2p", "echo2"}
    foreign = imported_by_us() - set(sys.stdlib_module_names) - ours
    undeclared = {module for module in foreign if not distributions({module}) & DECLARED} - EXTRAS
    undeclared -= {module for module in undeclared if normal(module) in EXTRAS}
    assert undeclared == set()


def test_the_default_installation_does_not_pull_libp2p_with_its_pin() -> None:
    assert "libp2p" not in {normal(dependency) for dependency in PROJECT["dependencies"]}
    assert "libp2p" not in locked("requirements.lock")


LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_file_of_a_lock_has_a_hash_but_for_pytorchs(lock: str) -> None:
    assert unhashed(lock) == ({"torch"} if lock == "requirements-torch.lock" else set())


def test_what_is_installed_from_a_lock_is_checked_against_its_hashes() -> None:
    commands = [
        line for line in (ROOT / "Makefile").read_text().splitlines() if re.search(r"-r requirements\S*lock", line)
    ]
    checked = ("$(HASHED)", "--require-hashes", "-r requirements-torch.lock", ":=")
    assert len(commands) >= 9
    assert [line for line in commands if not any(word in line for word in checked)] == []


def test_libp2p_has_the_version_and_hash_of_its_lock() -> None:
    assert locked("requirements-libp2p.lock") == {"libp2p": pinned_libp2p()}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_exact_versions_that_every_platform_has(lock: str) -> None:
    wrong = {name: version for name, version in locked(lock).items() if not re.fullmatch(r"[0-9][0-9a-z.]*", version)}
    assert wrong == {}


def test_a_node_without_torch_gets_every_dependency_but_torch_and_the_library_of_its_engine() -> None:
    extra = {normal(dependency) for dependency in PROJECT["optional-dependencies"]["llama"]}
    light, whole = locked("requirements-light.lock"), locked("requirements.lock")
    assert locked("requirements-llama.lock").keys() == extra
    assert light.keys() >= (DECLARED - {"torch", "transformers"}) | extra
    assert not light.keys() & {"torch", "transformers"}
    assert {name: light[name] for name in light.keys() & whole.keys()} == {
        name: whole[name] for name in light.keys() & whole.keys()
    }
    assert light.keys() - whole.keys() == extra


def test_the_lock_holds_every_dependency() -> None:
    wanted = {normal(dependency) for dependency in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]}
    locks = ("requirements.lock", "requirements-torch.lock", "requirements-source.lock")
    assert wanted - {name for lock in locks for name in locked(lock)} == set()


def test_the_second_lock_completes_the_extra_without_what_it_does_not_need() -> None:
    wanted = {normal(dependency) for dependency in PROJECT["optional-dependencies"]["smollm2"]}
    assert wanted <= locked("requirements-smollm2.lock").keys()
    assert "llama-cpp-python" not in locked("requirements-smollm2.lock")


def test_each_readme_command_for_libp2p_names_the_pinned_version() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {version for path in documents for version in re.findall(r"libp2p==(\d[\w.]*)", path.read_text())}
    assert named <= {pinned_libp2p()}
