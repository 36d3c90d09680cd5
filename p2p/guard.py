"""What becomes of an exception: a handler's ends its stream and nothing else, a group of ours becomes one error.

py-libp2p lets an exception from any stream handler end the whole host; a remote reset is enough. So every handler,
on every transport, is registered `guarded`. Cancellation passes through. A peer that went away (`Unreachable`) is no
news, any other `P2PError` and a `LocalFault` are a line, and anything else is a bug of ours and is logged with its
traceback.
"""

import functools
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from p2p.errors import P2PError, PeerFault, Unreachable
from runtime.errors import LocalFault
from runtime.exception_groups import single_error

OURS: Final = (P2PError, LocalFault)
"""Errors that are raised on purpose."""
Kinds = type[BaseException] | tuple[type[BaseException], ...]

log = logging.getLogger("p2p")


@contextmanager
def one_error() -> Iterator[None]:
    """Raise one error in place of a group of `OURS`, as callers of `p2p` are promised single ones: this machine's fault
    before the peer's, both before bad luck."""
    with single_error(OURS, (LocalFault, PeerFault, Unreachable)):
        yield


def guarded(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`handler`, with every `Exception` logged and kept inside; a stream among its arguments is reset.

    The result is then None. Guarding twice is guarding once.
    """
    if getattr(handler, "guarded", False):
        return handler

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
    elif _is_only(fault, OURS):
        log.info("%s: %r", name, fault)
    else:
        log.error("%s failed", name, exc_info=fault)


def _is_only(fault: BaseException, kind: Kinds) -> bool:
    return isinstance(fault, kind) or (isinstance(fault, BaseExceptionGroup) and fault.split(kind)[1] is None)


async def _reset(args: tuple[Any, ...]) -> None:
    for argument in args:
        reset = getattr(argument, "reset", None)
        if reset is not None:
            try:
                await reset()
            except Exception as fault:
                log.debug("reset failed: %r", fault)
