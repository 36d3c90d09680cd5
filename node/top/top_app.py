"""The screen of `echo2-node top`, by Textual: it asks the node's control socket every `PERIOD_SECONDS`, and sends the
owner's keys there.

Rules
1. A node that does not answer is said on the screen, and asked again: it may be starting anew.
2. `f` finishes the node for good, so it counts when it is pressed twice within `TWICE_SECONDS`.
3. `+` and `-` change one cap, which the screen names and `c` chooses, until the node ends.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from echo2.node.errors import NodeError
from echo2.node.top.changed_cap import ChangedCap, caps_of
from echo2.node.top.top_view import TimedStatus, TopScreen, view_of

PERIOD_SECONDS: Final = 2.0
TWICE_SECONDS: Final = 5.0

Ask = Callable[..., dict[str, Any]]
"""Sends a command to the node; blocks. Raises `NodeError`."""


class TopApp(App[None]):
    """One node. `ask`: sends a command to it. `now`: a clock that never goes back, seconds. Without `colour` the screen
    has none (NO_COLOR)."""

    CSS = "Screen { background: ansi_default; } Footer { background: ansi_default; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "order('pause')", "pause"),
        Binding("r", "order('resume')", "resume"),
        Binding("s", "slow", "slow caps"),
        Binding("c", "next_cap", "cap"),
        Binding("plus", "step(True)", "more", key_display="+"),
        Binding("minus", "step(False)", "less", key_display="-"),
        Binding("f", "finish", "finish"),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False),
    ]

    def __init__(self, ask: Ask, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(ansi_color=True)
        self._ask, self._clock = ask, now
        self._newest: TimedStatus | None = None
        self._before: TimedStatus | None = None
        self._message = self._fault = ""
        """What became of the last key, and why the node does not answer; empty: nothing is to be said."""
        self._finish_asked = float("-inf")
        self._place = 0
        """Place of the cap that keys change among those of the node."""

    def compose(self) -> ComposeResult:
        """Make the screen."""
        with VerticalScroll():
            yield Static(id="body")
        yield Footer(show_command_palette=False)

    async def on_mount(self) -> None:
        """Show the first state, and go on."""
        await self.look()
        self.set_interval(PERIOD_SECONDS, self.look)

    async def on_resize(self) -> None:
        """Fit the screen to another width."""
        self._show()

    async def look(self) -> None:
        """Ask for the state, and show it."""
        try:
            status = await asyncio.to_thread(self._ask, command="status")
        except NodeError as error:
            self._fault = f"{error}; asked again every {PERIOD_SECONDS:g} s"
        else:
            self._fault = ""
            self._before, self._newest = self._newest, TimedStatus(status, self._clock())
        self._show()

    async def action_order(self, command: str, **more: Any) -> None:
        """Send an order, and show what came of it."""
        try:
            answer = await asyncio.to_thread(self._ask, command=command, **more)
            switched = "on" if answer.get("slow") else "off"
            self._message = f"{command}: {answer.get('state') or answer.get('changed') or switched}"
        except NodeError as error:
            self._message = str(error)
        await self.look()

    async def action_slow(self) -> None:
        """Switch to the slow caps, or back."""
        await self.action_order("slow", slow=not (self._newest and self._newest.status.get("slow")))

    def action_next_cap(self) -> None:
        """Take the next cap to change."""
        self._place += 1
        self._show()

    async def action_step(self, up: bool) -> None:
        """Change the cap by a step."""
        if self._newest is not None:
            await self.action_order(**self._cap(self._newest).step(self._newest.status, up=up))

    def _cap(self, newest: TimedStatus) -> ChangedCap:
        caps = caps_of(newest.status)
        return caps[self._place % len(caps)]

    async def action_finish(self) -> None:
        """Finish the node, at the second press (rule 2)."""
        if self._clock() - self._finish_asked <= TWICE_SECONDS:
            return await self.action_order("finish")
        self._finish_asked = self._clock()
        self._message = "finish: press f once more to complete the groups under way and end the node"
        self._show()

    def _show(self) -> None:
        body = self.query_one("#body", Static)
        width = self.size.width - 2  # of the scroll bar
        if self._newest is None:
            body.update(Text(self._fault or "asking the node"))
            return
        cap = self._cap(self._newest).text(self._newest.status)
        body.update(_style_of(view_of(self._newest, self._before, self._fault or self._message, cap), width))


def _style_of(view: TopScreen, width: int) -> Text:
    """Return a screen with its title, and the names of columns and facts, set off."""
    rows = view.lines(width)
    text = Text("\n".join(rows), no_wrap=True, overflow="crop")
    text.stylize("bold reverse", 0, len(rows[0]))
    at = 0
    names = {name for name, _ in view.facts}
    for row in rows:
        if row.startswith("DEVICE "):
            text.stylize("bold", at, at + len(row))
        elif (name := row.partition(" ")[0]) in names:
            text.stylize("bold green" if name == "why" else "bold", at, at + len(name))
        at += len(row) + 1
    return text
