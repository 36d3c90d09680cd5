"""One word, one meaning: the names of modules, classes and identifiers, as CONTRIBUTING.md promises them.

1. No two modules of the packages, and of the rooms of `benchmarks` that commands play, share a name, except for those
   in `SAME_MODULES`.
2. No two public classes of these share a name, except for those in `SAME_CLASSES`, each with its reason.
3. The words in `BANNED` are no identifiers: each of them once meant four things.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import PACKAGES, PLAYED, ROOT

SAME_MODULES = {"errors", "cli", "main", "daemon", "config", "messages", "registry", "engine", "transport"}
"""The same thing in each package that has one."""
PYTHONS_OWN = {"__init__", "__main__"}
SAME_CLASSES: dict[str, str] = {}
"""Class -> why two classes bear this name."""
BANNED = {"held", "way", "turn", "line", "made", "found", "book", "over"}


def modules() -> list[Path]:
    return [path for package in (*PACKAGES, *PLAYED) for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def shared(names: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Find the names that stand at more than one place."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, place in names:
        places[name].append(place)
    return {name: where for name, where in places.items() if len(where) > 1}


def identifiers(source: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each variable, parameter, function, class and import alias."""
    for node in ast.walk(source):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.alias):
            yield node.lineno, node.asname or ""


def banned(source: ast.Module) -> list[tuple[int, str]]:
    return [(line_number, name) for line_number, name in identifiers(source) if name.lower().strip("_") in BANNED]


def test_no_two_modules_share_a_name() -> None:
    names = [(path.stem, str(path.relative_to(ROOT))) for path in modules()]
    twice = {name: where for name, where in shared(names).items() if name not in SAME_MODULES | PYTHONS_OWN}
    assert twice == {}


@pytest.mark.slow
def test_no_two_public_classes_share_a_name() -> None:
    names = [
        (node.name, str(path.relative_to(ROOT)))
        for path in modules()
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    twice = shared(names)
    assert {name: where for name, where in twice.items() if name not in SAME_CLASSES} == {}
    assert SAME_CLASSES.keys() <= twice.keys(), "an exception that is none"


@pytest.mark.slow
def test_the_banned_words_are_no_identifiers() -> None:
    wrong = [f"{path.relative_to(ROOT)}:{number}: {name}" for path in modules() for number, name in banned(tree(path))]
    assert wrong == []


@pytest.mark.parametrize(
    "source",
    ["held = 1", "self.way = 1", "def turn(): pass", "class Book: pass", "def f(line): pass", "for found in x: pass",
     "import over as made", "_held: int = 2", "with a as line: pass"],
)  # fmt: skip
def test_the_scan_sees(source: str) -> None:
    assert banned(ast.parse(source))


@pytest.mark.parametrize("source", ["x = held", "lines = 1", "print(way)", "override = 1"])
def test_the_scan_sees_only_what_gives_a_name(source: str) -> None:
    assert not banned(ast.parse(source))
