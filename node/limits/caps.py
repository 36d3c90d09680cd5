"""The owner's caps on the lines and on the time of the devices: two sets of them, and which one is in force. Pure.

Rules
1. The second set, *slow*, is in force while the owner says so (`echo2-node slow on`), else during `slow_hours`. A word
   of the owner's counts until `slow auto`, or until a restart. A cap that the slow set lacks is that of the first; a
   device whose own duty is smaller than that of the slow set keeps it.
2. Bytes of a calendar month (local time) count against `month_up` and `month_down`. Where a month's upload is used up,
   payloads go out at `TRICKLE_MBIT`; where its download is, none are fetched until the next month.
3. A change by the owner's hand (`echo2-node caps`) is one of the set in force, until the node ends. A duty without a
   device is then that of all: single devices have none of their own any more.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from echo2.engines.devices.devices import value_for
from echo2.node.config import NodeConfig, check_values, values_of
from echo2.node.errors import BadConfig
from echo2.node.owner.work_hours import parse_hours
from echo2.runtime.settings import SettingsFault, did_you_mean, means_removal

GB: Final = 10**9
TRICKLE_MBIT: Final = 0.05


class Caps(NamedTuple):
    """One set. `uplink`, `downlink`: Mbit/s; None: no limit. `duty`: percent of the time that devices compute.
    `devices`: the same of single ones, by their names."""

    uplink: float | None
    downlink: float | None
    duty: int
    devices: Mapping[str, int] = {}

    def duty_of(self, device: str) -> int:
        """Return the percent of the time that a device computes."""
        own = value_for(self.devices, device)
        return self.duty if own is None else own

    def facts(self) -> dict[str, Any]:
        """Return those of the whole node, for its owner."""
        return {"uplink": self.uplink, "downlink": self.downlink, "duty": self.duty}


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
        duty = config.by_device("duty")
        first = Caps(config.uplink, config.downlink, duty.pop(""), duty)
        slow = {key: value for key in first.facts() if (value := getattr(config, f"slow_{key}")) is not None}
        least = {name: min(own, config.slow_duty or 100) for name, own in duty.items()}
        self.first: Final = first
        """The caps with which a node starts."""
        self._sets = {False: first, True: first._replace(**slow, devices=least)}
        """By whether they are slow."""

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
        caps = self._sets[self.slow]
        return caps._replace(uplink=TRICKLE_MBIT) if self._is_over(self._config.month_up, self.month.up) else caps

    def change(self, texts: Mapping[str, str], devices: Sequence[str] = ()) -> None:
        """Change caps by hand (rule 3). `texts`: what the owner wrote, by key. `devices`: those whose duty it is; none:
        the duty is that of all. Raises `BadConfig`, and changes nothing then."""
        values = _read_changes(texts)
        if devices and values.keys() != {"duty"}:
            raise BadConfig("a device has one cap that can be changed while the node runs, as in duty=50")
        if devices:
            values = {"devices": {**self._sets[self.slow].devices, **dict.fromkeys(devices, values["duty"])}}
        elif "duty" in values:
            values["devices"] = {}
        self._sets[self.slow] = self._sets[self.slow]._replace(**values)

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


def _read_changes(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that the owner's texts stand for. Raises `BadConfig`."""
    known = Caps(None, None, 100).facts()
    for key in texts:
        if key not in known:
            raise BadConfig(f"unknown cap {key}{did_you_mean(key, known)}")
    none: dict[str, Any] = {key: None for key, text in texts.items() if key != "duty" and means_removal(text)}
    try:
        given = values_of({key: text for key, text in texts.items() if key not in none})
        config = check_values(given)
    except SettingsFault as error:
        raise BadConfig(str(error)) from error
    return none | {key: getattr(config, key) for key in given}
