"""TCP connections of a trio run from chosen addresses of this machine, by trio's own socket factory."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import trio

_SOURCE: Final[ContextVar[str]] = ContextVar("source", default="")


class _SourcedSockets(trio.abc.SocketFactory):
    """Makes the sockets of a trio run: one for TCP is bound to the address of the task that makes it, if it has one."""

    def socket(self, family: Any = -1, type: Any = -1, proto: int = -1) -> Any:
        opened = socket.socket(family, type, proto)
        if type == socket.SOCK_STREAM and _SOURCE.get():
            opened.bind((_SOURCE.get(), 0))
        return trio.socket.from_stdlib_socket(opened)


@contextmanager
def dialled_from(source: str) -> Iterator[None]:
    """Bind the connections that this task and its children open in the block to the local address `source`."""
    trio.socket.set_custom_socket_factory(_SourcedSockets())
    before = _SOURCE.set(source)
    try:
        yield
    finally:
        _SOURCE.reset(before)
