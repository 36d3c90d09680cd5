"""Choose the number of an evaluation's answers that are generated together, by their environment's time. Pure.

Rules
1. While answers of a served task are generated, the scorer keeps their version and gives no verdict, though it may
   wait for the environment alone. So a slice has as many answers as the environment plays in `LONGEST_SLICE_SECONDS`
   seconds, by the last slice; at most `MOST_SLICE_GROUPS`, at least one.
2. The first slice has `FIRST_SLICE_GROUPS`, and each further one at most twice as many as the last.
3. Answers that need no environment meanwhile come in slices of `MOST_SLICE_GROUPS`.
"""

from typing import Final

MOST_SLICE_GROUPS: Final = 128
"""Verdicts under another version wait at most for these."""
FIRST_SLICE_GROUPS: Final = 16
LONGEST_SLICE_SECONDS: Final = 10.0


class SlicePace:
    """The pace of one task. `size`: size of the next slice, in answers."""

    def __init__(self, *, workers: int = 1, played: bool = False) -> None:
        """`workers`: turns that the environment answers at a time. `played`: whether it answers turns at all."""
        self.size = FIRST_SLICE_GROUPS if played else MOST_SLICE_GROUPS
        self._workers = workers

    def note(self, answers: int, seconds: float) -> None:
        """Note a slice. `seconds`: seconds of the environment, summed over its turns."""
        allowed = answers * LONGEST_SLICE_SECONDS * self._workers / seconds if seconds else MOST_SLICE_GROUPS
        self.size = max(1, min(MOST_SLICE_GROUPS, 2 * max(answers, self.size), int(allowed)))
