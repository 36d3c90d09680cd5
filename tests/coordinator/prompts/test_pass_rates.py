"""Rates of solved answers: pass@k without bias, and an interval over prompts, whose answers belong together."""

import itertools
import random

import pytest

from echo2.coordinator.prompts.pass_rates import PromptAnswers, pass_at, pass_rate, wilson


@pytest.mark.parametrize(("answers", "solved"), [(4, 0), (4, 1), (4, 3), (4, 4), (6, 2)])
def test_pass_at_k_is_the_share_of_choices_with_a_solved_answer(answers: int, solved: int) -> None:
    for k in range(1, answers + 1):
        choices = list(itertools.combinations(range(answers), k))
        counted = sum(any(number < solved for number in choice) for choice in choices) / len(choices)
        assert pass_at(k, answers, solved) == pytest.approx(counted, abs=1e-12)


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_cannot_be_told_from_fewer_answers(k: int) -> None:
    with pytest.raises(ValueError, match="from 4 answers"):
        pass_at(k, 4, 2)


def test_wilson_agrees_with_published_values() -> None:
    # Newcombe 1998, table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    for solved, trials, low, high in [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605),
                                      (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)]:  # fmt: skip
        assert wilson(solved / trials, trials) == pytest.approx((low, high), abs=5e-5)


def test_the_powers_of_two_up_to_the_fewest_answers_are_given() -> None:
    rate = pass_rate([PromptAnswers(8, 4), PromptAnswers(5, 0)])
    assert list(rate.pass_k) == [2, 4]
    assert rate.pass_k[2] == pytest.approx((pass_at(2, 8, 4) + 0) / 2)
    assert rate.pass_1 == 0.25


def test_answers_that_agree_within_a_prompt_count_as_one_trial_each() -> None:
    alike = pass_rate([PromptAnswers(8, 8)] * 10 + [PromptAnswers(8, 0)] * 10)
    mixed = pass_rate([PromptAnswers(8, 4)] * 20)
    assert (alike.low, alike.high) == pytest.approx(wilson(0.5, 20), abs=0.02)
    assert mixed.pass_1 == alike.pass_1
    assert pass_rate([PromptAnswers(8, 0)] * 20)[1:3] == wilson(0.0, 20)


def test_the_interval_covers_the_truth_about_19_times_in_20() -> None:
    chance, covered = random.Random(7), 0
    for _ in range(600):
        prompts = []
        for _ in range(32):
            share = chance.betavariate(0.6, 0.9)  # a mean of 0.4, very different prompts
            prompts.append(PromptAnswers(8, sum(chance.random() < share for _ in range(8))))
        rate = pass_rate(prompts)
        covered += rate.low <= 0.4 <= rate.high
    assert 0.92 <= covered / 600 <= 0.98
