"""Signs that a start of vLLM goes on, from its log: it compiles and captures graphs for minutes."""

import contextlib
import logging
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def from_log(name: str, tell: Callable[[], None]) -> Iterator[None]:
    """Within the block call `tell` at each line of the logger `name`, also one that its handlers do not print."""
    logger, handler = logging.getLogger(name), _Signs(tell)
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
    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__(logging.INFO)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell()
