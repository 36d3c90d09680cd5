"""Slots for requests at work. Pure: no clock.

1. A request takes a slot once it has arrived whole, and leaves it when it is answered. Nothing is held for bytes that
   have not come: until then it occupies a stream and its bytes (p2p/limits/shares.py). Each class of methods has slots
   of its own (`CLASSES`), so that an overload in another class never keeps submissions out.
2. A party (p2p/limits/origin.py) has at most `PER_PARTY` slots per class: many keys of one owner cannot fill a class.
   A quarter of each class is reserved for parties with accepted work.
3. No request waits for a slot: without a free one, the answer is BUSY. A request delayed by its rate limit has no slot
   yet. A method whose answer must wait, such as for the next plan, is in the class `WAITING_CLASS`, with one slot per
   peer.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from echo2.p2p.errors import Busy
from echo2.p2p.limits.origin import Origin

PER_PEER: Final = 32
"""Requests that a peer sends to one other at a time; further ones wait at the sender."""
PER_PARTY: Final = 32
WAITING_CLASS: Final = "waiting"
OTHER_CLASS: Final = "other"
CLASSES: Final = {
    "submit": 256, "receipts": 256, "hello": 128, "lease": 256, "step": 256, "gossip": 128, WAITING_CLASS: 256,
    OTHER_CLASS: 128,
}  # fmt: skip
"""Slots per class."""

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
SMALL_ANSWER_BYTES: Final = 64 << 10
"""Bytes of an answer that leaves its slot before it is sent. A larger one keeps the slot until it is sent, which bounds
the memory of answers that nobody reads."""


class RequestSlots:
    """The slots of one entrance of this peer (libp2p, HTTPS)."""

    def __init__(self) -> None:
        self._in_use = Counter[str]()
        self._of_strangers = Counter[str]()
        self._in_use_by = Counter[tuple[str, str]]()

    @contextmanager
    def at_work(self, method: str, origin: Origin) -> Iterator[None]:
        """Occupy a slot for a request. Raises `Busy`."""
        kind = CLASS_OF.get(method, OTHER_CLASS)
        holder, most = (origin.connection, 1) if kind == WAITING_CLASS else (origin.party, PER_PARTY)
        stranger, slots = not origin.is_known, CLASSES[kind]
        crowded = stranger and self._of_strangers[kind] >= slots - slots // 4
        if crowded or self._in_use_by[kind, holder] >= most or self._in_use[kind] >= slots:
            raise Busy(f"too many requests for {method} in progress")
        self._count(kind, holder, stranger, 1)
        try:
            yield
        finally:
            self._count(kind, holder, stranger, -1)

    def _count(self, kind: str, holder: str, stranger: bool, more: int) -> None:
        self._in_use[kind] += more
        self._of_strangers[kind] += more * stranger
        self._in_use_by[kind, holder] += more
        if not self._in_use_by[kind, holder]:
            del self._in_use_by[kind, holder]
