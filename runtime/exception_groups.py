"""Split an exception group into its errors, or raise one of them in place of the group."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

Kinds = Sequence[type[BaseException]]


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the single errors of a group, nested groups included. Yield an error that is no group itself."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error


def foremost(error: BaseException, order: Kinds) -> BaseException:
    """Return the first leaf of the first kind in `order` that occurs; the first leaf where none does."""
    return min(leaves(error), key=lambda leaf: _rank(leaf, order))


@contextmanager
def single_error(kinds: tuple[type[BaseException], ...], order: Kinds) -> Iterator[None]:
    """Raise `foremost` in place of a group, if all its leaves are of `kinds`. Any other group passes unchanged: it
    holds a bug or a cancellation."""
    try:
        yield
    except BaseExceptionGroup as group:
        if group.split(kinds)[1] is not None:
            raise
        raise foremost(group, order) from None


def _rank(error: BaseException, order: Kinds) -> int:
    return next((place for place, kind in enumerate(order) if isinstance(error, kind)), len(order))
