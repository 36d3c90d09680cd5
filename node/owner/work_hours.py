"""The hours of the week at which a node works, as the owner writes them: `mon-fri 20:00-07:00, sat-sun`.

Rules
1. Entries are separated by commas, and a node works while one of them holds. An entry has a day or a range of days, or
   times from and to, or both. Without days it holds every day, without times the whole day.
2. Times that end before they begin end on the next day: `fri 20:00-07:00` ends on Saturday. 24:00 is the end of a day.
3. The clock is this machine's own, with its summer time.
"""

import re
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from echo2.runtime.settings import did_you_mean

DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
DAY_MINUTES: Final = 24 * 60
WEEK_MINUTES: Final = 7 * DAY_MINUTES
EXAMPLE: Final = "mon-fri 20:00-07:00, sat-sun"
_DAYS: Final = r"(?P<first>[^\W\d]+)(?:\s*-\s*(?P<last>[^\W\d]+))?"
_TIMES: Final = r"(?P<begin>[\d:.]+)\s*-\s*(?P<end>[\d:.]+)"
_ENTRY: Final = re.compile(rf"(?:{_DAYS})?\s*(?:{_TIMES})?")


class BadHours(ValueError):
    """Hours that cannot be read, or never come; the message names what is wrong."""


class WorkHours(NamedTuple):
    """`spans`: minutes of the week, from Monday 00:00 on: the first, and the one behind the last, which may be in the
    next week; none: always."""

    spans: tuple[tuple[int, int], ...] = ()

    def are_open(self, at: datetime) -> bool:
        """Tell whether the node works at a local time."""
        return not self.spans or self._until_open(at) == 0

    def opening(self, at: datetime) -> datetime:
        """Return the local time at which the node next works, from `at` on; `at` itself where it works then."""
        wait = self._until_open(at) if self.spans else 0
        return at if not wait else at.replace(second=0, microsecond=0) + timedelta(minutes=wait)

    def _until_open(self, at: datetime) -> int:
        minute = at.weekday() * DAY_MINUTES + at.hour * 60 + at.minute
        waits = [(begin - minute) % WEEK_MINUTES for begin, _ in self.spans]
        inside = any(begin <= one < end for begin, end in self.spans for one in (minute, minute + WEEK_MINUTES))
        return 0 if inside else min(waits)


def parse_hours(text: str) -> WorkHours:
    """Return the hours that a text stands for; an empty one: always. Raises `BadHours`."""
    if not text.strip():
        return WorkHours()
    return WorkHours(tuple(span for entry in text.split(",") for span in _spans(entry.strip())))


def _spans(entry: str) -> list[tuple[int, int]]:
    match = _ENTRY.fullmatch(entry)
    if match is None or not entry:
        raise BadHours(f"{entry!r} is neither days nor times: write them as in {EXAMPLE}")
    begin, end = 0, DAY_MINUTES
    if match["begin"] is not None:
        begin, end = _minutes(match["begin"]), _minutes(match["end"])
        if (end - begin) % DAY_MINUTES == 0 and (begin, end) != (0, DAY_MINUTES):
            raise BadHours(f"{entry} never comes, as it ends when it begins: for the whole day leave the times out")
        end += DAY_MINUTES if end < begin else 0
    first = 0 if match["first"] is None else _day(match["first"])
    last = 6 if match["first"] is None else _day(match["last"] or match["first"])
    days = range(first, first + (last - first) % 7 + 1)
    return [(day % 7 * DAY_MINUTES + begin, day % 7 * DAY_MINUTES + end) for day in days]


def _day(word: str) -> int:
    """Return the number of a day, named by three letters or more."""
    fits = [number for number, day in enumerate(DAYS) if len(word) >= 3 and day.startswith(word.lower())]
    if not fits:
        known = dict.fromkeys(day if len(word) > 3 else day[:3] for day in DAYS)
        raise BadHours(f"unknown day {word}{did_you_mean(word.lower(), known)}")
    return fits[0]


def _minutes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,2}):(\d{2})", text)
    hour, minute = (int(match[1]), int(match[2])) if match else (99, 0)
    if minute > 59 or hour * 60 + minute > DAY_MINUTES:
        raise BadHours(f"{text} is no time of day: write it as in 07:30, from 00:00 to 24:00")
    return hour * 60 + minute
