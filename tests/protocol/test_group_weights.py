"""The weight of a group by its lengths: exact, rounded once, the prompt once, decode dearer than prefill."""

import json
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.group_weights import (
    Costs,
    GroupLengths,
    Turns,
    group_weight,
    scaled_cost,
    whole_weight,
)
from tests.support.costs import COSTS, sealed_costs

lengths = st.integers(0, 300)
turns_of_group = st.lists(st.lists(lengths, max_size=4), max_size=4)


def token_by_token(costs: Costs, prompt: int, turns: Turns) -> Fraction:
    """Return the cost of a group, added up by its tokens."""
    total = Fraction(sum(costs.given + costs.attention * (before + 1) for before in range(prompt)))
    for sample in turns:
        before = prompt
        for number, tokens in enumerate(sample):
            for _ in range(tokens):
                one = Fraction(costs.given + costs.attention * (before + 1))
                total += one if number % 2 else one * costs.decode / costs.denominator
                before += 1
    return total


@given(prompt=lengths, turns=turns_of_group, decode_by=st.integers(1, 99), denominator=st.integers(1, 99))
@pytest.mark.slow
def test_a_group_costs_what_its_tokens_cost_one_by_one(
    prompt: int, turns: list[list[int]], decode_by: int, denominator: int
) -> None:
    costs = msgspec.structs.replace(COSTS, decode=decode_by, denominator=denominator)
    exact = token_by_token(costs, prompt, turns)
    assert Fraction(scaled_cost(costs, prompt, turns), denominator) == exact
    weight = whole_weight(costs, prompt, turns)
    assert Fraction(-1, 2) < weight - 1000 * exact / costs.unit <= Fraction(1, 2), "rounded once, halves up"


@given(prompt=lengths, turns=turns_of_group)
def test_the_prompt_is_counted_once_for_all_samples(prompt: int, turns: list[list[int]]) -> None:
    alone = scaled_cost(COSTS, prompt, [])
    assert scaled_cost(COSTS, prompt, turns) - alone == sum(
        scaled_cost(COSTS, prompt, [sample]) - alone for sample in turns
    )


def test_a_sample_whose_episode_was_not_opened_weighs_nothing() -> None:
    for costs in (None, COSTS):
        both, one = GroupLengths(5, [[3], [0]]), GroupLengths(5, [[3]])
        assert group_weight(costs, both) == group_weight(costs, one)
        assert group_weight(costs, GroupLengths(5, [[0], [0]])) == 0


def test_tokens_of_the_environment_cost_as_the_prompt_does() -> None:
    flat = msgspec.structs.replace(COSTS, attention=0)
    assert scaled_cost(flat, 5, [[0, 9]]) == scaled_cost(flat, 14, [])


def test_without_costs_each_rollout_is_rounded_by_itself_with_its_prompt() -> None:
    assert whole_weight(None, 5, [[6], [2, 1]]) == whole_weight(None, 11, [()]) + whole_weight(None, 8, [()])


@pytest.mark.parametrize("field", ["given", "decode", "denominator", "unit"])
def test_costs_of_nothing_are_refused(field: str) -> None:
    with pytest.raises(Malformed):
        decode(encode(msgspec.structs.replace(COSTS, **{field: 0})), Costs)


def test_the_golden_vectors(repository: Path) -> None:
    vector = json.loads((repository / "tests/vectors/costs.json").read_text())
    assert vector["sealed"] == sealed_costs().hex()
    assert decode(bytes.fromhex(vector["payload"]), Costs) == COSTS
    assert encode(COSTS).hex() == vector["payload"]
    for group in vector["groups"]:
        weighed = GroupLengths(group["prompt"], group["turns"])
        assert group_weight(COSTS, weighed) == group["weight"], group
        assert group_weight(None, weighed) == group["without_costs"], group
