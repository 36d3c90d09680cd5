"""Tokens in integers: what each field and each statistic holds."""

import numpy as np
import pytest

from echo2.coordinator.verification.token_evidence import (
    BINS,
    DIFFERS,
    END,
    GAP_EDGES,
    GAP_UNIT,
    ONE,
    RAISING,
    START,
    STATISTICS,
    TOKEN,
    Incomparable,
    TokenArray,
    compare_group,
    compare_tokens,
)
from echo2.engines.engine import Sample, SampleScore


def tokens(margins: list[float], gaps: list[float], drifts: list[float], *, raising: bool = False) -> TokenArray:
    scored = np.full(len(margins), -1.0, np.float32)
    claimed = (scored + np.array(drifts, np.float32)).astype(np.float32)
    ends = np.arange(len(margins)) == len(margins) - 1
    return compare_tokens(
        claimed, scored, np.array(margins, np.float32), np.array(gaps, np.float32), ends=ends, raising=raising
    )


def test_a_token_that_is_the_seeded_choice_of_a_clear_gap_shows_nothing() -> None:
    one = tokens([0.0, 0.0], [1.0, 3.0], [0.0, 0.0])
    assert one["gap"].tolist() == [BINS - 1, BINS - 1]
    assert one["margin"].tolist() == one["drift"].tolist() == [0, 0]
    assert one["flags"].tolist() == [START, START | END]


def test_fields_are_rounded_down_and_bounded() -> None:
    one = tokens([2.0**-14 * 1.9, 4.5, 0.0], [0.0, 0.5, 0.1], [2.0**-16 * -0.5, 0.75, -0.75], raising=True)
    assert one["margin"].tolist() == [1, 65535, 0]
    assert one["drift"].tolist() == [-1, 32767, -32768]
    assert [flags & DIFFERS for flags in one["flags"].tolist()] == [DIFFERS, DIFFERS, 0]
    assert all(flags & RAISING for flags in one["flags"].tolist())


def test_a_gap_is_in_the_bin_that_begins_at_or_below_it() -> None:
    edges = [edge * GAP_UNIT for edge in GAP_EDGES]
    below = [edge - GAP_UNIT for edge in edges]
    zeros = [0.0] * len(edges)
    assert tokens(zeros, edges, zeros)["gap"].tolist() == list(range(1, BINS))
    assert tokens(zeros, below, zeros)["gap"].tolist() == list(range(BINS - 1))


def test_only_the_first_fifty_tokens_are_at_the_start() -> None:
    flags = tokens([0.0] * 60, [1.0] * 60, [0.0] * 60)["flags"]
    assert (flags & START > 0).sum() == 50
    assert (flags & START > 0)[:50].all()


@pytest.mark.parametrize("name", STATISTICS)
def test_every_statistic_is_from_nought_to_one(name: str) -> None:
    generator = np.random.default_rng(1)
    many = np.frombuffer(generator.bytes(TOKEN.itemsize * 4096), TOKEN)
    values, counts = STATISTICS[name](many)
    assert values.min() >= 0
    assert values.max() <= ONE
    assert len(values) == len(counts) == len(many)


def test_the_signed_drifts_are_one_half_where_there_is_no_drift() -> None:
    one = tokens([0.0] * 3, [1.0] * 3, [0.0, 0.25, -0.25])
    assert (STATISTICS["above"](one)[0] / ONE).tolist() == [0.5, 0.75, 0.25]
    assert (STATISTICS["below"](one)[0] / ONE).tolist() == [0.5, 0.25, 0.75]
    assert (STATISTICS["drift"](one)[0] / ONE).tolist() == [0.0, 0.5, 0.5]


def test_parts_of_a_rollout_count_the_differing_tokens_with_their_flag_alone() -> None:
    one = tokens([0.1] * 60, [1.0] * 60, [0.0] * 60)
    for name, number in (("start", 50), ("end", 1), ("raising", 0)):
        values, counts = STATISTICS[name](one)
        assert (counts.sum(), values[counts].sum()) == (number, number * ONE), name


def score(count: int, **values: list[float]) -> SampleScore:
    fields = {"logprobs": [-1.0] * count, "margins": [0.0] * count, "gaps": [1.0] * count}
    return SampleScore(**(fields | values))


def test_a_group_gives_its_sampled_tokens_in_order_and_none_that_the_environment_gave() -> None:
    samples = [
        Sample(tokens=[7, 8, 50, 51, 2], turns=[2, 2, 1], logprobs=[-1.0, -1.5, -1.0]),
        Sample(tokens=[9, 2], turns=[2], logprobs=[-1.0, -1.0]),
    ]
    one = compare_group(samples, [score(3), score(2)], [1.0, 0.0], ends=(2,))
    assert one["drift"].tolist() == [0, -32768, 0, 0, 0]
    assert [flags & END for flags in one["flags"].tolist()] == [0, 0, END, 0, END]
    assert [flags & RAISING for flags in one["flags"].tolist()] == [RAISING] * 3 + [0] * 2


@pytest.mark.parametrize(
    "values", [{"gaps": []}, {"margins": [0.0]}, {"logprobs": [float("nan"), -1.0]}, {"gaps": [float("inf"), 1.0]}]
)
def test_values_that_are_not_one_number_per_token_compare_nothing(values: dict[str, list[float]]) -> None:
    sample = Sample(tokens=[7, 2], turns=[2], logprobs=[-1.0, -1.0])
    with pytest.raises(Incomparable):
        compare_group([sample], [score(2, **values)], [1.0], ends=(2,))
