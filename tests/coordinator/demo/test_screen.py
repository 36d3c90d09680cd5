"""The demo's display: plain lines at a limited rate, and the live view."""

import msgspec
import pytest
from rich.console import Console

from echo2.coordinator.demo.screen import PlainScreen, draw_run, progress_line
from echo2.coordinator.metrics.views import RunState
from tests.support import pictures


def changed(**changes: object) -> RunState:
    return msgspec.structs.replace(pictures.FINISHED, **changes)


def test_a_line_at_most_every_five_seconds_and_fewer_without_progress() -> None:
    now, seen = 0.0, list[float]()
    screen = PlainScreen(lambda text_line: seen.append(now), lambda: now)
    for second in range(100):
        now = float(second)
        screen.show(changed(step=min(second, 12)), now, "http://x")
    assert seen == [0, 5, 10, 15, 45, 75]


def test_events_are_printed_at_once() -> None:
    lines = list[str]()
    screen = PlainScreen(lines.append, lambda: 0.0)
    screen.show(pictures.BUSY, 1.0, "http://x")
    screen.say("something happened")
    assert lines == [progress_line(pictures.BUSY, 1.0), "something happened"]


@pytest.mark.parametrize("state", [pictures.EMPTY, pictures.BUSY, pictures.FINISHED], ids=["empty", "busy", "finished"])
def test_the_live_view_fits_80_by_24_characters(state: RunState) -> None:
    console = Console(width=80, height=24, record=True, force_terminal=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(draw_run(state, 12.0, "http://127.0.0.1:12345/"))
    lines = capture.get().splitlines()
    assert len(lines) <= 24
    assert any("http://127.0.0.1:12345/" in text_line for text_line in lines)
