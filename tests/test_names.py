"""One word, one meaning: the names of modules, classes and identifiers, as CONTRIBUTING.md promises them.

1. No two modules of the packages, and of the rooms of `benchmarks` that commands play, share a name, except for those
   in `SAME_MODULES`.
2. No two public classes of these share a name, except for those in `SAME_CLASSES`, each with its reason.
3. The words in `BANNED` are no identifiers: each of them once meant four things.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import PACKAGES, PLAYED, ROOT
from tests.support.sources import Source, paths, source

SAME_MODULES = {"errors", "cli", "main", "daemon", "config", "messages", "registry", "engine", "transport"}
"""The same thing in each package that has one."""
PYTHONS_OWN = {"__init__", "__main__"}
SAME_CLASSES: dict[str, str] = {}
"""Class -> why two classes bear this name."""
BANNED = {"held", "way", "turn", "line", "made", "found", "book", "over"}


def modules() -> list[Path]:
    return [path for package in (*PACKAGES, *PLAYED) for path in paths(package)]


def shared(names: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Find the names that stand at more than one place."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, place in names:
        places[name].append(place)
    return {name: where for name, where in places.items() if len(where) > 1}


def identifiers(module: Source) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each variable, parameter, function, class and import alias."""
    for name in module.nodes(ast.Name):
        if isinstance(name.ctx, ast.Store):
            yield name.lineno, name.id
    for attribute in module.nodes(ast.Attribute):
        if isinstance(attribute.ctx, ast.Store):
            yield attribute.lineno, attribute.attr
    for parameter in module.nodes(ast.arg):
        yield parameter.lineno, parameter.arg
    for kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        yield from ((definition.lineno, definition.name) for definition in module.nodes(kind))
    for alias in module.nodes(ast.alias):
        yield alias.lineno, alias.asname or ""


def banned(module: Source) -> list[tuple[int, str]]:
    return sorted((number, name) for number, name in identifiers(module) if name.lower().strip("_") in BANNED)


def test_no_two_modules_share_a_name() -> None:
    names = [(path.stem, str(path.relative_to(ROOT))) for path in modules()]
    twice = {name: where for name, where in shared(names).items() if name not in SAME_MODULES | PYTHONS_OWN}
    assert twice == {}


def test_no_two_public_classes_share_a_name() -> None:
    names = [
        (node.name, str(path.relative_to(ROOT)))
        for path in modules()
        for node in source(path).tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    twice = shared(names)
    assert {name: where for name, where in twice.items() if name not in SAME_CLASSES} == {}
    assert SAME_CLASSES.keys() <= twice.keys(), "an exception that is none"


def test_the_banned_words_are_no_identifiers() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {name}" for path in modules() for number, name in banned(source(path))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    ["held = 1", "self.way = 1", "def turn(): pass", "class Book: pass", "def f(line): pass", "for found in x: pass",
     "import over as made", "_held: int = 2", "with a as line: pass"],
)  # fmt: skip
def test_the_scan_sees(text: str) -> None:
    assert banned(Source(text))


@pytest.mark.parametrize("text", ["x = held", "lines = 1", "print(way)", "override = 1"])
def test_the_scan_sees_only_what_gives_a_name(text: str) -> None:
    assert not banned(Source(text))
