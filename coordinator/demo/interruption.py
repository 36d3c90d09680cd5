"""End a command that has processes and a folder to clear away: by SIGTERM as by Ctrl-C, and undisturbed meanwhile."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, with clean-up. Both signals work even if a shell set SIGINT to be
    ignored, as it does for a script's background processes."""

    def end(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with _handled(signal.SIGINT, signal.default_int_handler), _handled(signal.SIGTERM, end):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM during the clean-up, which is bounded in time."""
    with _handled(signal.SIGINT, signal.SIG_IGN), _handled(signal.SIGTERM, signal.SIG_IGN):
        yield


@contextmanager
def _handled(number: signal.Signals, handler: Callable[..., None] | signal.Handlers) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
