"""Make the submissions of nodes that did not generate: they pass every check but the one that they are made for."""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from echo2.engines.engine import Sample
from echo2.protocol.leases import Lease, Rollout, Segment, Submission

LOGPROB: Final = -0.5
"""The log-probability that a fabricated token claims."""
SPECIAL: Final = 2
USUAL: Final = 40
"""Token ids from `SPECIAL` on, `USUAL` of them, are no end of a turn in the small model's alphabet."""


def made_up(lease: Lease) -> Submission:
    """Return a group that passes every check but the scorer's: none of its tokens was generated."""
    return group_of(lease, [tokens_from(b"made up" + seed, lease.limit) for seed in lease.seeds])


def nothing(lease: Lease) -> Submission:
    """Return a group without a rollout: it is refused at receipt, which ends the lease at once."""
    return group_of(lease, [])


def tokens_from(key: bytes, count: int) -> list[int]:
    """Return `count` tokens that follow from a key, none of which ends a turn."""
    return [SPECIAL + byte % USUAL for byte in hashlib.shake_128(key).digest(count)]


def group_of(lease: Lease, completions: Sequence[Sequence[int]]) -> Submission:
    """Return the group of these completions, each of one sampled turn, with log-probabilities that nobody computed."""
    rollouts = [
        Rollout(
            tokens=list(tokens),
            turns=[len(tokens)],
            logprobs=np.full(len(tokens), LOGPROB, "<f4").tobytes(),
            segments=[Segment(version=lease.version, root=lease.root, first=0)],
        )
        for tokens in completions
    ]
    return Submission(lease=lease.id, era=lease.era, version=lease.version, root=lease.root, rollouts=rollouts)


def submission_of(lease: Lease, samples: Sequence[Sample]) -> Submission:
    """Return the group of these samples, each tagged with the lease's version and content root."""
    segments = [Segment(version=lease.version, root=lease.root, first=0)]
    rollouts = [
        Rollout(
            tokens=list(one.tokens),
            turns=one.turns,
            logprobs=np.asarray(one.logprobs, "<f4").tobytes(),
            segments=segments,
        )
        for one in samples
    ]
    return Submission(lease=lease.id, era=lease.era, version=lease.version, root=lease.root, rollouts=rollouts)
