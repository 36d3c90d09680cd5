"""The table of methods that a process answers: registered once, answered at every entrance (libp2p, HTTPS).

1. A method is registered before the network runs. Registering it again replaces the earlier handler.
2. An entrance reads a request within the method's limit, and passes it to `answer`. No exception of a handler ends the
   entrance.
3. A request counts as unanswered from its complete arrival on, at most `MOST_COUNTED_REQUESTS` of a peer for each
   method: a count tells how many peers are served, and a few peers with many requests make no crowd. Each thread has
   its own counts. `across` gives an entrance on another thread its own table, whose counts are included here.
4. Entrances note the peers that they answer BUSY, at most `MOST_BUSY_PEERS` between two calls of `take_busy`.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from echo2.p2p.limits.counts import take_one

MethodHandler = Callable[[str, bytes], Awaitable[bytes]]
"""(peer id, request bytes) -> answer bytes."""

METHOD_LIMIT: Final = 64
"""Bytes of a method's name."""
MOST_COUNTED_REQUESTS: Final = 2
MOST_BUSY_PEERS: Final = 4096


class HandlerEntry(NamedTuple):
    """A handler, and the size limit of its requests in bytes; a longer one is refused before it is read."""

    handler: MethodHandler
    limit: int


class Handlers:
    """A table of methods. `methods`: the handlers by name."""

    def __init__(self) -> None:
        self.methods: dict[str, HandlerEntry] = {}
        self._unanswered = Counter[str]()
        self._of_peers = Counter[tuple[str, str]]()
        """By (method, peer): all that are unanswered."""
        self._busy = set[str]()
        self._other_tables: list[Handlers] = []

    def serve(self, method: str, handler: MethodHandler, *, limit: int) -> None:
        """Answer `method`. An exception that leaves the handler fails that request alone, and is logged."""
        if len(method.encode()) > METHOD_LIMIT:
            raise ValueError(f"method name {method!r} exceeds {METHOD_LIMIT} bytes")
        self.methods[method] = HandlerEntry(handler, limit)

    async def answer(self, method: str, peer: str, request: bytes) -> bytes:
        """Answer one request that has arrived completely. Raises the handler's errors."""
        asker = method, peer
        counted = int(self._of_peers[asker] < MOST_COUNTED_REQUESTS)
        self._of_peers[asker] += 1
        self._unanswered[method] += counted
        try:
            return await self.methods[method].handler(peer, request)
        finally:
            self._unanswered[method] -= counted
            take_one(self._of_peers, asker)

    def count_unanswered(self, methods: Sequence[str]) -> int:
        """Return the number of requests for these methods that have arrived and are not answered yet (rule 3).
        Thread-safe."""
        own = sum(self._unanswered[method] for method in methods)
        return own + sum(other.count_unanswered(methods) for other in self._other_tables)

    def note_busy(self, peer: str) -> None:
        """Note that a request of a peer was answered BUSY."""
        if len(self._busy) < MOST_BUSY_PEERS:
            self._busy.add(peer)

    def take_busy(self) -> set[str]:
        """Return the peers that were answered BUSY since the last call (rule 4). Thread-safe."""
        busy, self._busy = self._busy, set()
        return busy.union(*(other.take_busy() for other in self._other_tables))

    def across(self, bridged: Callable[[MethodHandler], MethodHandler]) -> "Handlers":
        """Return the same methods for an entrance on another thread. `bridged` converts a handler of this thread into
        one that the other thread may call."""
        other = Handlers()
        for name, (handler, limit) in self.methods.items():
            other.serve(name, bridged(handler), limit=limit)
        self._other_tables.append(other)
        return other
