"""End a command that has processes and a folder to clear away: by SIGTERM, and the end of its terminal, as by Ctrl-C,
and undisturbed meanwhile."""

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, with clean-up. Both signals work even if a shell set SIGINT to be
    ignored, as it does for a script's background processes. So does SIGHUP, unless it is ignored (`nohup`)."""

    def end(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    hangup = signal.getsignal(signal.SIGHUP)
    with (
        _handle_signal(signal.SIGINT, signal.default_int_handler),
        _handle_signal(signal.SIGTERM, end),
        _handle_signal(signal.SIGHUP, end if hangup is signal.SIG_DFL else hangup),
    ):
        yield


@contextmanager
def noting_the_end() -> Iterator[Callable[[float], bool]]:
    """Yield what waits for so many seconds, or until the first SIGINT or SIGTERM, and returns whether one has come. The
    block is not disturbed by it; a second one ends the process."""
    ends, writer = os.pipe()

    def note(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        os.write(writer, b"x")

    try:
        with _handle_signal(signal.SIGINT, note), _handle_signal(signal.SIGTERM, note):
            yield lambda seconds: bool(select.select([ends], [], [], seconds)[0])
    finally:
        os.close(ends)
        os.close(writer)


@contextmanager
def delay_interrupt() -> Iterator[None]:
    """Let Ctrl-C, and what ends this process as Ctrl-C does, take effect at the end of the block. No signal disturbs
    another thread than the main one."""
    before, came = signal.getsignal(signal.SIGINT), list[int]()
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    try:
        with _handle_signal(signal.SIGINT, lambda number, frame: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def ignore_signals() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM during the clean-up, which is bounded in time."""
    with _handle_signal(signal.SIGINT, signal.SIG_IGN), _handle_signal(signal.SIGTERM, signal.SIG_IGN):
        yield


@contextmanager
def _handle_signal(number: signal.Signals, handler: Callable[..., object] | int | None) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
