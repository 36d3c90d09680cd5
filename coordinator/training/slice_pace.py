"""Choose the number of an evaluation's answers that are generated together, so that verdicts wait shortly. Pure.

Rules
1. While answers are generated, the scorer keeps their version and gives no verdict under another: a group that comes
   waits for the end of the slice. So a slice takes the scorer about as long as one group's verdict, by the last slices
   and verdicts, with the change of version that it needs.
2. An answer comes token by token, however few there are beside it, so fewer answers take hardly less time. A slice may
   always take twice as long as the longest of those that came alone, change of version included: then no evaluation
   takes the scorer more than about twice the time that it takes in one piece. An evaluation begins with one answer. And
   a slice may take `LEAST_SLICE_SECONDS`: groups go first for seconds between two slices (scoring_loop.py, rule 1).
3. Of a served task a slice has as many answers as the environment plays in `LONGEST_SLICE_SECONDS` seconds, by the last
   slice: the scorer may wait for the environment alone.
4. By each of the two a slice has at least one answer, at most `MOST_SLICE_GROUPS`, and at most twice as many as the
   last; the second of a run has `FIRST_SLICE_GROUPS`.
"""

from typing import Final, NamedTuple

MOST_SLICE_GROUPS: Final = 128
FIRST_SLICE_GROUPS: Final = 16
LEAST_SLICE_SECONDS: Final = 1.0
LONGEST_SLICE_SECONDS: Final = 10.0


class SliceTimes(NamedTuple):
    """The times of a slice, in seconds. `moved`: time of its change of version. `generated`: time of its answers.
    `verdict`: time of one group's verdict; None: not measured yet."""

    moved: float
    generated: float
    verdict: float | None


class SlicePace:
    """The pace of one task."""

    def __init__(self, *, workers: int = 1, played: bool = False) -> None:
        """`workers`: turns that the environment answers at a time. `played`: whether it answers turns at all."""
        self._workers = workers
        self._by_scorer = FIRST_SLICE_GROUPS
        self._by_environment = FIRST_SLICE_GROUPS if played else MOST_SLICE_GROUPS
        self._alone: float | None = None
        """Seconds of the longest answer of this evaluation that came alone; None: none did yet."""

    @property
    def size(self) -> int:
        """The size of the next slice, in answers."""
        return 1 if self._alone is None else min(self._by_scorer, self._by_environment)

    def begin(self) -> None:
        """Begin an evaluation (rule 2)."""
        self._alone = None

    def note(self, answers: int, times: SliceTimes) -> None:
        """Note a slice."""
        if answers == 1:
            self._alone = max(self._alone or 0.0, times.generated)
        alone = self._alone or 0.0
        longest = max(LEAST_SLICE_SECONDS, (times.verdict or 0.0) - times.moved, times.moved + 2 * alone)
        if answers >= self._by_scorer or times.generated > longest:  # the rest of an evaluation tells of no more
            self._by_scorer = _next_size(answers, answers, times.generated / longest)

    def note_environment(self, answers: int, seconds: float) -> None:
        """Note a slice of a served task. `seconds`: seconds of the environment, summed over its turns."""
        share = seconds / (LONGEST_SLICE_SECONDS * self._workers)
        self._by_environment = _next_size(max(answers, self._by_environment), answers, share)


def _next_size(last: int, answers: int, share: float) -> int:
    """Return the size of the next slice (rule 4). `last`: size of the last one. `answers`: answers that it had.
    `share`: its time over the time that is allowed."""
    fitting = int(answers / share) if share > 0 else MOST_SLICE_GROUPS
    return max(1, min(MOST_SLICE_GROUPS, 2 * last, fitting))
