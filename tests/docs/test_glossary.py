"""The glossary of CONTRIBUTING.md against the code: each term has one meaning, and its class or function exists."""

import ast
import re
from functools import cache
from typing import NamedTuple

import pytest

from tests.support.documents import section, tables
from tests.support.paths import ROOT

LONGEST_MEANING = 130


class Term(NamedTuple):
    """One row. `name`: a class, function or table that `module` defines."""

    term: str
    meaning: str
    module: str
    name: str


def glossary() -> list[Term]:
    ((header, *rows),) = tables(section((ROOT / "CONTRIBUTING.md").read_text(), "Glossary"))
    assert header == ["Term", "Meaning", "In code"]
    terms = []
    for term, meaning, place in rows:
        match = re.fullmatch(r"`([\w/]+\.py)`, `(\w+)`", place)
        assert match is not None, f"{term}: {place} is no `module.py`, `Name`"
        terms.append(Term(term, meaning, match[1], match[2]))
    return terms


@cache
def defined(module: str) -> set[str]:
    """Return the names that a module defines at its top."""
    names: set[str] = set()
    for node in ast.parse((ROOT / module).read_text()).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


@pytest.mark.parametrize("term", glossary(), ids=lambda term: term.term)
@pytest.mark.slow_for("ledger")
def test_a_term_has_one_line_and_a_place_in_the_code(term: Term) -> None:
    assert 0 < len(term.meaning) <= LONGEST_MEANING
    assert (ROOT / term.module).is_file(), term.module
    assert term.name in defined(term.module), f"{term.module} defines no {term.name}"


def test_the_terms_are_some_forty_in_order_and_none_stands_twice() -> None:
    names = [term.term for term in glossary()]
    assert 40 <= len(names) <= 60
    assert names == sorted(set(names), key=str.lower)
