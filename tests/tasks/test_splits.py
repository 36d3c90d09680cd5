"""The two splits of a task: disjoint, complete, and bounded."""

import re

import pytest

from echo2.tasks import registry
from echo2.tasks.arithmetic import ADD_TASK, REVERSE_TASK, SINGLE_SUM, Arithmetic
from echo2.tasks.task import Split, Task
from tests.support.tokenizers import CHARS, LETTERS

SPLITS: tuple[Split, ...] = ("train", "heldout")


def all_tasks() -> list[Task]:
    return [registry.get(name, version) for name, version in registry.list_tasks()]


@pytest.mark.parametrize("task", all_tasks(), ids=lambda task: task.name)
def test_every_prompt_is_in_exactly_one_split_once(task: Task) -> None:
    train, heldout = (
        [tuple(task.episode(split, index, LETTERS).prompt) for index in range(task.size(split))]
        for split in ("train", "heldout")
    )
    assert len({*train, *heldout}) == len(train) + len(heldout)
    assert len(heldout) == (len(train) + len(heldout)) // getattr(task, "share", 10)


@pytest.mark.parametrize("task", [REVERSE_TASK, ADD_TASK, SINGLE_SUM], ids=lambda task: task.name)
def test_the_splits_cover_the_whole_space(task: Arithmetic) -> None:
    posed = {task.question(split, index) for split in ("train", "heldout") for index in range(task.size(split))}
    assert posed == {task.pose(number) for number in range(task.count)}


def test_no_two_numbers_are_added_in_both_splits() -> None:
    """Nor twice in one: 3 + 5 would give 5 + 3 away."""
    asked = [SINGLE_SUM.question(split, i)[0] for split in SPLITS for i in range(SINGLE_SUM.size(split))]
    pairs = {tuple(sorted(re.findall(r"\d+", question), key=int)) for question in asked}
    assert len(pairs) == len(asked) == 210
    assert SINGLE_SUM.size("heldout") == 52


def test_an_index_outside_the_split_is_an_error() -> None:
    for task in all_tasks():
        for index in (-1, task.size("heldout")):
            with pytest.raises(IndexError, match="outside heldout"):
                task.episode("heldout", index, CHARS)
