"""A judge of days in quarantine for tests of their table."""

from collections.abc import Callable

from echo2.coordinator.accounts.quarantine import Outcome, Rerun


class Judge:
    """Days end badly as `doubted` says; each doubt is confirmed at once. `run_again`: keys whose days were run again,
    where `reruns` is true."""

    def __init__(self, doubted: Callable[[bytes, int], bool], *, reruns: bool = False) -> None:
        self.doubted, self.reruns = doubted, reruns
        self.run_again: list[bytes] = []

    def ended_badly(self, node: bytes, day: int) -> bool:
        """See `DayJudge`."""
        return self.doubted(node, day)

    def rerun(self, node: bytes, day: int) -> Rerun:
        """See `DayJudge`."""
        if not self.reruns:
            return None
        self.run_again.append(node)
        return b""

    def check_day(self, node: bytes, day: int, now: int) -> Outcome:
        """See `DayJudge`."""
        return "confirmed"

    def check_is_waited_for(self, node: bytes, day: int, now: int) -> bool:
        """See `DayJudge`."""
        return False

    def end_group(self, lease: bytes, paid: bool, now: int) -> None:
        """See `DayJudge`."""
