"""Prompts of different difficulty in simulated time: which groups teach something, under the product's own rules.

`run.prompts` and `run.draw` are the product's own functions (prompt_choice.py, prompt_records.py, advantages.py). The
policy is a model, and these are its assumptions:

1. A rollout of prompt i earns 1 with probability p_i, else 0, whichever node generates it. The logit of p_i is the sum
   of the prompt's ease, which is drawn once, and of what was learned. A share `DEAD` of the prompts never succeeds.
2. A group that is learned from moves its own prompt's logit by `OWN` times its signal, and each prompt's by `SHARED`
   times its signal over the number of prompts. In a table of policies a step with normalised advantages moves the logit
   by the deviation of the rewards, half the signal, so a group with equal rewards moves nothing.
3. A step moves the policy when it begins. Rewards are drawn when a lease is given, by the policy of that moment, which
   is up to S + 1 steps newer than the lease's.
4. Age does no harm, steps have no noise, and nothing is forgotten.

So figures tell how many leases and rollouts go to groups that teach something, as prompts become solved. They do not
tell how good a policy becomes: `benchmarks.selection` asks a real one. That a group
without signal is no part of the learner's pass is counted, and makes its steps no shorter.
"""

import math
import random
from collections.abc import Iterable
from functools import cache
from typing import Final, NamedTuple

from echo2.coordinator.learner.objective.advantages import compute, has_no_signal, signal_of
from echo2.coordinator.prompts.prompt_choice import ChoiceSummary, PromptFigures, candidates, choose_prompt
from echo2.coordinator.prompts.prompt_records import GroupFigures, figures_of, sum_groups, with_group
from echo2.coordinator.prompts.prompts import PromptOrder

DEAD: Final = 0.2
EASE: Final = -0.5
"""Mean logit of the others at the start."""
SPREAD: Final = 2.5
"""Standard deviation of it."""
OWN: Final = 0.3
SHARED: Final = 0.3
KIND: Final = "group"
"""Advantages: divided by the deviation, as is the default of `learner.advantage`."""


class PromptTerms(NamedTuple):
    """A task and the rules of selection. `number`: of training prompts. `group_size`: rollouts per group.
    `by_variance`: as `run.prompts` "variance"."""

    number: int
    group_size: int = 8
    by_variance: bool = False


class LeasedPrompt(NamedTuple):
    """The prompt of a lease, and its group's rewards, equal for all leases of a set. `length`: of its answers, relative
    to the mean. `number`: of the prompt. `successes`: rollouts that earn 1."""

    length: float = 1.0
    number: int = 0
    successes: int = 0


class SelectionFigures(NamedTuple):
    """Of a run. `signal`: share of the groups learned from whose rewards differ. `passed`: rollouts through the
    learner's pass, of those of the groups learned from. `strength`: their mean absolute advantage. `solved`: mean p at
    the end, in this model."""

    signal: float = 0.0
    passed: float = 0.0
    strength: float = 0.0
    solved: float = 0.0


class SimulatedPrompts:
    """The training prompts of a run. `useful`: groups learned from whose rewards differ."""

    def __init__(self, terms: PromptTerms, seed: int) -> None:
        self._terms, self._random = terms, random.Random(f"prompts {seed}")
        self._order = PromptOrder(terms.number, seed)
        self._logits = [
            -math.inf if self._random.random() < DEAD else self._random.gauss(EASE, SPREAD) for _ in range(terms.number)
        ]
        self._learned = 0.0
        self._groups: dict[int, list[GroupFigures]] = {}
        self._variances = 0
        """Sum over the prompts that were tried, as `prompt_means` keeps it."""
        self._drawn = self.useful = self._passed = 0
        self._strength = 0.0

    def prompt_at(self, position: int) -> int:
        """Return the prompt of a position, chosen now."""
        if not self._terms.by_variance:
            return self._order.index(position)
        tried = [self._figures(index) for index in candidates(self._order, position)]
        neutral = self._variances // max(1, len(self._groups))
        return choose_prompt(self._order, position, ChoiceSummary(neutral, tried))

    def successes(self, index: int) -> int:
        """Draw how many rollouts of a prompt's group earn 1 (assumptions 1 and 3)."""
        chance = self._chance(index)
        return sum(self._random.random() < chance for _ in range(self._terms.group_size))

    def came(self, node: bytes, one: LeasedPrompt) -> None:
        """Note an accepted group. `node`: a party of its own."""
        before = self._figures(one.number)
        figures = figures_of(node.hex(), node, self._rewards(one))
        self._groups[one.number] = with_group(self._groups.get(one.number, []), figures)
        self._variances += self._figures(one.number).variance - before.variance

    def signal(self, one: LeasedPrompt) -> float:
        """Return the signal of a group, by which `run.draw` "signal" orders."""
        return signal_of(self._rewards(one))

    def learn(self, groups: Iterable[LeasedPrompt]) -> None:
        """Make a step of the learner (assumption 2)."""
        for one in groups:
            moved, (passed, strength) = self.signal(one), _passed(self._rewards(one))
            self._drawn, self.useful = self._drawn + 1, self.useful + (moved > 0)
            self._passed, self._strength = self._passed + passed, self._strength + strength
            self._logits[one.number] += OWN * moved
            self._learned += SHARED * moved / self._terms.number

    def figures(self) -> SelectionFigures:
        """Return the figures up to now; zeros before the first step."""
        if not self._drawn:
            return SelectionFigures()
        return SelectionFigures(
            self.useful / self._drawn,
            self._passed / (self._drawn * self._terms.group_size),
            self._strength / max(1, self._passed),
            sum(self._chance(index) for index in range(self._terms.number)) / self._terms.number,
        )

    def _figures(self, index: int) -> PromptFigures:
        return sum_groups(self._groups.get(index, []))

    def _chance(self, index: int) -> float:
        return 1 / (1 + math.exp(-min(max(self._logits[index] + self._learned, -700.0), 700.0)))

    def _rewards(self, one: LeasedPrompt) -> tuple[float, ...]:
        return (1.0,) * one.successes + (0.0,) * (self._terms.group_size - one.successes)


@cache
def _passed(rewards: tuple[float, ...]) -> tuple[int, float]:
    """Return how many rollouts of a group go through the learner's pass (batch.py, rule 4), and the sum of their
    absolute advantages."""
    if has_no_signal(rewards):
        return 0, 0.0
    (values,) = compute([rewards], KIND).values
    return len(values), sum(map(abs, values))
