"""Snapshots of the market's state, so that a start need not read the whole ledger.

Rules
1. A snapshot names the entry behind which it stands, and its hash. One that names another entry than the ledger has is
   passed over: the state then comes from the ledger alone.
2. One is stored at most every `EVERY`, between two epochs. Losing it loses nothing.
"""

import hashlib
from typing import Final

import msgspec

from coordinator.accounts.ledger import Ledger
from coordinator.database import Database
from coordinator.market.market_state import MarketState
from coordinator.market.packed_state import packed, unpacked

EVERY: Final = 600_000
"""Milliseconds."""
FACT: Final = "market snapshot"


class _Stored(msgspec.Struct, frozen=True):
    """A snapshot. `sum`: SHA-256 of `state`."""

    entry: int
    hash: bytes
    at: int
    sum: bytes
    state: bytes


class MarketSnapshots:
    """The newest snapshot of a run, in run.sqlite."""

    def __init__(self, database: Database, ledger: Ledger) -> None:
        self._database, self._ledger = database, ledger
        self._at: int | None = None

    def newest(self, run: bytes) -> tuple[MarketState, int] | None:
        """Return the state of the newest snapshot, and the entry behind which it stands; None: there is none."""
        stored = self._database.fact(FACT)
        if not isinstance(stored, bytes):
            return None
        try:
            one = msgspec.msgpack.decode(stored, type=_Stored)
            entry = self._ledger.entry(one.entry)
            if entry is None or entry.hash != one.hash or hashlib.sha256(one.state).digest() != one.sum:
                return None
            state = unpacked(run, one.state)
        except msgspec.MsgspecError:  # of an earlier version
            return None
        self._at = one.at
        return state, one.entry

    def store(self, state: MarketState, entry: int, at: int) -> None:
        """Store the state behind an entry if a snapshot is due (rule 2)."""
        if self._at is not None and 0 <= at - self._at < EVERY:
            return
        last = self._ledger.entry(entry)
        if last is None:
            return
        data = packed(state)
        one = _Stored(entry, last.hash, at, hashlib.sha256(data).digest(), data)
        self._database.set_fact(FACT, msgspec.msgpack.encode(one))
        self._at = at
