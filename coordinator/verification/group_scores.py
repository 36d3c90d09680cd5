"""The scores that the task gave the rollouts of a group, and the tokens that are compared with them at hand.

They come with the submission, or from the group's environment before it is decided (`put`).
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from echo2.coordinator.database.database import Database
from echo2.coordinator.verification.token_evidence import RAISING, TokenArray
from echo2.tasks.task import Score


class GroupScores:
    """The scores of groups that are stored."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, lease: bytes, scores: Sequence[Score | None]) -> None:
        """Store the scores of a group that its environment gave, before the group is decided. None: the episode
        failed."""
        packed = msgspec.msgpack.encode(list(scores))
        self._database.do("INSERT OR REPLACE INTO episode_scores VALUES (?, ?)", (lease, packed))

    def of(self, lease: bytes) -> list[Score | None]:
        """Return the scores of a group; empty for one of an environment that was not rewarded."""
        packed = self._database.value(
            "SELECT coalesce(s.scores, e.scores) FROM submissions s LEFT JOIN episode_scores e ON e.lease = s.lease"
            " WHERE s.lease = ?",
            (lease,),
        )
        return [] if packed is None else msgspec.msgpack.decode(packed, type=list[Score | None])

    def join(self, lease: bytes, compared: dict[int, TokenArray]) -> TokenArray:
        """Return the compared tokens of a group in their order, with `RAISING` set."""
        rewards = {number: score.reward for number, score in enumerate(self.of(lease)) if score is not None}
        average = sum(rewards.values()) / max(1, len(rewards))
        for number, tokens in compared.items():
            tokens["flags"] |= RAISING * (rewards.get(number, average) > average)
        return np.concatenate([compared[number] for number in sorted(compared)])
