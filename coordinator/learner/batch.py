"""Pack a batch of groups into padded micro-batches.

Rules
1. Only sampled tokens are targets: tokens of the prompt and of the environment carry no loss.
2. A rollout is never split. A micro-batch has at most `budget` padded tokens, unless a single rollout is longer.
3. Padding is on the right. Attention is causal, so no real position attends to it, and no mask is needed.
4. Groups without signal are left out, which saves their forward pass.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coordinator.learner import advantages
from coordinator.learner.batch_groups import BadBatch, Floats, Tokens, TrainBatch, TrainGroup, TrainSample


class TrainRow(NamedTuple):
    """One rollout. `tokens`: prompt and transcript. `targets`: positions that were sampled. `age`: learner/age.py."""

    tokens: Tokens
    targets: NDArray[np.int64]
    behaviour: Floats
    advantage: float
    age: int


class MicroBatch(NamedTuple):
    """Padded rollouts for one forward pass. `tokens`: int64 [rows, width]. All else has one entry per sampled token,
    [n]: `row` and `position` (of the state that predicts it) int64, `target` int64, `behaviour` and `advantage`
    float32, `age` int64."""

    tokens: Tensor
    row: Tensor
    position: Tensor
    target: Tensor
    behaviour: Tensor
    advantage: Tensor
    age: Tensor

    def to(self, device: torch.device) -> "MicroBatch":
        """Copy all tensors to `device`."""
        return MicroBatch(*(tensor.to(device) for tensor in self))


class Rows(NamedTuple):
    """The rollouts of a batch. `groups`: the rows of each group with signal. `zero_variance`: number of groups without
    signal."""

    groups: list[list[TrainRow]]
    zero_variance: int


def rows(batch: TrainBatch, kind: str) -> Rows:
    """Return the rollouts with their advantages, by group. `kind`: of the advantages. Raises BadBatch for an
    inconsistent sample."""
    scored = advantages.compute([[sample.reward for sample in group.samples] for group in batch.groups], kind)
    kept = [
        [_row(group, sample, value, batch.age(group)) for sample, value in zip(group.samples, values, strict=True)]
        for group, values in zip(batch.groups, scored.values, strict=True)
        if any(values)
    ]
    return Rows(kept, scored.zero_variance)


def _row(group: TrainGroup, sample: TrainSample, advantage: float, age: int) -> TrainRow:
    mask = np.repeat(np.arange(len(sample.turns)) % 2 == 0, sample.turns)
    start = len(group.prompt)
    targets = start + np.flatnonzero(mask)
    if len(mask) != len(sample.tokens):
        raise BadBatch(f"group {group.id.hex()}: turn lengths do not add up to the tokens")
    if len(targets) != len(sample.behaviour):
        raise BadBatch(f"group {group.id.hex()}: {len(sample.behaviour)} log-probabilities for {len(targets)} tokens")
    if not start:
        raise BadBatch(f"group {group.id.hex()}: the prompt is empty, so nothing predicts the first token")
    return TrainRow(np.concatenate([group.prompt, sample.tokens]), targets, sample.behaviour, advantage, age)


def split(groups: Sequence[list[TrainRow]], minibatches: int) -> list[list[TrainRow]]:
    """Split the groups into at most `minibatches` mini-batches of rows, none empty. Whole groups are assigned round
    robin, so that a batch sorted by age gives every mini-batch a similar mix of ages."""
    dealt = [list(groups[start::minibatches]) for start in range(minibatches)]
    return [[row for group in part for row in group] for part in dealt if part]


def pack(mini: Sequence[TrainRow], budget: int) -> Iterator[MicroBatch]:
    """Yield micro-batches of at most `budget` padded tokens. Rows are sorted by length to keep the padding small."""
    part: list[TrainRow] = []
    for row in sorted(mini, key=lambda row: len(row.tokens)):
        if part and len(row.tokens) * (len(part) + 1) > budget:
            yield _pad(part)
            part = []
        part.append(row)
    if part:
        yield _pad(part)


def _pad(part: Sequence[TrainRow]) -> MicroBatch:
    width = max(len(row.tokens) for row in part)
    counts = torch.tensor([len(row.targets) for row in part])
    targets = torch.from_numpy(np.concatenate([row.targets for row in part]))
    padded = np.zeros((len(part), width), np.int64)
    for place, row in enumerate(part):
        padded[place, : len(row.tokens)] = row.tokens
    tokens = torch.from_numpy(padded)
    index = torch.repeat_interleave(torch.arange(len(part)), counts)
    return MicroBatch(
        tokens=tokens,
        row=index,
        position=targets - 1,
        target=tokens[index, targets],
        behaviour=torch.from_numpy(np.concatenate([row.behaviour for row in part])),
        advantage=torch.tensor([row.advantage for row in part], dtype=torch.float32)[index],
        age=torch.tensor([row.age for row in part])[index],
    )
