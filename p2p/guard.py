"""Contain exceptions: an exception in a handler ends its stream alone, and a group of our errors becomes one error.

py-libp2p ends the whole host on an exception from any stream handler, even on one that a remote reset causes. So every
handler, on every transport, is registered `guarded`. Cancellation passes through. A disconnected peer (`Unreachable`)
is logged at level debug, any other `P2PError` and a `LocalFault` as one line at level info. Any other exception is a
bug of ours, logged with its traceback.
"""

import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from echo2.p2p.errors import P2PError, PeerFault, Unreachable
from echo2.runtime.errors import LocalFault
from echo2.runtime.exception_groups import single_error

OWN_ERRORS: Final = (P2PError, LocalFault)
"""Errors that are raised on purpose."""

log = logging.getLogger("p2p")
"""The log of the whole package."""


@contextmanager
def one_error() -> Iterator[None]:
    """Raise one error in place of a group of `OWN_ERRORS`, since callers of `p2p` are promised single errors. A fault
    of this machine takes precedence over one of the peer, and both over `Unreachable`."""
    with single_error(OWN_ERRORS, (LocalFault, PeerFault, Unreachable)):
        yield


def guard_handler(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Wrap `handler` so that every `Exception` is logged and contained.

    After an exception, a stream among the arguments is reset, and the result is None. Guarding twice has no further
    effect."""
    if getattr(handler, "guarded", False):
        return handler  # type: ignore[return-value]

    @functools.wraps(handler)
    async def safe(*args: Any) -> Any:
        try:
            return await handler(*args)
        except Exception as fault:
            _report(handler, fault)
        except BaseExceptionGroup as group:
            faults, rest = group.split(Exception)
            if faults is not None:
                _report(handler, faults)
            if rest is not None:
                raise rest from None
        await _reset(args)
        return None

    safe.guarded = True  # type: ignore[attr-defined]
    return safe


def _report(handler: Callable[..., Awaitable[Any]], fault: BaseException) -> None:
    name = getattr(handler, "__qualname__", repr(handler))
    if _is_only(fault, Unreachable):
        log.debug("%s: %r", name, fault)
    elif _is_only(fault, OWN_ERRORS):
        log.info("%s: %r", name, fault)
    else:
        log.error("%s failed", name, exc_info=fault)


def _is_only(fault: BaseException, kind: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    return isinstance(fault, kind) or (isinstance(fault, BaseExceptionGroup) and fault.split(kind)[1] is None)


async def _reset(args: tuple[Any, ...]) -> None:
    for argument in args:
        reset = getattr(argument, "reset", None)
        if reset is not None:
            try:
                await reset()
            except Exception as fault:
                log.debug("reset failed: %r", fault)
