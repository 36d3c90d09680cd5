"""The language of the product's names, counted (CONTRIBUTING.md, "Style"): the counts may only fall.

1. A function is a verb or a noun: no bare participle, such as `told` or `_opened`, but for boolean properties.
2. A gloss in a docstring begins with its noun: "`hash`: hash of the ask", not "`hash`: of the ask".
3. A constant carries its subject: `MOST_NODES`, not `MOST`.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.support.paths import ROOT

PACKAGES: Final = ("runtime", "protocol", "p2p", "weights", "ledger", "tasks", "engines", "node", "coordinator")
IRREGULAR: Final = """
told shown held made found given sent kept taken seen known left lost written begun drawn said met spent built bound
paid asked brought bought caught chosen done driven fallen fought gone grown heard hidden laid led lent meant risen sold
sought stood struck taught thought thrown understood won worn
"""
NO_PARTICIPLES: Final = "bed seed speed feed need embed exceed proceed succeed indeed shared"
"""Words that end as one."""
PREPOSITION: Final = (
    "of|for|by|in|on|at|with|from|to|as|under|behind|after|before|until|since|between|beside|within|without|per|about"
    "|over|through|against"
)
WITHOUT_SUBJECT: Final = """
MOST LEAST LONGEST SHORTEST KEPT LOOK SHOWN TOLD AGAIN EVERY ENOUGH AWAY SOON SMALL KNOWN REMEMBERED LAST LOST QUIET
WAIT RETRY PATIENCE GRACE PAUSE UNSAID HERE RECENT GAP OTHER OWN SHARE RATE WINDOW ROOM BURST FIRST PIECE SLICE
"""
MOST: Final = {"participles": 27, "glosses": 34, "constants": 0}
"""The counts of today."""


def modules() -> Iterator[ast.Module]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield ast.parse(path.read_text())


def is_participle(name: str) -> bool:
    word = name.strip("_")
    return "_" not in word and (
        word in IRREGULAR.split() or (word.endswith("ed") and word not in NO_PARTICIPLES.split())
    )


def participles(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_participle(node.name):
            yield from () if any(ast.unparse(one).endswith("property") for one in node.decorator_list) else (node.name,)


def glosses(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node, clean=False) or ""
            yield from re.findall(rf"`\w+`(?:, `\w+`)*: (?:{PREPOSITION})\b", text)


def constants(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and target.id.strip("_") in WITHOUT_SUBJECT.split():
                yield target.id


def test_functions_are_verbs_or_nouns_glosses_begin_with_their_noun_and_constants_have_a_subject() -> None:
    counted = {"participles": 0, "glosses": 0, "constants": 0}
    for tree in modules():
        for what, of in (("participles", participles), ("glosses", glosses), ("constants", constants)):
            counted[what] += len([*of(tree)])
    assert counted == MOST, "a count that has fallen is the new bound"
