"""The way of the groups learned lately, taken apart."""

import pytest

from echo2.coordinator.metrics.group_stages import MEANINGS, GroupTimes, stages
from echo2.coordinator.metrics.views import StagesView

GROUP = GroupTimes(
    step=7, published=100_000, loaded=101_000, leased=103_000, waited=500, took=2_500, received=106_000,
    judged=110_000, drawn=118_000,
)  # fmt: skip
"""Its stages last 1, 2, 0.5, 2, 0.5, 4 and 8 s."""


def later(seconds: float, **changes: int | None) -> GroupTimes:
    """The group, drawn one step and so many seconds later, otherwise changed."""
    return GROUP._replace(step=8, drawn=GROUP.drawn + int(1000 * seconds), **changes)


def amounts(view: StagesView) -> dict[str, float]:
    return {part.name: part.seconds for part in view.parts}


def test_each_stage_lasts_from_the_end_of_the_one_before_to_its_own() -> None:
    view = stages([GROUP])
    assert amounts(view) == dict(zip(MEANINGS, (1, 2, 0.5, 2, 0.5, 4, 8), strict=True))
    assert view.whole.seconds == 18 == sum(amounts(view).values())


def test_steps_are_those_of_the_learner_and_unknown_before_its_second_one() -> None:
    assert stages([GROUP]).step_seconds is None
    assert {part.steps for part in stages([GROUP]).parts} == {None}
    view = stages([GROUP, later(4)])
    assert view.step_seconds == 4
    assert {part.name: part.steps for part in view.parts}["leased"] == 0.5


def test_a_pause_of_the_run_is_no_step() -> None:
    draws = [
        GROUP._replace(step=step, drawn=GROUP.drawn + 1000 * at) for step, at in enumerate([0, 3, 6, 9, 999, 1002])
    ]
    assert stages(draws).step_seconds == 3
    gap = [GROUP, GROUP._replace(step=20, drawn=GROUP.drawn + 9_000)]
    assert stages(gap).step_seconds is None


def test_the_largest_part_is_named_in_one_sentence() -> None:
    view = stages([GROUP, later(4)])
    assert view.largest == "drawn"
    assert view.sentence == (
        "The largest part is on average 2.50 steps (10.0 s) of 5.00 steps (20.0 s): "
        "the judged group waits for the learner's next batch."
    )
    assert stages([GROUP]).sentence.startswith("The largest part is on average 8.0 s of 18.0 s: ")
    assert stages([GROUP._replace(judged=117_000)]).largest == "judged"


def test_a_part_that_few_groups_have_at_great_length_is_the_largest_by_its_mean() -> None:
    """By its median of no time it would hide: means add up to the whole, medians do not."""
    quick = GROUP._replace(leased=101_000, received=104_000, judged=108_000, drawn=112_000)
    slow = quick._replace(leased=141_000, received=144_000, judged=148_000, drawn=152_000)
    view = stages([quick, quick, slow])
    parts = {part.name: part for part in view.parts}
    assert parts["leased"].seconds == 0
    assert view.largest == "leased"
    assert view.whole is not None
    assert sum(part.mean_seconds for part in view.parts) == pytest.approx(view.whole.mean_seconds)


def test_stages_of_unknown_ends_are_left_out_for_that_group_alone() -> None:
    silent = later(4, loaded=None, waited=None, took=None)
    view = stages([GROUP, silent])
    assert {part.name: part.groups for part in view.parts} == {
        "held": 1, "leased": 1, "begun": 1, "generated": 1, "received": 1, "judged": 2, "drawn": 2,
    }  # fmt: skip
    assert [part.name for part in stages([silent]).parts] == ["judged", "drawn"]


def test_the_largest_part_is_compared_with_groups_of_which_every_end_is_known() -> None:
    """A node that joined long after a publication: its groups are old, and none of their parts says why."""
    joined_late = later(4, published=-3_000_000, loaded=None)
    view = stages([GROUP, joined_late])
    assert view.whole is not None
    assert view.whole.mean_seconds > 1000
    assert view.sentence.startswith("The largest part is on average 2.00 steps (8.0 s) of 4.50 steps (18.0 s): ")
    assert " of 3122.0 s: " in stages([joined_late]).sentence


@pytest.mark.parametrize(
    "lie", [{"loaded": 0}, {"loaded": 10**12}, {"waited": 10**12}, {"took": 10**12}, {"waited": 10**12, "took": 0}]
)
def test_what_a_node_states_moves_time_only_within_the_coordinators_own_times(lie: dict[str, int]) -> None:
    told, honest = amounts(stages([GROUP._replace(**lie)])), amounts(stages([GROUP]))
    assert min(told.values()) >= 0
    assert told["held"] + told["leased"] == honest["held"] + honest["leased"]
    own = ("begun", "generated", "received")
    assert sum(told[name] for name in own) == sum(honest[name] for name in own)
    assert (told["judged"], told["drawn"]) == (honest["judged"], honest["drawn"])


def test_without_a_learned_group_there_is_nothing_to_show() -> None:
    assert stages([]) == StagesView()
