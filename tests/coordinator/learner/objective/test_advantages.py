import math

import pytest

from echo2.coordinator.learner.objective.advantages import compute, signal_of


def test_group_normalised_advantages_are_centred_and_divided_by_the_sample_deviation() -> None:
    advantages = compute([[0.0, 0.0, 1.0, 1.0]], "group")
    unit = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert advantages.values == [pytest.approx([-unit, -unit, unit, unit])]


def test_mean_only_advantages_keep_the_rewards_scale() -> None:
    assert compute([[0.0, 0.2, 1.0]], "mean").values == [pytest.approx([-0.4, -0.2, 0.6])]


@pytest.mark.parametrize("kind", ["group", "mean"])
def test_a_group_without_variance_has_no_signal_and_is_counted(kind: str) -> None:
    advantages = compute([[0.1, 0.1, 0.1], [0.0, 1.0, 0.0], [1.0], []], kind)
    assert advantages.values[0] == [0.0, 0.0, 0.0]
    assert advantages.values[2:] == [[0.0], []]
    assert advantages.zero_variance == 3


@pytest.mark.parametrize("kind", ["group", "mean"])
def test_a_groups_advantages_do_not_depend_on_the_batch_around_it(kind: str) -> None:
    alone = compute([[0.3, 0.9]], kind).values[0]
    assert compute([[5.0, -5.0], [0.3, 0.9]], kind).values[1] == alone


BAD = {
    "a kind that does not exist": ([[0.0, 1.0]], "gae", "choose one of group, mean"),
    "a reward that is not a number": ([[0.0, math.nan]], "group", "not a finite number"),
    "a reward that is infinite": ([[0.0, math.inf]], "mean", "not a finite number"),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_inputs_are_named(sentence: str) -> None:
    rewards, kind, message = BAD[sentence]
    with pytest.raises(ValueError, match=message):
        compute(rewards, kind)


def test_the_signal_of_rewards_0_and_1_is_twice_the_root_of_p_times_1_minus_p() -> None:
    for right in range(9):
        p = right / 8
        assert signal_of([1.0] * right + [0.0] * (8 - right)) == pytest.approx(2 * math.sqrt(p * (1 - p)))
    assert signal_of([10.0, 20.0, 30.0]) == pytest.approx(signal_of([0.1, 0.2, 0.3])), "it has no unit"
    for nothing in ([], [1.0], [0.3] * 4, [math.nan, 1.0], [math.inf, 1.0]):
        assert signal_of(nothing) == 0.0
