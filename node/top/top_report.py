"""`echo2-node top`: once, as lines of JSON, or as a screen that stays."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from echo2.node.errors import BadConfig
from echo2.node.top.top_view import TimedStatus, view_of

Ask = Callable[..., dict[str, Any]]
PERIOD: Final = 2.0
"""Seconds between two lines of JSON, and of the two looks from which `--once` has its rates."""


def once(ask: Ask, *, as_json: bool) -> list[str]:
    """Return one screen as lines, or the state as one line of JSON. Raises `NodeError`."""
    if as_json:
        return [json.dumps(ask(command="status"))]
    before = TimedStatus(ask(command="status"), time.monotonic())
    time.sleep(PERIOD / 4)
    newest = TimedStatus(ask(command="status"), time.monotonic())
    return view_of(newest, before).lines(shutil.get_terminal_size((80, 24)).columns)


def stream(ask: Ask) -> Iterator[str]:
    """Yield the state as a line of JSON, again and again. Raises `NodeError`."""
    while True:
        yield json.dumps(ask(command="status"))
        time.sleep(PERIOD)


def show(ask: Ask) -> None:
    """Show the screen until the owner leaves it. Raises `NodeError`, `BadConfig` without a terminal."""
    ask(command="status")  # where no node runs, that is the whole answer
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise BadConfig("top needs a terminal: take `echo2-node top --once`, or --json")
    from echo2.node.top.top_app import TopApp

    TopApp(ask).run()
