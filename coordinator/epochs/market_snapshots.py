"""Snapshots of the market's state, so that a start need not read the whole ledger.

Rules
1. A snapshot names the entry behind which it stands, and its hash. One that names another entry than the ledger has is
   passed over: the state then comes from the ledger alone.
2. One is stored at most every `SNAPSHOT_MS`, between two epochs. Losing it loses nothing.
3. It is written in parts, while the market goes on, beside the one before, which counts until the last part is there.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.market.market_state import MarketState
from echo2.coordinator.market.packed_state import pack_state, unpack_state

SNAPSHOT_MS: Final = 600_000
"""Milliseconds."""
FACT: Final = "market snapshot"


class _Stored(msgspec.Struct, frozen=True):
    """A snapshot. `sum`: SHA-256 of its parts. `place`: 0 or 1, in which they are."""

    entry: int
    hash: bytes
    at: int
    sum: bytes
    place: int
    parts: int


class MarketSnapshots:
    """The newest snapshot of a run, in run.sqlite."""

    def __init__(self, database: Database, ledger: Ledger) -> None:
        self._database, self._ledger = database, ledger
        self._at: int | None = None
        self._place = 0

    def newest(self, run: bytes) -> tuple[MarketState, int] | None:
        """Return the state of the newest snapshot, and the entry behind which it stands; None: there is none."""
        stored = self._database.fact(FACT)
        if not isinstance(stored, bytes):
            return None
        try:
            one = msgspec.msgpack.decode(stored, type=_Stored)
            parts = [self._database.fact(_name(one.place, part)) for part in range(one.parts)]
            if self._ledger.hash_of(one.entry) != one.hash or _sum(part or b"" for part in parts) != one.sum:
                return None
            state = unpack_state(run, parts)
        except msgspec.MsgspecError:  # of another form: the state is computed anew
            return None
        self._at, self._place = one.at, one.place
        return state, one.entry

    def storing(self, state: MarketState, entry: int, at: int) -> Iterator[bool]:
        """Return the steps that store the present state, behind an entry, if a snapshot is due (rules 2 and 3)."""
        digest = self._ledger.hash_of(entry)
        if digest is None or (self._at is not None and 0 <= at - self._at < SNAPSHOT_MS):
            return iter(())
        self._at = at
        return self._store(pack_state(state), entry, digest, at)

    def _store(self, parts: Iterable[bytes], entry: int, digest: bytes, at: int) -> Iterator[bool]:
        place, count, total = 1 - self._place, 0, hashlib.sha256()
        for part in parts:
            self._database.set_fact(_name(place, count), part)
            total.update(part)
            count += 1
            yield False
        one = _Stored(entry, digest, at, total.digest(), place, count)
        self._database.set_fact(FACT, msgspec.msgpack.encode(one))
        self._place = place
        while self._database.do("DELETE FROM facts WHERE name = ?", (_name(place, count),)):
            count += 1  # of a longer one before
            yield False


def _name(place: int, part: int) -> str:
    return f"{FACT} {place}.{part}"


def _sum(parts: Iterable[bytes]) -> bytes:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.digest()
