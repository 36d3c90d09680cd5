"""The lowest line of a terminal, written over again and again: the progress of what takes minutes.

1. It is there on a terminal only, cut to its width; elsewhere, and under `TERM=dumb`, nothing is written.
2. A line of the log takes its place (runtime/logs.py); the next progress comes below.
"""

import os
import shutil
import sys
from typing import Final, TextIO

_CLEAR: Final = "\r\x1b[K"


class BottomLine:
    """The lowest line of `stream` (None: stderr)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream, self._shown = stream, False

    @property
    def visible(self) -> bool:
        """Whether somebody can see it."""
        return self._out.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def show(self, text: str) -> None:
        """Write a text over what the line has."""
        if self.visible:
            self._write(_CLEAR + text[: shutil.get_terminal_size().columns - 1])
            self._shown = True

    def clear(self) -> None:
        """Leave the line empty, for another text."""
        if self._shown:
            self._write(_CLEAR)
            self._shown = False

    @property
    def _out(self) -> TextIO:
        return self._stream or sys.stderr

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except OSError:  # a closed terminal stops nothing
            self._shown = False


BOTTOM: Final = BottomLine()
"""That of this process's terminal."""
