"""Signs that the start of an engine goes on, for whoever waits for it: a start that compiles and captures graphs takes
minutes, and a fixed time would end an honest one.

The engine's process says where signs go; the engine calls `sign` at each stage, and `from_log` makes a sign of each
line that a library writes to its log meanwhile.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator

_listeners: list[Callable[[], None]] = []


def listen(listener: Callable[[], None]) -> None:
    """Call `listener` alone at each sign from now on."""
    _listeners[:] = [listener]


def sign() -> None:
    """Tell that the start goes on."""
    for listener in _listeners:
        listener()


@contextlib.contextmanager
def from_log(name: str) -> Iterator[None]:
    """Within the block each line of the logger `name` is a sign, also one that its handlers do not print."""
    logger, handler = logging.getLogger(name), _Signs(logging.INFO)
    level, levels = logger.level, [one.level for one in logger.handlers]
    for one in logger.handlers:
        one.setLevel(max(one.level, level))
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        for one, before in zip(logger.handlers, levels, strict=True):
            one.setLevel(before)


class _Signs(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sign()
