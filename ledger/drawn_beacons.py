"""Check the beacons of a ledger's lotteries against its heads.

Rules
1. The beacon of an `epoch.drawn` is the SHA-256 of the sealed LedgerHead over all entries before it. Where there is no
   such head, it is the SHA-256 of the run id and the hash of the entry before.
2. A ledger has at most one head per size, so nobody chooses a beacon once a head is out.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from echo2.ledger.ledger_entries import ORIGIN, Entry, Tampered
from echo2.protocol.ledger_heads import LedgerHead

EPOCH_DRAWN_KIND: Final = "epoch.drawn"


class _Drawn(msgspec.Struct):
    """The facts of `epoch.drawn` that are read here."""

    beacon: bytes


class DrawnBeacons:
    """The check of a run's beacons, over its entries in order. `heads`: each with its sealed bytes."""

    def __init__(self, run: bytes, heads: Iterable[tuple[LedgerHead, bytes]]) -> None:
        self._run, self._tip = run, ORIGIN
        self._by_size = {head.size: hashlib.sha256(sealed).digest() for head, sealed in heads}

    def take(self, entry: Entry) -> None:
        """Check the next entry (rule 1). Raises `Tampered`."""
        if entry.kind == EPOCH_DRAWN_KIND:
            self._check(entry)
        self._tip = entry.hash

    def _check(self, entry: Entry) -> None:
        try:
            beacon = msgspec.msgpack.decode(entry.facts, type=_Drawn).beacon
        except msgspec.MsgspecError as error:
            raise Tampered(entry.seq, f"its facts do not decode: {error}") from error
        head = self._by_size.get(entry.seq - 1)
        if beacon != (head or hashlib.sha256(self._run + self._tip).digest()):
            which = "of the LedgerHead" if head else "of the log's id and the hash"
            raise Tampered(entry.seq, f"its beacon is not the hash {which} up to the entry before it")
