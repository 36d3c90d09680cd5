"""Values that the parts of the group service share: the rules of a run's rollouts, the keys that sign, randomness."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from echo2.coordinator.leases.lease_terms import LeaseTerms
from echo2.coordinator.prompts.prompts import PromptSource
from echo2.protocol.authority import RunSpec
from echo2.protocol.task_kinds import PURE_KIND
from echo2.tasks.task import Task, Tokenizer

Entropy = Callable[[int], bytes]
"""n -> n random bytes."""
Seal = Callable[[str, bytes], bytes]
"""(kind, payload) -> sealed document, by the key of the role that signs this kind."""
Reseal = Callable[[str, bytes], bytes]
"""(kind, a stored sealed document) -> the same document, sealed by a current key (coordinator/run/sealing.py)."""


class RolloutContext(NamedTuple):
    """The values that define the rollouts of a run.

    `terms`: terms of the leases. `prompts`: prompts of the leases. `tasks`: the pure tasks of the RunSpec, by (name,
    version); the groups of others are rewarded by an environment: single ones after their verification
    (coordinator/training/reward_loop.py), served ones turn by turn (step_service.py). `text`: the model's tokenizer.
    `room`: most tokens of a prompt and of what an environment gives, the model's context less the limit; None: the
    model states no context."""

    spec: RunSpec
    terms: LeaseTerms
    prompts: PromptSource
    tasks: Mapping[tuple[str, int], Task]
    text: Tokenizer
    room: int | None = None

    def kind(self, task: str, version: int) -> str:
        """Return the kind of a task of the RunSpec (protocol/task_kinds.py)."""
        return self.spec.kind_of(task, version) or PURE_KIND


def keep_document(kind: str, sealed: bytes) -> bytes:
    """Return a stored document as it is: a `Reseal` for a run whose keys never change."""
    return sealed


class Sealing(NamedTuple):
    """The functions that sign documents. `seal`: new ones. `reseal`: stored ones, before they are sent."""

    seal: Seal
    reseal: Reseal = keep_document
