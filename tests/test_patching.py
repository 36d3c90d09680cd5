"""No benchmark patches a module of the product or of a library: a stand-in for a part has one place, named by
ECHO2_STAND_INS (runtime/stand_ins.py)."""

import ast
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT
from tests.support.sources import Source, dotted, paths, source

TOOLS = {"mock", "unittest.mock", "pytest"}
"""Modules whose use in a benchmark patches."""
OWN = {"os.environ"}
"""Attributes of modules that are the process's own, and may be written to."""


def patches(module: Source) -> Iterator[str]:
    """Yield each place where a name of an imported module or class is set."""
    imported = set[str]()
    for plain in module.nodes(ast.Import):
        imported |= {(one.asname or one.name).partition(".")[0] for one in plain.names}
        yield from (f"{plain.lineno}: import {one.name}" for one in plain.names if one.name in TOOLS)
    for node in module.nodes(ast.ImportFrom):
        imported |= {one.asname or one.name for one in node.names}
        used = {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        if used & TOOLS:
            yield f"{node.lineno}: from {node.module}"
    for call in module.nodes(ast.Call):
        name = dotted(call.args[0]) if dotted(call.func) in ("vars", "setattr") else None
        if name and name.partition(".")[0] in imported:
            yield f"{call.lineno}: {dotted(call.func)}({name})"
    for assigned in (*module.nodes(ast.Assign), *module.nodes(ast.AugAssign), *module.nodes(ast.AnnAssign)):
        for target in assigned.targets if isinstance(assigned, ast.Assign) else [assigned.target]:
            for one in ast.walk(target):
                name = dotted(one) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) else None
                if name and name.partition(".")[0] in imported and name not in OWN and not _is_ours(name):
                    yield f"{assigned.lineno}: {name}"


def _is_ours(name: str) -> bool:
    """Tell whether a name is an object in capitals that a benchmark itself made, such as `EYE.truth`."""
    return name.partition(".")[0].isupper()


def test_no_benchmark_patches_a_module() -> None:
    found = [f"{path.relative_to(ROOT)}:{offence}" for path in paths("benchmarks") for offence in patches(source(path))]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "from echo2.coordinator import daemon\ndaemon.TICK = 5.0",
        "import trio\ntrio.open_tcp_stream = f",
        "from echo2.p2p.swarm.payload_file import PayloadFile\nPayloadFile.read = read",
        "from echo2.coordinator import serving\nnames = vars(serving)",
        "import asyncio\nvars(asyncio.Handle)['_run'] = f",
        "from echo2 import a\nsetattr(a, 'b', c)",
        "from unittest import mock",
        "import unittest.mock",
    ],
)
def test_the_scan_finds_each_of_them(text: str) -> None:
    assert [*patches(Source(text))]


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.environ['A'] = 'b'",
        "from a import b\none = b()\none.c = 1",
        "class A:\n    def f(self):\n        self.b = 1",
        "from a import EYE\nEYE.truth = b''",
        "one = vars(self)",
    ],
)
def test_the_scan_lets_others_pass(text: str) -> None:
    assert not [*patches(Source(text))]
