"""The coordinator's clock, as far as this node can know it. Times are milliseconds since the Unix epoch.

Rules
1. An answer that states the coordinator's time was made between question and answer, so it bounds the offset
   from both sides; the offset moves only as far as the bounds demand.
2. What a lease states is signed and carries this node's nonce. After the first one, unsigned statements
   count no more.
"""

from collections.abc import Callable


class RunClock:
    """`now()` on the coordinator's clock; `local()` on this machine's."""

    def __init__(self, local: Callable[[], int]) -> None:
        self.local = local
        self.offset = 0
        self._signed = False

    def now(self) -> int:
        return max(0, self.local() + self.offset)

    def observe(self, stated: int, asked: int, *, signed: bool) -> None:
        """`stated`: the coordinator's time in an answer that arrives now. `asked`: local time of the question."""
        if self._signed and not signed:
            return
        self._signed = signed
        lowest, highest = stated - self.local(), stated - asked
        self.offset = min(max(self.offset, lowest), highest)
