"""Fit what tokens cost to the times that groups of several shapes took. Pure.

Rules
1. Shapes are all pairs of `PROMPTS` and `COMPLETIONS`, made shorter where the model's context or the run's limit is.
2. The attention to one token and the factor of decoding are chosen from fixed grids, together: the pair for which time
   per cost differs least between the shapes, greatest by least. All of it is integers but the times.
3. One RE costs an eighth of a group of 8 samples with `REFERENCE`.
"""

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from echo2.protocol.group_weights import Costs, scaled_cost
from echo2.runtime.figures import figure

PROMPTS: Final = (16, 128, 1024)
COMPLETIONS: Final = (4, 32, 96)
SAMPLES: Final = 8
"""Samples of each group that is measured."""
GIVEN_TOKEN_COST: Final = 1 << 20
"""Cost of a given token beside attention: the unit in which attention is a whole number."""
DENOMINATOR: Final = 16
_ATTENTION: Final = tuple(round(GIVEN_TOKEN_COST / 2 ** (quarter / 4)) for quarter in range(16, 61))
"""Of one token: a token costs as much by itself as the attention to 16 to 32,768 tokens."""
_DECODE: Final = tuple(range(4, 1025))
"""A sampled token costs a quarter of a given one to 64 times as much."""


class GroupShape(NamedTuple):
    """Tokens of a prompt, and sampled ones of each sample."""

    prompt: int
    completion: int


REFERENCE: Final = GroupShape(32, 96)


class ShapeTime(NamedTuple):
    """Seconds that a group of `SAMPLES` samples took."""

    shape: GroupShape
    seconds: float


class Factors(NamedTuple):
    """The fitted part of Costs. `spread`: greatest time per cost by the least."""

    attention: int
    decode: int
    spread: float

    def sentence(self) -> str:
        dearer, attended = figure(self.decode / DENOMINATOR), round(GIVEN_TOKEN_COST / self.attention)
        return (
            f"a sampled token costs {dearer} given ones, a given one as much as the attention to {attended} tokens; "
            f"time per point differs by a factor of {figure(self.spread)}"
        )


def shapes(context: int | None, limit: int) -> list[GroupShape]:
    """Return the shapes to measure, without repetition (rule 1). `context`: context of the model; None: not known."""
    room = PROMPTS[-1] + COMPLETIONS[-1] if context is None else max(2, context)
    most = max(1, min(COMPLETIONS[-1], limit, room // 2))
    longest = max(1, min(PROMPTS[-1], room - most))
    prompts = dict.fromkeys(max(1, prompt * longest // PROMPTS[-1]) for prompt in PROMPTS)
    completions = dict.fromkeys(max(1, one * most // COMPLETIONS[-1]) for one in COMPLETIONS)
    return [GroupShape(*pair) for pair in itertools.product(prompts, completions)]


def fit(times: Sequence[ShapeTime]) -> Factors:
    """Return the factors that fit best (rule 2)."""
    parts = [(*_parts(one.shape), one.seconds) for one in times]
    best = Factors(_ATTENTION[0], DENOMINATOR, float("inf"))
    for attention in _ATTENTION:
        sums = [
            (DENOMINATOR * (GIVEN_TOKEN_COST * n + attention * seen), GIVEN_TOKEN_COST * m + attention * later, time)
            for n, seen, m, later, time in parts
        ]
        for decode in _DECODE:
            rates = [time / (given + decode * sampled) for given, sampled, time in sums]
            spread = max(rates) / min(rates)
            if spread < best.spread:
                best = Factors(attention, decode, spread)
    return best


def _parts(shape: GroupShape) -> tuple[int, int, int, int]:
    """Return the given tokens of a group and the tokens that they attend to, and the same of its sampled ones."""
    prompt, completion = shape
    seen, later = prompt * (prompt + 1) // 2, completion * prompt + completion * (completion + 1) // 2
    return prompt, seen, SAMPLES * completion, SAMPLES * later


def costs_of(factors: Factors, run: bytes, builds: list[str], at: int) -> Costs:
    """Return the Costs of a run (rule 3). `at`: ms."""
    costs = Costs(
        run=run, given=GIVEN_TOKEN_COST, attention=factors.attention, decode=factors.decode, denominator=DENOMINATOR,
        unit=1, builds=builds, at=at,
    )  # fmt: skip
    group = scaled_cost(costs, REFERENCE.prompt, [[REFERENCE.completion]] * SAMPLES)
    return msgspec.structs.replace(costs, unit=group // (DENOMINATOR * SAMPLES))
