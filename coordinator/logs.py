"""The coordinator's log: lines for people on stderr, and always JSON lines in the run folder.

1. Colours only on a terminal, and never under `NO_COLOR`.
2. logs/coordinator.jsonl is bounded: `FILES` files of `FILE_BYTES`, the oldest goes.
3. A log that cannot be written (disk full, closed pipe) never stops the run.
4. Bytes are shown as hex digits. Keys and passphrases are never given to a logger.
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

from runtime.errors import LocalFault

FILE: Final = "coordinator.jsonl"
FILE_BYTES: Final = 16 << 20
FILES: Final = 5
LEVELS: Final = ("debug", "info", "warning", "error")


def set_up(folder: Path | None, level: str = "info", stream: TextIO | None = None) -> None:
    """Send structlog and the standard library's logging to `stream` (None: stderr) and to `folder`/coordinator.jsonl
    (None: no file). `level`: one of `LEVELS`, of both. Raises `LocalFault` where the folder cannot be written."""
    stream = stream or sys.stderr
    handlers: list[logging.Handler] = [logging.StreamHandler(stream)]
    handlers[0].setFormatter(_formatter(structlog.dev.ConsoleRenderer(colors=_colours(stream), pad_event_to=0)))
    if folder is not None:
        handlers.append(_file_handler(folder))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level.upper())
    logging.raiseExceptions = False  # rule 3
    structlog.configure(
        processors=[*_shared(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _file_handler(folder: Path) -> logging.Handler:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(
            folder / FILE, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8", errors="replace"
        )
    except OSError as error:
        raise LocalFault(f"cannot write the log in {folder}: {error.strerror}") from error
    as_json = structlog.processors.JSONRenderer(default=str)
    handler.setFormatter(_formatter(structlog.processors.dict_tracebacks, as_json))
    return handler


def _formatter(*last: Processor) -> logging.Formatter:
    processors = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
    return structlog.stdlib.ProcessorFormatter(processors=processors, foreign_pre_chain=_shared())


def _shared() -> Sequence[Processor]:
    return (
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _hex,
    )


def _hex(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    return {key: value.hex() if isinstance(value, bytes) else value for key, value in event.items()}


def _colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR")
