"""Task groups raise groups of errors; callers of `p2p` are promised single ones."""

from collections.abc import Iterator
from contextlib import contextmanager

from p2p.errors import LocalFault, P2PError, PeerFault, Unreachable


@contextmanager
def one_error() -> Iterator[None]:
    """Raise one error in place of a group of `P2PError`s: ours before the peer's, both before bad luck. A group with
    anything else in it passes unchanged: that is a bug, or a cancellation."""
    try:
        yield
    except BaseExceptionGroup as group:
        if group.split(P2PError)[1] is not None:
            raise
        raise min(_leaves(group), key=_rank) from None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _rank(error: BaseException) -> int:
    order = (LocalFault, PeerFault, Unreachable)
    return next((place for place, kind in enumerate(order) if isinstance(error, kind)), len(order))
