"""Divide a batch of groups into micro-batches.

Rules
1. Only sampled tokens are targets: tokens of the prompt and of the environment carry no loss.
2. A rollout is never split. A micro-batch has at most `budget` tokens, unless a single rollout is longer.
3. The rollouts of a group stay together with one copy of their prompt, unless the group is longer than `budget`.
4. Groups without signal are left out, which saves their forward pass, unless the KL term is to cover them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from echo2.coordinator.learner.batches.batch_groups import BadBatch, Floats, Tokens, TrainBatch, TrainGroup, TrainSample
from echo2.coordinator.learner.batches.cut_rollouts import KEEP_RULE, CutRule
from echo2.coordinator.learner.objective import advantages


class TrainRow(NamedTuple):
    """One rollout. `tokens`: prompt and transcript. `targets`: positions that were sampled. `age`: learner/age.py.
    `prompt`: the number of first tokens that the rollouts of its group share. `group`: number of its group. `expected`:
    of its group, see `expected_log`."""

    tokens: Tokens
    targets: NDArray[np.int64]
    behaviour: Floats
    advantage: float
    age: int
    prompt: int
    group: int
    expected: float = 0.0


class MicroBatch(NamedTuple):
    """Rollouts for one forward pass, by group. All else has one entry per sampled token, [n]: `row` (number of its
    rollout), `group` (number of its group in the batch), `position` (in its prompt and transcript, of the state that
    predicts it), `target` and `age` int64, `behaviour`, `advantage` and `expected` (see `expected_log`) float32."""

    groups: list[list[TrainRow]]
    row: Tensor
    group: Tensor
    position: Tensor
    target: Tensor
    behaviour: Tensor
    advantage: Tensor
    age: Tensor
    expected: Tensor

    def to(self, device: torch.device) -> "MicroBatch":
        """Copy all tensors to `device`."""
        return MicroBatch(self.groups, *(tensor.to(device) for tensor in self[1:]))

    @property
    def rows(self) -> list[TrainRow]:
        """The rollouts, in the order of their numbers."""
        return [row for group in self.groups for row in group]


class Rows(NamedTuple):
    """The rollouts of a batch. `groups`: the rows of each group with signal. `flat`: those of each group without, if
    they were asked for. `zero_variance`: number of groups without signal. `masked`: (age, sampled tokens) of each
    rollout of a group with signal that has no row because the limit cut it. `tokens`, `rollouts`: tokens and rollouts
    of the whole batch."""

    groups: list[list[TrainRow]]
    flat: list[list[TrainRow]]
    zero_variance: int
    masked: list[tuple[int, int]]
    tokens: int
    rollouts: int


def rows(batch: TrainBatch, kind: str, cut: CutRule = KEEP_RULE, *, flat: bool = False) -> Rows:
    """Return the rollouts with their advantages, by group. `kind`: kind of the advantages. `cut`: rule for rollouts
    that the limit cut. `flat`: also the groups without signal. Raises BadBatch for an inconsistent sample."""
    scored = advantages.compute([[cut.reward(sample) for sample in group.samples] for group in batch.groups], kind)
    samples = [sample for group in batch.groups for sample in group.samples]
    result = Rows([], [], scored.zero_variance, [], sum(len(one.behaviour) for one in samples), len(samples))
    for number, (group, values) in enumerate(zip(batch.groups, scored.values, strict=True)):
        signal = any(values)
        if not signal and not flat:
            continue
        part, expected = [], expected_log([sample.behaviour for sample in group.samples])
        for sample, value in zip(group.samples, values, strict=True):
            if not cut.masks(sample):
                part.append(_row(group, sample, value, batch.age(group), number)._replace(expected=expected))
            elif signal:
                result.masked.append((batch.age(group), len(sample.behaviour)))
        if part:
            (result.groups if signal else result.flat).append(part)
    return result


def expected_log(behaviours: Sequence[Floats]) -> float:
    """Return log E[q] = log(sum q^2 / sum q) over the rollouts of a group, q = exp(mean behaviour log-probability of a
    rollout's tokens): the probability that its version expected of what it sampled. GEPO (arXiv 2508.17850), eq. 5."""
    means = np.array([one.mean(dtype=np.float64) for one in behaviours if len(one)])
    with np.errstate(invalid="ignore"):  # what is no number gives none, and its update is skipped
        return float(np.logaddexp.reduce(2 * means) - np.logaddexp.reduce(means)) if len(means) else 0.0


def _row(group: TrainGroup, sample: TrainSample, advantage: float, age: int, number: int) -> TrainRow:
    mask = np.repeat(np.arange(len(sample.turns)) % 2 == 0, sample.turns)
    start = len(group.prompt)
    targets = start + np.flatnonzero(mask)
    if len(mask) != len(sample.tokens):
        raise BadBatch(f"group {group.id.hex()}: turn lengths do not add up to the tokens")
    if len(targets) != len(sample.behaviour):
        raise BadBatch(f"group {group.id.hex()}: {len(sample.behaviour)} log-probabilities for {len(targets)} tokens")
    if not start:
        raise BadBatch(f"group {group.id.hex()}: the prompt is empty, so nothing predicts the first token")
    return TrainRow(
        np.concatenate([group.prompt, sample.tokens]), targets, sample.behaviour, advantage, age, start, number
    )


Groups = Sequence[Sequence[TrainRow]]
Cost = Callable[[Groups], int]
"""The tokens that a forward pass computes for these groups."""


def shared(groups: Groups) -> int:
    """Count tokens, the prompt of a group once."""
    return sum(group[0].prompt + sum(len(row.tokens) - row.prompt for row in group) for group in groups if group)


def count_padded_tokens(groups: Groups) -> int:
    """Count tokens, each rollout with its prompt and filled up to the longest."""
    lengths = [len(row.tokens) for group in groups for row in group]
    return len(lengths) * max(lengths, default=0)


def split(groups: Sequence[list[TrainRow]], minibatches: int) -> list[list[list[TrainRow]]]:
    """Split the groups into at most `minibatches` mini-batches of groups, none empty. They are assigned round robin, so
    that a batch sorted by age gives every mini-batch a similar mix of ages."""
    return [part for start in range(minibatches) if (part := list(groups[start::minibatches]))]


def pack(mini: Groups, budget: int, cost: Cost = shared) -> Iterator[MicroBatch]:
    """Yield micro-batches of at most `budget` tokens (rules 2 and 3). Groups, and the rollouts of each, are sorted by
    length, to keep filling small where there is any."""
    part: list[list[TrainRow]] = []
    for group in _parts(mini, budget, cost):
        if part and cost([*part, group]) > budget:
            yield _micro_batch(part)
            part = []
        part.append(group)
    if part:
        yield _micro_batch(part)


def _parts(mini: Groups, budget: int, cost: Cost) -> Iterator[list[TrainRow]]:
    """Yield the groups, those that exceed `budget` in parts."""
    ordered = [sorted(group, key=lambda row: len(row.tokens)) for group in mini if group]
    for group in sorted(ordered, key=lambda group: len(group[-1].tokens)):
        part: list[TrainRow] = []
        for row in group:
            if part and cost([[*part, row]]) > budget:
                yield part
                part = []
            part.append(row)
        yield part


def empty_micro_batch() -> MicroBatch:
    """Return a micro-batch without a sampled token: its loss is 0, and so are its gradients."""
    none = np.zeros(0, np.int64)
    return _micro_batch([[TrainRow(np.zeros(2, np.int32), none, np.zeros(0, np.float32), 0.0, 0, 1, 0)]])


def _micro_batch(groups: list[list[TrainRow]]) -> MicroBatch:
    part = [row for group in groups for row in group]
    counts = torch.tensor([len(row.targets) for row in part])
    index = torch.repeat_interleave(torch.arange(len(part)), counts)
    return MicroBatch(
        groups=groups,
        row=index,
        group=torch.tensor([row.group for row in part])[index],
        position=torch.from_numpy(np.concatenate([row.targets for row in part])) - 1,
        target=torch.from_numpy(np.concatenate([row.tokens[row.targets] for row in part])).long(),
        behaviour=torch.from_numpy(np.concatenate([row.behaviour for row in part])),
        advantage=torch.tensor([row.advantage for row in part], dtype=torch.float32)[index],
        age=torch.tensor([row.age for row in part])[index],
        expected=torch.tensor([row.expected for row in part], dtype=torch.float32)[index],
    )
