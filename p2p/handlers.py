"""The methods that a process answers: registered once, answered at every entrance (libp2p, HTTPS).

1. A method is registered before the network runs. Registered again, it replaces the one before.
2. An entrance reads a request within the method's limit, and has it answered by `answer`. Nothing that a handler raises
   ends the entrance.
3. A request counts as unanswered from the moment when it has come whole. Each thread counts its own: `across` gives an
   entrance on another thread a table of its own, and what it counts counts here, too.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

MethodHandler = Callable[[str, bytes], Awaitable[bytes]]
"""(peer id, request bytes) -> answer bytes."""

METHOD_LIMIT: Final = 64
"""Bytes of a method's name."""


class HandlerEntry(NamedTuple):
    """`limit`: bytes of a request; a longer one is refused before it is read."""

    handler: MethodHandler
    limit: int


class Handlers:
    """`methods`: what is answered, by name."""

    def __init__(self) -> None:
        self.methods: dict[str, HandlerEntry] = {}
        self._unanswered = Counter[str]()
        self._elsewhere: list[Handlers] = []

    def serve(self, method: str, handler: MethodHandler, *, limit: int) -> None:
        """Answer `method`. An exception that leaves the handler fails that request alone, and is logged."""
        if len(method.encode()) > METHOD_LIMIT:
            raise ValueError(f"method name {method!r} exceeds {METHOD_LIMIT} bytes")
        self.methods[method] = HandlerEntry(handler, limit)

    async def answer(self, method: str, peer: str, request: bytes) -> bytes:
        """Answer one request that has come whole. Raises what the handler raises."""
        self._unanswered[method] += 1
        try:
            return await self.methods[method].handler(peer, request)
        finally:
            self._unanswered[method] -= 1

    def unanswered(self, methods: Sequence[str]) -> int:
        """Return how many requests for these methods have come whole and are not answered yet. Safe from any thread."""
        own = sum(self._unanswered[method] for method in methods)
        return own + sum(other.unanswered(methods) for other in self._elsewhere)

    def across(self, bridged: Callable[[MethodHandler], MethodHandler]) -> "Handlers":
        """Return the same methods for an entrance on another thread. `bridged`: a handler of this one as that one may
        call it."""
        other = Handlers()
        for name, (handler, limit) in self.methods.items():
            other.serve(name, bridged(handler), limit=limit)
        self._elsewhere.append(other)
        return other
