"""Choose the prompt of a position by how much its last groups' rewards varied. Pure.

A group whose rewards are all equal teaches nothing. With rewards 0 and 1 the expected signal of a prompt that a policy
solves with probability p is p (1 - p), the variance of its rewards; DoPR (arXiv 2602.00815) spends rollouts there.

Rules
1. The candidates of position k are the prompts at positions k n .. k n + n - 1 of the task's own order (prompts.py),
   n = `CANDIDATES`. So each prompt is a candidate once per pass, is chosen at most n times as often as in order, and
   twice within size / n positions only where one pass ends and the next one begins.
2. A candidate's weight is the mean over `PLACES` places: the variance of its last groups' rewards for each group that
   it has, and the *neutral* weight for each place without one. So a prompt that was never tried is neutral.
3. Neutral is the mean variance of the prompts that were tried, and at least `LEAST_NEUTRAL_WEIGHT`.
4. No weight is below the neutral one over `WEIGHT_FLOOR_DIVISOR`: every candidate is tried again at times.
5. The choice follows from seed, position and `ChoiceSummary` alone, in integers. The summary is stored with the
   position, so the choice can be made again (coordinator/prompts/prompt_window.py).
6. A party or key has at most one of a prompt's places (coordinator/prompts/prompt_records.py). So it moves p by at
   most one of `PLACES` parts, and the weight of a prompt that it alone has tried likewise.
"""

import hashlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec

from echo2.coordinator.prompts.prompts import PromptOrder

CANDIDATES: Final = 16
PLACES: Final = 3
"""Last groups of a prompt that count, each of another party and key."""
WEIGHT_FLOOR_DIVISOR: Final = 8
LEAST_NEUTRAL_WEIGHT: Final = 8
"""Least neutral weight, in the unit of `PromptFigures.variance`."""


class PromptFigures(msgspec.Struct, frozen=True, array_like=True):
    """The last groups of a prompt. `groups`: how many. `variance`: variance of the rewards of all their rollouts,
    millionths of the reward's unit squared. Both 0: it was never tried."""

    groups: int = 0
    variance: int = 0


class ChoiceSummary(msgspec.Struct, frozen=True, array_like=True):
    """The verdicts from which a prompt is chosen. `neutral`: mean variance of the task's prompts that were tried.
    `candidates`: candidates in the order of rule 1; with one or none the prompt is the one that the order has at this
    position."""

    neutral: int
    candidates: list[PromptFigures]


def candidates(order: PromptOrder, position: int) -> list[int]:
    """Return the indices of a position's candidates (rule 1)."""
    return [order.index(position * CANDIDATES + number) for number in range(CANDIDATES)]


def weights(summary: ChoiceSummary) -> list[int]:
    """Return the candidates' weights (rules 2 to 4), in `PLACES` times the unit of `PromptFigures.variance`."""
    neutral = max(LEAST_NEUTRAL_WEIGHT, summary.neutral)
    least = max(1, PLACES * neutral // WEIGHT_FLOOR_DIVISOR)
    return [max(least, one.groups * one.variance + (PLACES - one.groups) * neutral) for one in summary.candidates]


def choose_prompt(order: PromptOrder, position: int, summary: ChoiceSummary) -> int:
    """Return the index of a position's prompt in the task's train split (rule 5). `position`: position in the task's
    own order."""
    if not summary.candidates:
        return order.index(position)
    number = _draw_part(weights(summary), b"%d/%d" % (order.seed, position))
    return order.index(position * len(summary.candidates) + number)


def _draw_part(parts: Sequence[int], key: bytes) -> int:
    """Return a number of `parts`, by chance as its weight: 16 bytes of a hash, so no sum of weights shows a bias."""
    point = int.from_bytes(hashlib.blake2b(key, digest_size=16, person=b"prompt-choice").digest()) % sum(parts)
    return next(number for number, end in enumerate(accumulate(parts)) if point < end)
