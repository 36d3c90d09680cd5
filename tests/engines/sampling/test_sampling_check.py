"""The check of a program's choices, by what it tells of its tokens."""

import numpy as np
import pytest

from echo2.engines.engine import EngineError
from echo2.engines.sampling import sampling_reference
from echo2.engines.sampling.sampling_check import ToldToken, check, missed_nats

SEED = bytes(range(16))
ROWS = np.log(np.random.default_rng(1).dirichlet(np.ones(200), 24)).astype(np.float32)


def told(number: int, token: int, alternatives: int = 8, temperature: float = 1.0) -> ToldToken:
    logprobs = ROWS[number]
    best = np.argsort(-logprobs)[:alternatives].tolist()
    return ToldToken(token, float(logprobs[token]), {one: float(logprobs[one]) for one in best})


def seeded(number: int, first: int = 0, seed: bytes = SEED, temperature: float = 1.0) -> int:
    key = sampling_reference.key(seed, first + number)
    return sampling_reference.choose((ROWS[number] / temperature).tolist(), key)


def test_tokens_that_follow_the_rule_pass_from_any_number_on() -> None:
    for first in (0, 7):
        check([told(number, seeded(number, first)) for number in range(24)], SEED, first)


def test_rounding_of_the_log_probabilities_is_no_fault() -> None:
    for number in range(24):
        one = told(number, seeded(number))
        assert missed_nats(one._replace(logprob=one.logprob - 1e-3), SEED, number) <= 1e-3 + 1e-6


def test_greedy_tokens_pass_as_such_alone() -> None:
    greedy = [told(number, int(ROWS[number].argmax())) for number in range(24)]
    check(greedy, SEED, 0, greedy=True)
    with pytest.raises(EngineError, match=r"the choice of token \d+ does not follow the run's sampling rule"):
        check(greedy, SEED, 0)
    with pytest.raises(EngineError, match="does not follow"):
        check([told(number, seeded(number)) for number in range(24)], SEED, 0, greedy=True)


@pytest.mark.parametrize(
    ("seed", "first", "temperature"), [(bytes(16), 0, 1.0), (SEED, 1, 1.0), (SEED, 0, 2.0)],
    ids=["another seed", "numbers off by one", "another temperature"],
)  # fmt: skip
def test_another_rule_shows_within_a_few_tokens(seed: bytes, first: int, temperature: float) -> None:
    chosen = [told(number, seeded(number, first, seed, temperature)) for number in range(24)]
    with pytest.raises(EngineError, match="another token is ahead by"):
        check(chosen, SEED, 0)


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("hidden", ["alternatives", "own"])
def test_a_program_that_tells_nan_cannot_hide_another_rule(hidden: str, greedy: bool) -> None:
    chosen = told(0, (seeded(0) + 1) % 200)
    if hidden == "own":
        chosen = chosen._replace(logprob=float("nan"))
    else:
        chosen = chosen._replace(alternatives=dict.fromkeys(chosen.alternatives, float("nan")))
    with pytest.raises(EngineError, match="log-probabilities that are not finite"):
        check([chosen], SEED, 0, greedy)
