"""Define how the losses of a mini-batch's tokens become one number: one function each. Each is a sum over tokens, so
that the parts of a mini-batch may be computed one after the other and added."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Size(NamedTuple):
    """The size of a mini-batch, by which its loss is divided. `tokens`: sampled ones. `limit`: most sampled tokens per
    rollout. `learner.denominator` says which rollouts count:

    signal   those of groups with signal, less those masked. A batch then moves the policy as far whether few or many
             of its groups teach something, as if the others had been refilled (DAPO's dynamic sampling without its
             cost), and the learning rate keeps its meaning as the policy learns.
    all      every drawn rollout: the mean over the batch as drawn. The gradient shrinks with the share of groups that
             teach something; AdamW's step shrinks less, as it divides by the gradient's own size.
    """

    tokens: float
    rollouts: float
    limit: int


AggregateOf = Callable[[Tensor, Tensor, Size], Tensor]
"""(losses, float32 [n]; sampled tokens of each token's rollout, float32 [n]; size of the mini-batch) -> their part."""


def tokens(losses: Tensor, lengths: Tensor, size: Size) -> Tensor:
    """Return sum / tokens: all tokens weigh the same, long rollouts more than short ones.

    DAPO (arXiv 2503.14476), eq. 8.
    """
    return losses.sum() / size.tokens


def sequences(losses: Tensor, lengths: Tensor, size: Size) -> Tensor:
    """Return the mean over rollouts of the mean over their tokens: all rollouts weigh the same, and the tokens of a
    long one less. GRPO as first published (DeepSeekMath, arXiv 2402.03300), eq. 3."""
    return (losses / lengths).sum() / size.rollouts


def constant(losses: Tensor, lengths: Tensor, size: Size) -> Tensor:
    """Return sum / (rollouts x limit): the mean over rollouts of their sum, in units of the constant limit, so that
    neither a rollout's length nor its mini-batch's changes the weight of a token. With the advantage `mean` this is
    Dr. GRPO in full (arXiv 2503.20783), 3.2."""
    return losses.sum() / (size.rollouts * size.limit)


AGGREGATES: dict[str, AggregateOf] = {"tokens": tokens, "sequences": sequences, "constant": constant}
