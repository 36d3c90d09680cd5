"""An estimate of the coordinator's clock. Times are milliseconds since the Unix epoch.

Rules
1. An answer that states the coordinator's time was written between the request and its own arrival. So it bounds the
   offset from both sides. The offset moves only as far as these bounds demand.
2. The time in a lease is signed and carries this node's nonce. After the first lease, unsigned times are ignored.
"""

from collections.abc import Callable


class RunClock:
    """A clock with an offset: `now()` estimates the coordinator's clock, `local()` is this machine's."""

    def __init__(self, local: Callable[[], int]) -> None:
        self.local = local
        self.offset = 0
        self._signed = False

    def now(self) -> int:
        """Return the time on the coordinator's clock."""
        return max(0, self.local() + self.offset)

    def observe(self, stated: int, asked: int, *, signed: bool) -> None:
        """Correct the offset by an answer that arrives now. `stated`: the coordinator's time in it. `asked`: local time
        of the request. `signed`: whether the stated time is a lease's (rule 2)."""
        if self._signed and not signed:
            return
        self._signed = signed
        lowest, highest = stated - self.local(), stated - asked
        self.offset = min(max(self.offset, lowest), highest)
