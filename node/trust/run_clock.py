"""An estimate of the coordinator's clock. Times are milliseconds since the Unix epoch.

Rules
1. An answer that states the coordinator's time was written between the request and its own arrival. So it bounds the
   offset from both sides. The offset moves only as far as these bounds demand.
2. The time in a lease is signed and carries this node's nonce. After the first lease, unsigned times are ignored, until
   the coordinator refuses this clock (`refused`): then one of the two clocks was set.
3. A coordinator does not work past the end of the run's Root. So a time past it is not believed while this machine's
   own clock is before it (`check`): the offset is given up, and the next time stated counts as the first.
"""

from collections.abc import Callable

from echo2.p2p.errors import PeerFault
from echo2.runtime.figures import figure
from echo2.runtime.units import DAY


class WrongClock(PeerFault):
    """A coordinator states a time at which its run has ended (rule 3)."""


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

    def on_refusal(self) -> None:
        """Let unsigned times count again: the coordinator has refused a request for its time (rule 2)."""
        self._signed = False

    def check(self, end: int) -> None:
        """Check the last time observed against the end of the run's Root, ms. Raises `WrongClock` (rule 3)."""
        if not self.local() < end <= self.now():
            return
        ahead, self.offset, self._signed = self.offset, 0, False
        raise WrongClock(
            f"the coordinator's clock is {figure(ahead / DAY)} days ahead of this machine's, past the end of the run's"
            " Root: its operator must set that clock, or sign a new Root if this machine's clock is the wrong one"
        )
