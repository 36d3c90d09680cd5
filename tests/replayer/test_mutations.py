"""A change of one of the second replayer's rules is seen by the cases: generated histories, entries and documents that
were changed, and examples at the edges of rules. `python tests/replayer/mutations.py` tries every change."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.replay_cases import all_cases, history_of
from tests.support.run_folders import make_run, write_model

sys.path.insert(0, str(ROOT / "tests" / "replayer"))

from mutations import EQUIVALENT, changes, every_mutant, load, mutants, sources, survives

PARTS = 8


@pytest.mark.slow
def test_each_change_is_another_program_and_is_taken_back() -> None:
    for text in sources().values():
        tree = ast.parse(text)
        whole, seen = ast.unparse(tree), set[str]()
        for place, _ in enumerate(changes(tree)):
            if place % 40 == 0:
                seen.add(ast.unparse(tree))
        assert ast.unparse(tree) == whole
        assert whole not in seen
        assert len(seen) > 10


@pytest.mark.slow
def test_what_is_listed_as_the_same_program_is_a_change_that_is_tried() -> None:
    listed = {(one.line, one.change) for one in mutants(lambda place, line, change: (line, change) in EQUIVALENT)}
    assert listed == EQUIVALENT.keys()


@pytest.mark.slow
def test_a_changed_rule_of_a_half_life_is_seen(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", write_model(tmp_path / "model"))
    cases = [history_of(run, seed, 260, load) for seed in (1, 2, 3)]
    halving = list(mutants(lambda place, line, change: "power else" in line))
    assert len(halving) == 2
    assert not any(survives(one, cases) for one in halving)


@pytest.fixture(scope="module")
def cases() -> Iterator[list[Any]]:
    with all_cases(load) as made:
        assert [case.name for case in made if not case.same(load()["replay"])] == []
        yield made


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_change_is_seen(cases: list[Any], part: int) -> None:
    """Of every eighth change, from `part` on; all but those that make the same program."""
    tried = mutants(every_mutant(PARTS, part))
    left = [one for one in tried if (one.line, one.change) not in EQUIVALENT and survives(one, cases)]
    assert not left, "\n".join(f"{one.module}:{one.number}: {one.change}: {one.line}" for one in left)
