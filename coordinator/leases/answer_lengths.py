"""The mean length of the answers of late, from which follows how long a group takes a node that says its rate. Pure."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from echo2.coordinator.accounts.decided import Decided

LEAST_GROUPS: Final = 8
"""Groups from which a mean is taken; after a restart it is unknown until then."""
MOST_GROUPS: Final = 256


class AnswerLengths:
    """The sampled tokens per rollout of the last accepted groups."""

    def __init__(self) -> None:
        self._groups = deque[float](maxlen=MOST_GROUPS)

    def on_decided(self, end: Decided) -> None:
        """Note a group that counts for its task, at its verdict."""
        if (group := end.of_task) is not None:
            self.note(group.lengths)

    def note(self, lengths: Sequence[int]) -> None:
        """Note an accepted group. `lengths`: sampled tokens of each rollout."""
        if lengths:
            self._groups.append(sum(lengths) / len(lengths))

    def expected_time(self, stated: int | None, limit: int) -> int | None:
        """Return the milliseconds that a group takes a node, by its own word for one whose rollouts all have `limit`
        tokens; None: it says nothing, or too few groups are known."""
        if stated is None or len(self._groups) < LEAST_GROUPS:
            return None
        return int(stated * min(1.0, sum(self._groups) / len(self._groups) / limit))
