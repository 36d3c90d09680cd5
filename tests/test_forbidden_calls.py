"""No code of the packages decodes bytes by running them: pickle and its kin, torch.load, eval, exec, yaml.load."""

import ast
from collections.abc import Iterator

import pytest

from tests.support.paths import PACKAGES, PLAYED, ROOT
from tests.support.sources import Source, dotted, paths, source

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


def offences(module: Source) -> Iterator[str]:
    """Yield each import and each call that may run what it decodes."""
    for plain in module.nodes(ast.Import):
        yield from (f"{plain.lineno}: {one.name}" for one in plain.names if one.name.partition(".")[0] in MODULES)
    for node in module.nodes(ast.ImportFrom):
        names = {f"{node.module}.{one.name}" for one in node.names}
        if node.module and (node.module.partition(".")[0] in MODULES or names & CALLS):
            yield f"{node.lineno}: from {node.module}"
    for call in module.nodes(ast.Call):
        if (name := dotted(call.func)) in CALLS:
            yield f"{call.lineno}: {name}"


def test_no_module_decodes_by_running() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{offence}"
        for package in (*PACKAGES, *PLAYED)
        for path in paths(package)
        for offence in offences(source(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
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
def test_the_scan_finds_each_of_them(text: str) -> None:
    assert [*offences(Source(text))]


@pytest.mark.parametrize(
    "text", ["model.eval()", "re.compile('x')", "torch.compile(f)", "json.load(file)", "x.load(p)"]
)
def test_the_scan_lets_others_pass(text: str) -> None:
    assert not [*offences(Source(text))]
