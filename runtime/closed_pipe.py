"""Handle a standard output or standard error whose reader goes away, as `| head` does.

1. A closed pipe is no fault. When standard output closes, the command ends at once and in silence. Its exit code is the
   one that a shell reports after SIGPIPE.
2. When standard error closes, log lines are dropped: writing to it succeeds, and the process goes on.
3. Only these two streams are covered. A broken connection, or a broken pipe to a child process, stays an error.
4. Buffered output is written before the command counts as done: otherwise the interpreter writes it at exit, and
   reports a pipe that was closed by then as a fault.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


@contextmanager
def exit_on_closed_pipe(code: int) -> Iterator[None]:
    """Apply the rules of this module within the block. Raises SystemExit with `code` where standard output is
    closed."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _guard_stream(sys.stdout, code), _guard_stream(sys.stderr, None)
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


class _Pipe(io.FileIO):
    """A descriptor to write to, not closed with the object. `code`: exit code of the SystemExit raised once the reader
    is gone; None: later writes are dropped."""

    def __init__(self, descriptor: int, code: int | None) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._code = code

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            self._silence()
            if self._code is not None:
                raise SystemExit(self._code) from None
            return super().write(data)

    def _silence(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno(), inheritable=True)
        os.close(nowhere)


def _guard_stream(stream: TextIO, code: int | None) -> TextIO:
    """Wrap `stream` over a `_Pipe`. Return it unchanged where it has no descriptor: closed from the start, or a test's
    own."""
    try:
        descriptor = stream.fileno()
    except (AttributeError, io.UnsupportedOperation):
        return stream
    stream.flush()
    soon = getattr(stream, "line_buffering", False) or getattr(stream, "write_through", False)
    buffer = io.BufferedWriter(_Pipe(descriptor, code))
    return io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=soon)
