"""The house report finds what it names."""

import ast
import re

from tests import report

SIX = "".join(f"    value_{n} = compute({n})\n" for n in range(6))


def test_a_docstring_without_a_verb_is_found_and_one_with_a_verb_is_not() -> None:
    tree = ast.parse('def a():\n    """The sum."""\ndef b():\n    """Return the sum."""\n')
    assert [name for name, _, text in report.docstrings(tree) if report.lacks_verb(text)] == ["a"]


def test_private_functions_and_properties_need_no_verb() -> None:
    tree = ast.parse('class A:\n    @property\n    def x(self):\n        """The x."""\ndef _y():\n    """The y."""\n')
    assert list(report.docstrings(tree)) == []


def test_a_block_that_stands_twice_is_told_once_with_both_places() -> None:
    assert report.twice({"a.py": f"def a():\n{SIX}", "b.py": f"x = 1\ndef b():\n{SIX}"}) == ["a.py:2 = b.py:3"]
    assert report.twice({"a.py": f"def a():\n{SIX}"}) == []


def test_no_place_serves_a_build_that_was_never_released() -> None:
    """Until a release exists, formats change in place: changes/README.md."""
    assert report.compatibility() == []


def test_a_place_that_serves_an_earlier_build_is_found() -> None:
    for words in ("None: an older program wrote it", "empty before schema 3", "0: it is older than this field"):
        assert re.search(report.COMPATIBILITY, words)
    assert not re.search(report.COMPATIBILITY, "the oldest first, behind an earlier entry")


def test_parameters_of_a_constructor_are_counted_without_self() -> None:
    tree = ast.parse("class A:\n    def __init__(self, a, b, *, c):\n        pass\n")
    ((name, node),) = report.functions(tree)
    assert (name, report.parameters(node), report.length(node)) == ("A.__init__", 3, 2)


def test_a_port_that_is_wired_late_is_found() -> None:
    late = "class A:\n def __init__(self, b):\n  self.b = b\n  b.on_end = self.end\n  self.ended = lambda: None\n"
    assert [*report.late_assignments(ast.parse(late))] == ["b.on_end", "self.ended"]
