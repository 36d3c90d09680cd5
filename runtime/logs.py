"""Set up the log of a process: structlog's lines and the standard library's, in one form, to the same places.

1. Lines for people go to stderr, so that stdout stays for answers. Colours only on a terminal, and never under
   `NO_COLOR`.
2. A file of JSON lines is bounded: `FILES` files, each of `FILE_BYTES` or as its caller says; the oldest is deleted.
3. A log that cannot be written (disk full, closed pipe) never stops the process.
4. Bytes are shown as hex digits, and control characters are escaped, so that a message is one line, and no word of a
   peer's controls a terminal. A field's value is replaced by `***` where its name contains a word of `_SECRET_FIELDS`.
   A traceback shows no local variables.
"""

import logging
import os
import sys
from collections.abc import Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from echo2.runtime.bottom_line import BOTTOM
from echo2.runtime.errors import LocalFault

FILE_BYTES: Final = 16 << 20
FILES: Final = 5
LEVELS: Final = ("debug", "info", "warning", "error")
_TRACEBACKS: Final = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)  # a local variable may be a passphrase
)
_SECRET_FIELDS: Final = ("invite", "passphrase", "private", "secret", "seed")


def set_up_logging(
    *handlers: logging.Handler, level: str = "info", libraries: str | None = None, named: bool = False
) -> None:
    """Send every line of this process to `handlers`, made by `to_stream` and `to_file`.

    `level`: the least level of our own lines, one of `LEVELS`. `libraries`: that of lines that come through the
    standard library's logging, by default the same. `named`: show the logger's name.
    """
    root, least, before = logging.getLogger(), level.upper(), _before_rendering(named)
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        assert isinstance(handler.formatter, _Formatter)
        handler.formatter.foreign_pre_chain = before
        root.addHandler(handler)
    root.setLevel((libraries or level).upper())
    logging.raiseExceptions = False  # rule 3

    def own_logger(name: str = "echo2", *_: object) -> logging.Logger:
        logger = logging.Logger(name, least)  # has a level of its own, apart from that of the libraries
        logger.parent = root
        return logger

    structlog.configure(
        processors=[*before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=own_logger,
        cache_logger_on_first_use=False,
    )


def to_stream(stream: TextIO | None = None, *, json_lines: bool = False) -> logging.Handler:
    """Return a handler that writes to `stream` (None: stderr): lines for people, or JSON lines."""
    stream = stream or sys.stderr
    colours = stream.isatty() and not os.environ.get("NO_COLOR")
    people = structlog.dev.ConsoleRenderer(colors=colours, pad_event_to=0)
    handler = _AboveTheBottom(stream)
    render = structlog.processors.JSONRenderer() if json_lines else people
    handler.setFormatter(_Formatter(structlog.processors.format_exc_info, _readable_traceback, render))
    return handler


def to_file(path: Path, nbytes: int = FILE_BYTES) -> logging.Handler:
    """Return a handler that appends JSON lines to a file, under rule 2. `nbytes`: bytes of one file. Raises
    `LocalFault` where it cannot."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(path, maxBytes=nbytes, backupCount=FILES - 1, encoding="utf-8", errors="replace")
    except OSError as error:
        raise LocalFault(
            f"cannot write the log in {path.parent} ({error.strerror}): make that folder writable"
        ) from error
    as_json = structlog.processors.JSONRenderer(default=str)
    handler.setFormatter(_Formatter(_TRACEBACKS, as_json))
    return handler


class _AboveTheBottom(logging.StreamHandler[TextIO]):
    """A handler of a stream whose lines take the place of a terminal's lowest one."""

    def emit(self, record: logging.LogRecord) -> None:
        BOTTOM.clear()
        super().emit(record)


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """A formatter that ends with the processors `last`. `set_up_logging` adds the earlier processors for lines of the
    standard library."""

    def __init__(self, *last: Processor) -> None:
        super().__init__(processors=[self.remove_processors_meta, *last])


def _before_rendering(named: bool) -> Sequence[Processor]:
    return (
        *((structlog.stdlib.add_logger_name,) if named else ()),
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _readable,
    )


def _readable(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Show bytes as hex digits, all text on one line and without characters that control a terminal, and no secrets
    (rule 4)."""
    return {name: _printable_value(name, value) for name, value in event.items()}


def _readable_traceback(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Escape the control characters of a traceback, but for the ends of its lines: its last one may hold a peer's words
    (rule 4)."""
    if isinstance(shown := event.get("exception"), str):
        event["exception"] = "\n".join(map(_escape_controls, shown.split("\n")))
    return event


def _printable_value(name: str, value: object) -> object:
    if any(word in name.lower() for word in _SECRET_FIELDS):
        return "***"
    if isinstance(value, str) and name != "exception":
        return _escape_controls(value)
    return value.hex() if isinstance(value, bytes) else value


def _escape_controls(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
