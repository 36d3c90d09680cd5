"""Rates of solved answers with their intervals, over groups of answers to the same prompts. Pure.

Rules
1. pass@k is the chance that at least one of k answers to a prompt solves it: 1 - C(n - c, k) / C(n, k) for c solved
   of n answers, without bias, and its mean over the prompts (Chen et al. 2021, arXiv 2107.03374, equation 1).
2. Answers to one prompt are not independent of each other. The standard error of pass@1 is therefore that of the mean
   over prompts (clusters; Miller 2024, arXiv 2411.00640, section 2.2).
3. The interval is Wilson's with as many trials as an independent sample with that error would have (Franco et al. 2019,
   Journal of Survey Statistics and Methodology 7(3)): it stays within 0 and 1. There are at least as many trials as
   prompts and at most as many as answers; where all prompts agree, as many as prompts.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

Z: Final = 1.959963984540054
"""Of a two-sided interval of 95 %."""


class PromptAnswers(NamedTuple):
    """The answers to one prompt. `solved`: those of `answers` that solve it."""

    answers: int
    solved: int


class PassRate(NamedTuple):
    """pass@1 and its interval of 95 %; pass@k by k."""

    pass_1: float
    low: float
    high: float
    pass_k: dict[int, float]


def pass_at(k: int, answers: int, solved: int) -> float:
    """Return pass@k of one prompt (rule 1). `k`: 1 to `answers`."""
    if not 1 <= k <= answers:
        raise ValueError(f"pass@{k} cannot be told from {answers} answers")
    return 1.0 - math.comb(answers - solved, k) / math.comb(answers, k)


def pass_rate(prompts: Sequence[PromptAnswers]) -> PassRate:
    """Return the rates over prompts, of which there is at least one, each with an answer. k: the powers of two up to
    the smallest number of answers."""
    shares = [one.solved / one.answers for one in prompts]
    mean, answers = sum(shares) / len(shares), sum(one.answers for one in prompts)
    low, high = wilson(mean, _trials(shares, mean, answers))
    fewest, pass_k, k = min(one.answers for one in prompts), dict[int, float](), 2
    while k <= fewest:
        pass_k[k] = sum(pass_at(k, *one) for one in prompts) / len(prompts)
        k *= 2
    return PassRate(mean, low, high, pass_k)


def wilson(share: float, trials: float) -> tuple[float, float]:
    """Return Wilson's interval of 95 % of a share in so many trials."""
    square = Z * Z / trials
    middle = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def _trials(shares: Sequence[float], mean: float, answers: int) -> float:
    """Return the number of independent trials with the error of these shares (rules 2 and 3)."""
    number = len(shares)
    variance = sum((share - mean) ** 2 for share in shares) / (number * (number - 1)) if number > 1 else 0.0
    if not variance:
        return float(number)
    return min(float(answers), max(float(number), mean * (1 - mean) / variance))
