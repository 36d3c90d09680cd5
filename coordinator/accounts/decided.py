"""The end of a lease as an event: verdicts publish it, and each part that changes by it receives it.

Rules
1. `Decided` is published once for the end of a lease, after its entry, and after its Receipt if a group came, in their
   transaction. A receiver that fails undoes all of them. A group that comes after that end is published as late.
2. The receivers are named where the group service is made (coordinator/submissions/group_service.py), and called in
   that order. The verdict knows none of them.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from echo2.coordinator.accounts.lease_ends import CODES_WITHOUT_GROUP
from echo2.ledger.ledger_facts import WRONG_CODES
from echo2.protocol.leases import Lease
from echo2.tasks.task import Score

BY_PASS: Final = WRONG_CODES | {"version-lie", "other-weights", "not-scorable", "party-near-ties"}
"""Codes of refusals by the scorer's pass."""


class AcceptedGroup(NamedTuple):
    """A group that a verdict accepted.

    `received`: time of its submission, ms. `position`: position of its prompt. `party`: party of its lease. `share`:
    share of the room that its lease took; None: it did not count. `summary`: summary from which its prompt was chosen.
    `twins`: whether its set has another lease. `spare`: whether a twin is in the buffer. `owed`: whether its node has
    canaries that are not vested. `late`: whether it is too old to be trained on. `trainable`: whether it may be trained
    on. `agreed`: whether it was compared with a known answer, in place of a forward pass. `scores`: score per rollout,
    None of one without a finite reward; empty: the group counts as without any. `lengths`: sampled tokens of each
    rollout. `cut`: whether the token limit cut it. `behaviour`: log-probabilities of each rollout, as the buffer stores
    them."""

    received: int
    position: int
    party: str
    share: str | None
    summary: bytes | None
    twins: bool
    spare: bool
    owed: bool
    late: bool
    trainable: bool
    agreed: bool
    scores: Sequence[Score | None]
    lengths: Sequence[int]
    cut: Sequence[bool]
    behaviour: Sequence[bytes]

    @property
    def rewards(self) -> list[float]:
        """The finite rewards of its rollouts."""
        return [score.reward for score in self.scores if score is not None]

    @property
    def varied(self) -> bool:
        """True if its rewards are not all equal."""
        return len(set(self.rewards)) > 1


class Decided(NamedTuple):
    """The end of a lease. `code`: code of its entry. `weight`: milli-RE. `now`: ms. `submission_hash`: hash of its
    submission; zeros: there is none. `accepted`: the group, if it was accepted. `sample`, `position`: the place that
    decided a refused group."""

    lease: Lease
    code: str
    now: int
    submission_hash: bytes = bytes(32)
    weight: int = 0
    accepted: AcceptedGroup | None = None
    sample: int | None = None
    position: int | None = None

    @property
    def is_group(self) -> bool:
        """True if a group came for the lease."""
        return self.code not in CODES_WITHOUT_GROUP

    @property
    def is_late(self) -> bool:
        """True if the group came after the end of its lease, which was published before."""
        return self.code == "late"

    @property
    def is_refused(self) -> bool:
        """True if a group that came was refused."""
        return self.accepted is None and self.is_group

    @property
    def good(self) -> AcceptedGroup | None:
        """The group, if only its age may keep it from the buffer: no twin of it is there."""
        return None if self.code != "ok" or self.accepted is None or self.accepted.spare else self.accepted

    @property
    def of_task(self) -> AcceptedGroup | None:
        """The group, if it counts in the results of its task."""
        return self.accepted if self.code == "task-score" else self.good


OnDecided = Callable[[Decided], None]
