"""Values that the parts of the group service share: the rules of a run's rollouts, and the keys that sign documents."""

from collections.abc import Mapping
from typing import NamedTuple

from coordinator.rollouts.lease_table import LeaseTerms, Reseal, Seal
from coordinator.rollouts.prompts import PromptSource
from protocol.authority import RunSpec
from tasks.task import Task, Tokenizer


class RolloutContext(NamedTuple):
    """The values that define the rollouts of a run.

    `terms`: of the leases. `prompts`: of the leases. `tasks`: the pure tasks of the RunSpec, by (name, version); the
    groups of others are rewarded after their verification (coordinator/training/reward_loop.py). `text`: the model's
    tokenizer. `refill`: the learner's batches leave out groups whose rewards are all equal."""

    spec: RunSpec
    terms: LeaseTerms
    prompts: PromptSource
    tasks: Mapping[tuple[str, int], Task]
    text: Tokenizer
    refill: bool = False


def unchanged(kind: str, sealed: bytes) -> bytes:
    """Return a stored document as it is: a `Reseal` for a run whose keys never change."""
    return sealed


class Sealing(NamedTuple):
    """The functions that sign documents. `seal`: new ones. `reseal`: stored ones, before they are sent."""

    seal: Seal
    reseal: Reseal = unchanged
