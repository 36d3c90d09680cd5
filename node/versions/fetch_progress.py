"""The progress of one download in words and as a bar. Pure."""

from typing import Final

BAR: Final = 20
"""Places of a bar."""


class FetchProgress:
    """The progress of a payload of `length` bytes. `before`: bytes that the node had received at its start, at
    `began` (seconds). `quiet`: seconds since the last byte."""

    def __init__(self, length: int, before: int, began: float) -> None:
        self._length, self._before, self._began = length, before, began
        self._received, self._at, self._now = before, began, began

    def on_received(self, received: int, now: float) -> None:
        """Take the bytes that the node has received so far, at `now` (seconds)."""
        if received > self._received:
            self._received, self._at = received, now
        self._now = now

    @property
    def quiet(self) -> float:
        """Seconds since the last byte came."""
        return self._now - self._at

    @property
    def bar(self) -> str:
        """The share as a bar of `BAR` places."""
        return f"[{'#' * (BAR * self._came // self._length):.<{BAR}}]"

    def describe(self) -> str:
        """Return share, rate and the time left at that rate."""
        came = self._came
        whole = f"{100 * came // self._length} % of {self._length / 1e6:,.1f} MB"
        seconds = self._now - self._began
        if not came or seconds <= 0:
            return f"{whole}, no byte has come yet"
        left = (self._length - came) * seconds / came
        words = f"{left:.0f} s" if left < 120 else f"{left / 60:.0f} min" if left < 7200 else f"{left / 3600:.1f} h"
        return f"{whole}, {came / seconds / 1e6:,.1f} MB/s, {words} left"

    @property
    def _came(self) -> int:
        return min(self._length, self._received - self._before)
