"""The Python sources of the checkout as its gates read them: each file is read, parsed and walked once."""

import ast
import gc
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

from tests.support.paths import ROOT

Node = TypeVar("Node", bound=ast.AST)


class Source:
    """A module's text, its tree, and the nodes of this by their class."""

    def __init__(self, text: str, filename: str = "<text>") -> None:
        self.text = text
        self.tree = ast.parse(text, filename=filename)
        self._nodes: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        for node in ast.walk(self.tree):
            self._nodes[type(node)].append(node)

    def nodes(self, kind: type[Node]) -> list[Node]:
        """Return the nodes of one class, wherever they stand."""
        return self._nodes.get(kind, [])  # type: ignore[return-value]

    @cached_property
    def imports(self) -> list[tuple[int, str]]:
        """(line, dotted name) of each absolute import: at the top, in a function, under a condition, or as
        `import_module("x")`."""
        return sorted(self._imports())

    def _imports(self) -> Iterator[tuple[int, str]]:
        for plain in self.nodes(ast.Import):
            yield from ((plain.lineno, alias.name) for alias in plain.names)
        for node in self.nodes(ast.ImportFrom):
            if node.level == 0 and node.module:
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        for call in self.nodes(ast.Call):
            if name := _imported_by_call(call):
                yield call.lineno, name

    @cached_property
    def texts(self) -> frozenset[str]:
        """Every literal text."""
        return frozenset(node.value for node in self.nodes(ast.Constant) if isinstance(node.value, str))


def _imported_by_call(call: ast.Call) -> str | None:
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function not in {"import_module", "__import__"}:
        return None
    argument = call.args[0] if call.args else None
    return str(argument.value) if isinstance(argument, ast.Constant) else None


def dotted(node: ast.expr) -> str:
    """Return a name such as `a.b.c` as it is written; empty: the expression is no such name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


@cache
def source(path: Path) -> Source:
    """Return a file's source. Millions of nodes that stay would slow each later collection of garbage in this process,
    so the collector rests while they are made, and looks at them no more."""
    running = gc.isenabled()
    gc.disable()
    try:
        return Source(path.read_text(), str(path))
    finally:
        gc.freeze()
        if running:
            gc.enable()


@cache
def paths(folder: str) -> tuple[Path, ...]:
    """Return the Python files below a folder of the checkout, in order."""
    return tuple(sorted((ROOT / folder).rglob("*.py")))
