"""The state of logging in this process, for tests that set it up."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def logging_as_before() -> Iterator[None]:
    """Put handlers and settings back at the end, and close the handlers that came meanwhile."""
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    try:
        yield
    finally:
        for handler in root.handlers:
            if handler not in handlers:
                handler.close()
        root.handlers[:], logging.raiseExceptions = handlers, raising
        root.setLevel(level)
        structlog.reset_defaults()
