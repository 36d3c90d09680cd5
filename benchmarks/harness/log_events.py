"""The log lines of the daemons, as events."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple


class Event(NamedTuple):
    """A log line. `at`: seconds since the Unix epoch."""

    name: str
    at: float
    fields: Mapping[str, Any]

    @property
    def version(self) -> int | None:
        return self.fields.get("version")


def events(lines: Iterable[str]) -> list[Event]:
    """Parse JSON log lines in their order; skip other lines."""
    events_read = []
    for text_line in lines:
        try:
            fields = json.loads(text_line)
            events_read.append(Event(fields["event"], datetime.fromisoformat(fields["timestamp"]).timestamp(), fields))
        except (ValueError, KeyError, TypeError):
            continue
    return events_read
