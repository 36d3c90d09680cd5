"""A node's state as one screen, from what `status` answers: title, devices, facts. Pure.

Rules
1. A screen of 80 columns and 24 rows shows a node with up to four devices whole. A wider one gives its columns to the
   names of devices and their states. A device's cells show the owner's limits: its duty, temperature and power
   behind a "/" where these have one, and memory without the reserve.
2. What is not known is "-". Texts of the run or of peers are shown printable.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from echo2.runtime.figures import number_of
from echo2.runtime.printable import printable
from echo2.runtime.units import MBIT

COLUMNS: Final = ("DEVICE", "TOKENS/S", "ROWS", "VERSION", "LAG", "DUTY", "TEMP", "WATTS", "MEMORY GB", "STATE")
WIDTHS: Final = (12, 8, 7, 7, 3, 4, 5, 7, 9, 7)
"""Widths of the columns on a screen of 80 with a scroll bar, one blank between two."""
LABEL_WIDTH: Final = 10
MOST_REASONS: Final = 3
UNKNOWN: Final = "-"


class TimedStatus(NamedTuple):
    """A status, and when it came: seconds of a clock that never goes back."""

    status: Mapping[str, Any]
    at: float


class TopScreen(NamedTuple):
    """What a screen shows. `title`: run, node and state. `devices`: rows of cells under `COLUMNS`. `facts`: labels with
    their texts."""

    title: str
    devices: list[list[str]]
    facts: list[tuple[str, str]]

    def lines(self, width: int) -> list[str]:
        """Return the screen as lines of at most `width` characters."""
        widths = column_widths(width)
        rows = [_row(COLUMNS, widths), *(_row(cells, widths) for cells in self.devices)]
        label = LABEL_WIDTH
        facts = [
            f"{name if not number else '':<{label}}{part}"
            for name, text in self.facts
            for number, part in enumerate(_wrap(text, width - label))
        ]
        return [self.title[:width], "", *(row[:width].rstrip() for row in rows), "", *facts]


def column_widths(width: int) -> list[int]:
    """Return the widths of the columns on a screen of so many: those beyond the least go to device and state."""
    more = max(0, width - sum(WIDTHS) - len(WIDTHS) + 1)
    return [WIDTHS[0] + more // 3, *WIDTHS[1:-1], WIDTHS[-1] + more - more // 3]


def view_of(newest: TimedStatus, before: TimedStatus | None, message: str = "", cap: str = "") -> TopScreen:
    """Return the screen of the newest status. `before`: an earlier one, for the rates of the lines. `message`: what
    became of the last key. `cap`: the cap that keys change, in words."""
    status = newest.status
    name = status.get("name") or str(status.get("node") or "")[-8:]
    run = status.get("run") or "no run yet"
    title = f"{run} - node {name} - {status.get('state')}" + (" - slow" if status.get("slow") else "")
    facts = [
        ("why", status.get("blocked") or "nothing blocks: the node works"),
        *((str(row["device"]), row["why"]) for row in status.get("engines", []) if row.get("why")),
        ("leases", _leases(status)),
        ("groups", _groups(status)),
        *(("refused", text) for text in _refusals(status)),
        ("points", _points(status)),
        ("upload", _rate_text(newest, before, "sent_bytes", "uplink")),
        ("download", _rate_text(newest, before, "received_bytes", "downlink")),
        ("peers", _peers(status)),
        ("page", status.get("permalink") or "the run names none"),
        *([("cap", cap)] if cap else []),
        *([("node", message)] if message else []),
    ]
    devices = [_device(row, str(status.get("state"))) for row in status.get("engines", [])]
    return TopScreen(printable(title), devices, [(label, printable(text)) for label, text in facts])


def _device(row: Mapping[str, Any], state: str) -> list[str]:
    memory, used = row.get("memory"), row.get("memory_used")
    most = row.get("most_rows")
    return [
        printable(f"{row.get('device')} {row.get('hardware') or ''}".strip()),
        _number(row.get("rate")),
        f"{row.get('rows')}/{most}" if most else UNKNOWN,
        _number(row.get("version")),
        _number(row.get("lag")),
        _number(row.get("duty")),
        _number(row.get("temperature"), " C" if row.get("hottest") is None else f"/{row['hottest']:g}"),
        _number(row.get("watts"), "" if row.get("power") is None else f"/{row['power']}"),
        UNKNOWN
        if used is None or memory is None
        else f"{used / 1e9:.1f}/{max(0, memory - (row.get('reserve') or 0)) / 1e9:.0f}",
        printable(state if state in ("paused", "finishing") else str(row.get("state"))),
    ]


def _number(value: int | float | None, unit: str = "") -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.1f}{unit}" if isinstance(value, float) and value < 10 else f"{value:.0f}{unit}"


def _leases(status: Mapping[str, Any]) -> str:
    under_way = sum(row.get("under_way") or 0 for row in status.get("engines", []))
    return f"{under_way} under way, {status.get('leases', 0)} completed since the start"


def _groups(status: Mapping[str, Any]) -> str:
    outbox = status.get("outbox", {})
    waiting = outbox.get("queued", 0) + outbox.get("received", 0)
    return f"{outbox.get('accepted', 0)} accepted, {outbox.get('refused', 0)} refused, {waiting} wait for an answer"


def _refusals(status: Mapping[str, Any]) -> list[str]:
    rows = status.get("refused", [])
    texts = [f"{number_of(row['groups'], 'group')}, {row['code']}: {row['reason']}" for row in rows[:MOST_REASONS]]
    return [*texts, *([f"and {len(rows) - MOST_REASONS} more reasons: echo2-node why"] if rows[MOST_REASONS:] else [])]


def _points(status: Mapping[str, Any]) -> str:
    return f"{status.get('points', 0):g} RE of accepted work, rank {status.get('rank') or 'not known yet'}"


def _rate_text(newest: TimedStatus, before: TimedStatus | None, counter: str, cap: str) -> str:
    total, limit = newest.status.get(counter, 0), newest.status.get("caps", {}).get(cap)
    rate = UNKNOWN
    if before is not None and newest.at > before.at and total >= before.status.get(counter, 0):
        rate = f"{(total - before.status.get(counter, 0)) / (newest.at - before.at) / MBIT:.1f}"
    return f"{rate} Mbit/s, {total / 1e6:.1f} MB since the start; " + (
        "no limit" if limit is None else f"at most {limit:g} Mbit/s"
    )


def _peers(status: Mapping[str, Any]) -> str:
    ways = ", ".join(f"{count} {route}" for route, count in status.get("ways", {}).items())
    coordinator = status.get("way")
    reach = f"coordinator: {coordinator}" if coordinator else "the coordinator is not reached"
    reached = status.get("reached")
    return (
        f"{status.get('peers', 0)}"
        + (f" ({ways})" if ways else "")
        + f"; {reach}"
        + (f"; reached: {reached}" if reached else "")
    )


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return cells in columns: text to the left, numbers to the right."""
    last = len(cells) - 1
    return " ".join(
        cell[:wide].ljust(wide) if place in (0, last) else cell[:wide].rjust(wide)
        for place, (cell, wide) in enumerate(zip(cells, widths, strict=True))
    )


def _wrap(text: str, width: int) -> list[str]:
    """Return a text on one row or two; what does not fit ends in "..."."""
    if len(text) <= width:
        return [text]
    cut = text.rfind(" ", 0, width + 1)
    cut = cut if cut > width // 2 else width
    rest = text[cut:].strip()
    return [text[:cut].rstrip(), rest if len(rest) <= width else rest[: width - 3] + "..."]
