"""A program at a terminal of its own, as a person has it: what it prints with the time, and what is typed."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

ROWS: Final = 24
COLUMNS: Final = 80


class Terminal:
    """One program. `rows`: what it printed so far, as (seconds since its start, text)."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        self._own, others = pty.openpty()
        fcntl.ioctl(others, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            argv, env=dict(env), cwd=cwd, stdin=others, stdout=others, stderr=others, start_new_session=True
        )
        os.close(others)
        self.rows: list[tuple[float, str]] = []
        self._rest = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def until(self, is_there: Callable[[str], object], seconds: float) -> float:
        """Wait for a row, or the beginning of one, that `is_there`; return when it came, in seconds since the start."""
        while time.monotonic() - self.began < seconds:
            for at, text in [*self.rows, (time.monotonic() - self.began, self._rest)]:
                if is_there(text):
                    return at
            assert self.process.poll() is None or self._reader.is_alive(), f"it has ended:\n{self.text()}"
            time.sleep(0.05)
        raise AssertionError(f"waited {seconds:g} s in vain:\n{self.text()}")

    def end(self, seconds: float) -> int:
        """Wait for its end; return its exit code. It is killed where that does not come in time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self._reader.join(5)
            os.close(self._own)

    def kill(self) -> None:
        """Kill it, where it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def text(self) -> str:
        return "\n".join([text for _, text in self.rows] + [self._rest])

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._own, 65_536)
            except OSError:  # its last process has closed it
                return
            if not piece:
                return
            *rows, self._rest = (self._rest + piece.decode(errors="replace").replace("\r", "")).split("\n")
            self.rows += [(time.monotonic() - self.began, row) for row in rows]
