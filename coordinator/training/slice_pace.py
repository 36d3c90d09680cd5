"""Choose the number of an evaluation's answers that are generated together, by their environment's time. Pure.

Rules
1. While answers of a served task are generated, the scorer keeps their version and gives no verdict, though it may
   wait for the environment alone. So a slice has as many answers as the environment plays in `LONGEST` seconds, by the
   last slice; at most `MOST`, at least one.
2. The first slice has `FIRST`, and each further one at most twice as many as the last.
3. Answers that need no environment meanwhile come in slices of `MOST`.
"""

from typing import Final

MOST: Final = 128
"""Verdicts under another version wait at most for these."""
FIRST: Final = 16
LONGEST: Final = 10.0


class SlicePace:
    """The pace of one task. `size`: of the next slice, in answers."""

    def __init__(self, *, workers: int = 1, played: bool = False) -> None:
        """`workers`: turns that the environment answers at a time. `played`: whether it answers turns at all."""
        self.size = FIRST if played else MOST
        self._workers = workers

    def note(self, answers: int, seconds: float) -> None:
        """Note a slice. `seconds`: of the environment, summed over its turns."""
        allowed = answers * LONGEST * self._workers / seconds if seconds else MOST
        self.size = max(1, min(MOST, 2 * max(answers, self.size), int(allowed)))
