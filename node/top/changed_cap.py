"""The caps that the keys of `echo2-node top` change, one step at a time, by the command `caps`. Pure.

Rules
1. The caps are the duty of all devices, that of each of several, and the rates of the lines. A cap without a limit
   stands above the highest step of its ladder.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

DUTIES: Final = (5.0, *(float(percent) for percent in range(10, 101, 10)))
RATES: Final = (0.25, 0.5, *(float(2**power) for power in range(10)), math.inf)
"""Steps of a line, Mbit/s."""


class ChangedCap(NamedTuple):
    """One cap. `key`: its name in the command `caps`. `device`: the device whose it is; None: the node's."""

    key: str
    device: str | None = None

    def step(self, status: Mapping[str, Any], *, up: bool) -> dict[str, Any]:
        """Return the order that changes the cap by a step."""
        ladder, now = DUTIES if self.key == "duty" else RATES, self._value(status)
        beyond = [one for one in ladder if (one > now if up else one < now)]
        following = now if not beyond else min(beyond) if up else max(beyond)
        text = "none" if following == math.inf else f"{following:g}"
        return {"command": "caps", "changes": {self.key: text}, "gpu": self.device}

    def text(self, status: Mapping[str, Any]) -> str:
        """Return the cap and its value in words."""
        value = self._value(status)
        of = f" of {self.device or 'all devices'}" if self.key == "duty" else ""
        unit = "no limit" if value == math.inf else f"{value:g} {'%' if self.key == 'duty' else 'Mbit/s'}"
        return f"{self.key}{of}: {unit} (+ and - change it until the node ends)"

    def _value(self, status: Mapping[str, Any]) -> float:
        rows = [row for row in status.get("engines", []) if row.get("device") == self.device]
        value = rows[0].get("duty") if rows else status.get("caps", {}).get(self.key)
        return math.inf if value is None else float(value)


def caps_of(status: Mapping[str, Any]) -> list[ChangedCap]:
    """Return the caps of a node, in the order in which a key takes them."""
    devices = list(dict.fromkeys(str(row.get("device")) for row in status.get("engines", [])))
    single = [ChangedCap("duty", device) for device in devices if len(devices) > 1]
    return [ChangedCap("duty"), *single, ChangedCap("uplink"), ChangedCap("downlink")]
