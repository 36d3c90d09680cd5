"""Units of settings and documents, converted to those of the code; the time of the system's clock."""

import time
from datetime import UTC, datetime
from typing import Final

MBIT: Final = 125_000
"""Bytes per second in one Mbit/s."""
DAY: Final = 24 * 3600 * 1000
"""Milliseconds in a day."""


def bytes_per_second(mbit: float | None) -> float | None:
    """Return a rate in bytes per second; None, which means no limit, stays None."""
    return None if mbit is None else mbit * MBIT


def date(at: int) -> str:
    """Return the date of a time, given in ms: "2026-11-22"."""
    return f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d}"


def minute(at: int) -> str:
    """Return a time, given in ms, to the minute: "2026-11-22 10:00 UTC"."""
    return f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def second(at: int) -> str:
    """Return a time, given in ms, to the second: "2026-11-22 10:00:00 UTC"."""
    return f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def unix_milliseconds() -> int:
    """Return the time of the system's clock, in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000
