"""The demo's display: a live view on a terminal, a line every few seconds elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from echo2.coordinator.demo.summary import sparkline
from echo2.coordinator.metrics.views import RunState

PLAIN_LINE_SECONDS = 5.0
"""Least seconds between two plain lines."""
UNCHANGED_LINE_SECONDS = 30.0
"""Least seconds between two plain lines while neither the step nor the number of accepted groups changes."""


class Screen(Protocol):
    """A display of the demo. `say` prints an event; `show` draws the state of the run. `seconds`: seconds since the
    nodes were started. `url`: url of the leaderboard."""

    def say(self, text_line: str) -> None: ...

    def show(self, state: RunState, seconds: float, url: str) -> None: ...

    def close(self) -> None: ...


class PlainScreen:
    """A display of plain lines. `write` prints one; `clock`: monotonic seconds."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._last: tuple[float, int, int] | None = None

    def say(self, text_line: str) -> None:
        self._write(text_line)

    def show(self, state: RunState, seconds: float, url: str) -> None:
        now = (self._clock(), state.step, state.accepted)
        pause = PLAIN_LINE_SECONDS if self._last is None or now[1:] != self._last[1:] else UNCHANGED_LINE_SECONDS
        if self._last is None or now[0] - self._last[0] >= pause:
            self._last = now
            self._write(progress_line(state, seconds))

    def close(self) -> None:
        """Do nothing: lines need no clean-up."""


class LiveScreen:
    """A view redrawn in place, with the printed events above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def say(self, text_line: str) -> None:
        (self._live.console if self._live else self._console).print(Text(text_line), soft_wrap=True)

    def show(self, state: RunState, seconds: float, url: str) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(draw_run(state, seconds, url), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def screen_for(console: Console) -> Screen:
    """Return a live view on a terminal, and a display of plain lines elsewhere."""
    return (
        LiveScreen(console)
        if console.is_terminal
        else PlainScreen(lambda text_line: console.print(Text(text_line), soft_wrap=True))
    )


@contextmanager
def working(console: Console, text: str) -> Iterator[None]:
    """Show a spinner on a terminal, and do nothing elsewhere."""
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


def progress_line(state: RunState, seconds: float) -> str:
    wanted = f"/{state.steps_wanted}" if state.steps_wanted else ""
    parts = [f"{seconds:5.0f} s", f"step {state.step}{wanted}"]
    if state.steps:
        parts.append(f"reward {state.steps[-1].reward:.3f}")
    if state.evaluations:
        parts.append(f"held out {state.evaluations[-1].sampled:.3f}")
    online = sum(node.connected for node in state.nodes)
    parts += [f"{online} nodes", f"{state.accepted} groups accepted, {sum(state.refused.values())} refused"]
    return "  ".join(parts)


def draw_run(state: RunState, seconds: float, url: str) -> RenderableType:
    """Draw the run in about 20 lines."""
    head = Table.grid(padding=(0, 2))
    head.add_column(style="dim")
    head.add_column()
    wanted = state.steps_wanted or max(state.step, 1)
    bar = Table.grid(padding=(0, 1))
    progress = f"step {state.step} of {wanted}, {seconds:.0f} s"
    bar.add_row(ProgressBar(total=wanted, completed=state.step, width=32), Text(progress))
    head.add_row(state.phase, bar)
    head.add_row("reward", _curve([point.reward for point in state.steps]))
    head.add_row("held out", _curve([one.sampled for one in state.evaluations]))
    idle = "–" if state.idle is None else f"{100 * state.idle:.0f} %"
    refused = sum(state.refused.values())
    head.add_row("groups", f"{state.accepted} accepted, {refused} refused, {state.undecided} undecided")
    head.add_row("learner", f"idle {idle} of the time")
    head.add_row("leaderboard", Text(url, style="underline"))
    return Group(Text(), head, Text(), _nodes(state))


def _curve(values: list[float]) -> Text:
    if not values:
        return Text("–", style="dim")
    return Text.assemble((sparkline(values, 0, max(1.0, *values)), "cyan"), f"  {values[-1]:.3f}")


def _nodes(state: RunState) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim", pad_edge=False)
    table.add_column("node")
    for name in ("version", "accepted", "refused", "points"):
        table.add_column(name, justify="right")
    for node in state.nodes:
        table.add_row(
            Text.assemble(("● ", "green") if node.connected else ("○ ", "red"), node.name),
            "–" if node.version is None else str(node.version),
            str(node.accepted),
            str(node.refused),
            f"{node.points / 1000:,.0f}",
            style="" if node.connected else "dim",
        )
    return table
