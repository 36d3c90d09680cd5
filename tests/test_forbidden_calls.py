"""No code of the packages decodes bytes by running them: pickle and its kin, torch.load, eval, exec, yaml.load."""

import ast
from collections.abc import Iterator

import pytest

from tests.support.paths import PACKAGES, PLAYED, ROOT

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CALLS = {
    "eval",
    "exec",
    "compile",
    "torch.load",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "numpy.load",
    "np.load",
}
"""Calls by their dotted names. numpy.load takes pickles where it is told so."""


def offences(source: str) -> Iterator[str]:
    """Yield each import and each call that may run what it decodes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (f"{node.lineno}: {one.name}" for one in node.names if one.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{one.name}" for one in node.names}
            if node.module.partition(".")[0] in MODULES or names & CALLS:
                yield f"{node.lineno}: from {node.module}"
        elif isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in CALLS:
            yield f"{node.lineno}: {name}"


@pytest.mark.slow
def test_no_module_decodes_by_running() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{offence}"
        for package in (*PACKAGES, *PLAYED)
        for path in sorted((ROOT / package).rglob("*.py"))
        for offence in offences(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle as c",
        "from torch import load",
        "torch.load('x')",
        "eval('1')",
        "def f():\n    exec(code)",
        "yaml.load(text)",
        "marshal = 1\nimport marshal",
    ],
)
def test_the_scan_finds_each_of_them(source: str) -> None:
    assert [*offences(source)]


@pytest.mark.parametrize(
    "source", ["model.eval()", "re.compile('x')", "torch.compile(f)", "json.load(file)", "x.load(p)"]
)
def test_the_scan_lets_others_pass(source: str) -> None:
    assert not [*offences(source)]
