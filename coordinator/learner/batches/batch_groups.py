"""Read the groups of a batch from run.sqlite, in the learner's process. The main process sends only lease ids.

Rules
1. The main process alone decides which groups are drawn: this module never queries the buffer for candidates.
2. Reading is one short transaction on a read-only connection, closed before any computation: it blocks no writer, and
   delays a WAL checkpoint at most while it reads.
3. The main process has committed a group before it sends its id. A named group without all of its data raises
   `MissingTokens`.
4. Token ids and log-probabilities are arrays. Python lists exist for one group at a time, while its submission is
   decoded.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.age import age
from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease, Submission
from echo2.tasks.task import Score
from echo2.tasks.turn_ends import Ends, is_end

Tokens = NDArray[np.int32]
Floats = NDArray[np.float32]

_GROUP = (
    "SELECT l.document, s.payload, coalesce(s.scores, e.scores), b.behaviour FROM buffer b"
    " JOIN leases l ON l.id = b.lease LEFT JOIN episode_scores e ON e.lease = b.lease"
    " JOIN submissions s ON s.lease = b.lease WHERE b.lease = ?"
)


class BadBatch(ValueError):
    """A batch that is inconsistent in itself or with the learner's state; nothing has changed."""


class MissingTokens(BadBatch):
    """A group of the batch has no tokens in run.sqlite; other batches are not affected."""


class TrainSample(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of an accepted group. `tokens`: int32. `turns`: their lengths, sampled ones first, in alternation.
    `behaviour`: float32, the scorer's log-probability of each sampled token."""

    tokens: Tokens
    turns: list[int]
    behaviour: Floats
    reward: float
    success: bool = False


class TrainGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one prompt, all under one version. `id`: id of its lease."""

    id: bytes
    version: int
    prompt: Tokens
    samples: list[TrainSample]


class TrainBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of one step, oldest first. `step`: the number that the step will have."""

    step: int
    groups: list[TrainGroup]

    def age(self, group: TrainGroup) -> int:
        """Return a group's age at this step; 0: on policy."""
        return age(self.step - 1, group.version)


def read(database: Path, leases: Sequence[bytes]) -> list[TrainGroup]:
    """Return the groups of these leases, in their order. Raises `MissingTokens`, and `DatabaseFault` if run.sqlite
    cannot be read."""
    with Database.read(database) as opened, opened.reading():
        return [_group(lease, opened.one(_GROUP, (lease,))) for lease in leases]


def _group(lease_id: bytes, row: tuple[bytes, bytes | None, bytes, bytes | None] | None) -> TrainGroup:
    if row is None:
        raise MissingTokens(f"group {lease_id.hex()} is not in the buffer")
    document, payload, scored, behaviour = row
    if payload is None or behaviour is None:
        raise MissingTokens(f"the tokens of group {lease_id.hex()} were dropped although it was drawn just now")
    try:
        lease = decode(document, Lease)
        samples = list(_samples(decode(payload, Submission), scored, behaviour))
    except (Malformed, msgspec.MsgspecError, ValueError) as error:
        raise MissingTokens(f"the tokens of group {lease_id.hex()} cannot be read: {error}") from error
    prompt = np.array(lease.prompt, np.int32)
    return TrainGroup(id=lease.id, version=lease.version, prompt=prompt, samples=samples)


def _samples(submission: Submission, scored: bytes, behaviour: bytes) -> Iterator[TrainSample]:
    scores = msgspec.msgpack.decode(scored, type=list[Score | None])
    values = msgspec.msgpack.decode(behaviour, type=list[bytes])
    for rollout, value, score in zip(submission.rollouts, values, scores, strict=True):
        if score is None:
            continue  # without a finite reward: the group is the others
        yield TrainSample(
            tokens=np.array(rollout.tokens, np.int32),
            turns=rollout.turns,
            behaviour=np.frombuffer(value, "<f4").astype(np.float32),
            reward=score.reward,
            success=score.success,
        )


def batch_metrics(batch: TrainBatch) -> dict[str, float]:
    """Return the batch's own metrics: means of reward and success over its rollouts, lengths, ages, and the share of
    the most frequent answer; reward and length also by age, as `reward_age_<n>` and `length_age_<n>`."""
    samples = [sample for group in batch.groups for sample in group.samples]
    ages = [batch.age(group) for group in batch.groups]
    tokens = sum(len(sample.behaviour) for sample in samples)
    answers = Counter(hash(sample.tokens.tobytes()) for sample in samples)
    return {
        "reward": sum(sample.reward for sample in samples) / max(1, len(samples)),
        "success": sum(sample.success for sample in samples) / max(1, len(samples)),
        "tokens": float(tokens),
        "length": tokens / max(1, len(samples)),
        "groups": float(len(batch.groups)),
        "same_answers": max(answers.values(), default=0) / max(1, len(samples)),
        "staleness_mean": sum(ages) / max(1, len(ages)),
        "staleness_max": float(max(ages, default=0)),
        **_by_age(batch, ages),
    }


def _by_age(batch: TrainBatch, ages: Sequence[int]) -> dict[str, float]:
    metrics = {}
    for value in sorted(set(ages)):
        part = [one for group, age in zip(batch.groups, ages, strict=True) if age == value for one in group.samples]
        metrics[f"reward_age_{value}"] = sum(one.reward for one in part) / max(1, len(part))
        metrics[f"length_age_{value}"] = sum(len(one.behaviour) for one in part) / max(1, len(part))
    return metrics


def cut_answers(batch: TrainBatch, ends: Ends) -> float:
    """Return the share of the batch's rollouts that the limit cut: their last token ends no turn."""
    samples = [sample for group in batch.groups for sample in group.samples]
    return sum(is_cut(sample, ends) for sample in samples) / max(1, len(samples))


def is_cut(sample: TrainSample, ends: Ends) -> bool:
    """Tell whether the limit cut a rollout: its last token ends no turn."""
    return not is_end(int(sample.tokens[-1]), ends)
