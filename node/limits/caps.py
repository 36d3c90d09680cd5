"""The owner's caps on the lines and on the time of the devices: two sets of them, and which one is in force. Pure.

Rules
1. The second set, *slow*, is in force while the owner says so (`echo2-node slow on`), else during `slow_hours`. A word
   of the owner's counts until `slow auto`, or until a restart. A cap that the slow set lacks is that of the first.
2. Bytes of a calendar month (local time) count against `month_up` and `month_down`. Where a month's upload is used up,
   payloads go out at `TRICKLE_MBIT`; where its download is, none are fetched until the next month.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final, NamedTuple

from echo2.node.config import NodeConfig
from echo2.node.owner.work_hours import parse_hours

GB: Final = 10**9
TRICKLE_MBIT: Final = 0.05


class Caps(NamedTuple):
    """One set. `uplink`, `downlink`: Mbit/s; None: no limit. `duty`: percent of the time that devices compute."""

    uplink: float | None
    downlink: float | None
    duty: int


class MonthTraffic(NamedTuple):
    """Payload bytes of a month. `month`: year and month, as in 2026-11."""

    month: str = ""
    up: int = 0
    down: int = 0

    def add(self, up: int, down: int, local: datetime) -> "MonthTraffic":
        """Return the bytes with more of them, counted in the month of `local`."""
        month = f"{local:%Y-%m}"
        before = self if month == self.month else MonthTraffic(month)
        return MonthTraffic(month, before.up + up, before.down + down)


class OwnerCaps:
    """The caps of one node. `local`: local time of this machine. `by_hand`: what the owner said last of slow; None:
    nothing, `slow_hours` count."""

    def __init__(self, config: NodeConfig, local: Callable[[], datetime]) -> None:
        self._config, self.local = config, local
        self._slow_hours = parse_hours(config.slow_hours)
        self.by_hand: bool | None = None
        self.month = MonthTraffic()

    @property
    def slow(self) -> bool:
        """Whether the slow set is in force (rule 1)."""
        if self.by_hand is not None:
            return self.by_hand
        return bool(self._slow_hours.spans) and self._slow_hours.are_open(self.local())

    @property
    def counts_months(self) -> bool:
        """Whether the bytes of a month are limited."""
        return self._config.month_up is not None or self._config.month_down is not None

    @property
    def may_change(self) -> bool:
        """Whether the caps change without a word of the owner's."""
        return self.counts_months or bool(self._slow_hours.spans)

    @property
    def now(self) -> Caps:
        """The caps in force."""
        config = self._config
        caps = Caps(config.uplink, config.downlink, config.duty)
        if self.slow:
            slow = (config.slow_uplink, config.slow_downlink, config.slow_duty)
            caps = Caps(*(own if other is None else other for own, other in zip(caps, slow, strict=True)))  # type: ignore[arg-type]
        return caps._replace(uplink=TRICKLE_MBIT) if self._is_over(config.month_up, self.month.up) else caps

    @property
    def no_download(self) -> str:
        """Why no payload is fetched, a sentence; empty: they are."""
        if not self._is_over(self._config.month_down, self.month.down):
            return ""
        most, this_month = self._config.month_down, f"{self.local():%B}"
        return (
            f"the {most:g} GB of download for {this_month} are used up (setting month_down): no new version is fetched"
        )

    def _is_over(self, most: float | None, used: int) -> bool:
        return most is not None and used >= most * GB and self.month.month == f"{self.local():%Y-%m}"
