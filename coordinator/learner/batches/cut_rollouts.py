"""Decide how rollouts that the token limit cut are learned from. Pure.

kept        as any other: a wrong answer for want of tokens has the reward that the task gave it
masked      without loss, as the reward of an unfinished answer says nothing of what it would have become; it stays in
            the mean and deviation of its group. DAPO's overlong filtering (arXiv 2503.14476), 3.4
penalised   by a reward that falls by 1 over the last fifth of the limit, for all rollouts that long, cut or not: a
            sudden penalty at the limit alone would be noise. DAPO's soft overlong punishment, eq. 13
"""

from typing import Final, NamedTuple

from echo2.coordinator.learner.batches.batch_groups import TrainSample, is_cut
from echo2.tasks.turn_ends import Ends

CUT_KINDS: Final = ("kept", "masked", "penalised")
PENALTY_MARGIN_SHARE: Final = 0.2
"""Share of the limit over which the penalty grows: DAPO's 4,096 of 20,480 tokens."""


class CutRule(NamedTuple):
    """The rule for rollouts that the limit cut. `kind`: kind of CUT_KINDS. `limit`: most sampled tokens per rollout,
    needed to penalise. `ends`: tokens that end a turn, needed to mask."""

    kind: str = "kept"
    limit: int = 0
    ends: Ends = ()

    def reward(self, sample: TrainSample) -> float:
        """Return the reward from which the advantage is computed."""
        if self.kind != "penalised":
            return sample.reward
        return sample.reward - overlong(len(sample.behaviour), self.limit)

    def masks(self, sample: TrainSample) -> bool:
        """Tell whether a rollout has no loss."""
        return self.kind == "masked" and is_cut(sample, self.ends)


KEEP_RULE: Final = CutRule()


def overlong(length: int, limit: int) -> float:
    """Return the penalty for `length` sampled tokens, in reward: 0 up to 4/5 of `limit`, 1 at `limit`."""
    margin = PENALTY_MARGIN_SHARE * limit
    return min(1.0, max(0.0, (length - (limit - margin)) / margin))
