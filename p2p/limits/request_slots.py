"""Slots for requests in progress. Pure: no clock.

1. A request occupies a slot from the arrival of its method's name until it is answered. Each class of methods has slots
   of its own (`CLASSES`), so that an overload in another class never keeps submissions out.
2. A party (p2p/limits/origin.py) has at most `PER_PARTY` slots per class: many keys of one owner cannot fill a class.
3. No request waits for a slot: without a free one, the answer is BUSY. A request delayed by its rate limit has no slot
   yet. A method whose answer must wait, such as for the next plan, is in the class `WAITING_CLASS`, with one slot per
   peer.
4. Before its method is known, and while its rate limit delays it, a request costs a stream and a few bytes. A peer has
   at most `PER_PEER` of these streams, a party `STREAMS_PER_PARTY`, all together `STREAMS`.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from echo2.p2p.errors import Busy
from echo2.p2p.limits.origin import Origin

PER_PEER: Final = 32
PER_PARTY: Final = 32
STREAMS_PER_PARTY: Final = 128
STREAMS: Final = 4096
WAITING_CLASS: Final = "waiting"
OTHER_CLASS: Final = "other"
CLASSES: Final = {
    "submit": 256, "receipts": 256, "hello": 128, "lease": 256, "step": 256, "gossip": 128, WAITING_CLASS: 256,
    OTHER_CLASS: 128,
}  # fmt: skip
"""Slots per class."""
T = TypeVar("T")

CLASS_OF: Final = {
    "submit": "submit",
    "verdicts": "receipts",
    "acknowledge": "receipts",
    "hello": "hello",
    "lease": "lease",
    "step": "step",
    "gossip": "gossip",
    "plan": WAITING_CLASS,
}
"""The class of each method; the others are in `OTHER_CLASS`."""
ALL_SLOTS: Final = sum(CLASSES.values())
"""Slots of all classes together."""


class RequestSlots:
    """The slots of one entrance of this peer (libp2p, HTTPS)."""

    def __init__(self) -> None:
        self._streams = Counter[str]()
        self._streams_of_party = Counter[str]()
        self._in_use = Counter[str]()
        self._in_use_by = Counter[tuple[str, str]]()

    @contextmanager
    def stream(self, origin: Origin) -> Iterator[None]:
        """Count a request from its stream on, before its method is known (rule 4). Raises `Busy`."""
        peer, party = origin
        if self._streams[peer] >= PER_PEER or self._streams_of_party[party] >= STREAMS_PER_PARTY:
            raise Busy("too many requests at once")
        if self._streams.total() >= STREAMS:
            raise Busy("too many requests of all peers together")
        with _count_during(self._streams, peer), _count_during(self._streams_of_party, party):
            yield

    @contextmanager
    def at_work(self, method: str, origin: Origin) -> Iterator[None]:
        """Occupy a slot for a request. Raises `Busy`."""
        kind = CLASS_OF.get(method, OTHER_CLASS)
        holder, most = (origin.connection, 1) if kind == WAITING_CLASS else (origin.party, PER_PARTY)
        if self._in_use_by[kind, holder] >= most or self._in_use[kind] >= CLASSES[kind]:
            raise Busy(f"too many requests for {method} in progress")
        with _count_during(self._in_use, kind), _count_during(self._in_use_by, (kind, holder)):
            yield


@contextmanager
def _count_during(counter: Counter[T], name: T) -> Iterator[None]:
    counter[name] += 1
    try:
        yield
    finally:
        counter[name] -= 1
        if not counter[name]:
            del counter[name]
