"""The modules that the Python of verifiers runs: their imports of one another are seen by no type check here."""

import ast

from tests.support.paths import ROOT
from tests.support.sources import source

FOLDER = ROOT / "tasks" / "verifiers" / "other_python"


def test_a_module_imports_only_names_that_the_module_beside_it_has() -> None:
    files = {path.stem: source(path) for path in FOLDER.glob("*.py")}
    pairs = [
        (f"{name}.py:{node.lineno}", node.module, alias.name)
        for name, read in files.items()
        for node in read.nodes(ast.ImportFrom)
        if node.module in files
        for alias in node.names
    ]
    assert pairs
    assert [pair for pair in pairs if pair[2] not in names_of(files[str(pair[1])].tree)] == []


def names_of(tree: ast.Module) -> set[str]:
    """Return the names that a module defines at its top."""
    names = set[str]()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names
