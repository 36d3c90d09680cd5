"""The last groups of each prompt, one per party and key, and the means over a task's prompts."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo2.coordinator.database.database import Database
from echo2.coordinator.prompts.prompt_choice import PLACES, PromptFigures
from echo2.coordinator.prompts.prompt_records import PromptRecords, figures_of, sum_groups, with_group

RIGHT, WRONG = [1.0] * 4, [0.0] * 4
MIXED = [1.0, 0.0, 1.0, 0.0]


@pytest.fixture
def records(tmp_path: Path) -> Iterator[PromptRecords]:
    with Database.open(tmp_path / "run.sqlite") as database:
        yield PromptRecords(database)


def test_with_rewards_of_0_and_1_the_variance_is_p_times_1_minus_p() -> None:
    groups = [figures_of("a", b"a", MIXED), figures_of("b", b"b", WRONG)]
    assert sum_groups(groups) == PromptFigures(2, 187_500)  # p = 1/4


def test_graded_rewards_have_their_own_variance() -> None:
    rewards = [0.1, 0.35, -2.0, 0.7]
    mean = sum(rewards) / 4
    variance = sum((reward - mean) ** 2 for reward in rewards) / 4
    assert sum_groups([figures_of("a", b"a", rewards)]).variance == pytest.approx(1e6 * variance, abs=2)
    assert sum_groups([figures_of("a", b"a", [1e300, -1e300])]).variance == 10**12, "rewards are bounded"


def test_a_party_and_a_key_have_one_place_of_a_prompt() -> None:
    """An owner of 1,000 keys in one subnet, or of one key in 1,000 subnets, moves a prompt by one place."""
    honest = [figures_of(f"honest {number}", b"%d" % number, MIXED) for number in range(PLACES)]
    for hostile in (
        [figures_of("one subnet", b"key %d" % number, WRONG) for number in range(1_000)],
        [figures_of(f"subnet {number}", b"one key", WRONG) for number in range(1_000)],
    ):
        groups = honest
        for group in hostile:
            groups = with_group(groups, group)
        assert len(groups) == PLACES
        assert groups[:-1] == honest[1:]
        p = sum(one.reward for one in groups) / sum(one.rollouts for one in groups) / 1e6
        assert 0.5 - p <= 0.5 / PLACES + 1e-9


def test_a_newer_group_takes_the_place_of_its_own_party_or_else_of_the_oldest() -> None:
    groups = [figures_of(name, name.encode(), WRONG) for name in "abc"]
    again = figures_of("b", b"other key", RIGHT)
    assert with_group(groups, again) == [groups[0], groups[2], again]
    new = figures_of("d", b"d", RIGHT)
    assert with_group(groups, new) == [groups[1], groups[2], new]


def test_the_means_are_those_of_all_tried_prompts(records: PromptRecords) -> None:
    chance = random.Random(3)
    groups: dict[int, list[object]] = {}
    for number in range(200):
        index = chance.randrange(20)
        rewards = [float(chance.random() < index / 20) for _ in range(4)]
        group = figures_of(f"party {number % 7}", b"%d" % number, rewards)
        records.add("add", 1, index, group)
        groups[index] = with_group(groups.get(index, []), group)  # type: ignore[arg-type,assignment]
    every = [sum_groups(one) for one in groups.values()]  # type: ignore[arg-type]
    summary = records.summary("add", 1, [19, 0, 77])
    assert summary.neutral == sum(one.variance for one in every) // len(every)
    assert summary.candidates == [sum_groups(groups[19]), sum_groups(groups[0]), PromptFigures()]  # type: ignore[arg-type]


def test_tasks_and_their_versions_are_apart(records: PromptRecords) -> None:
    records.add("add", 1, 3, figures_of("a", b"a", MIXED))
    assert records.summary("add", 2, [3]).candidates == [PromptFigures()]
    assert records.summary("reverse", 1, [3]).neutral == 0
    assert records.summary("add", 1, [3]).neutral == 250_000
