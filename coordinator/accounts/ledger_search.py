"""Find entries of a ledger, and prove them: `echo2-coord ledger find` and `ledger proof`.

Rules
1. An entry is found by its number, its idempotency key, the id of its lease or payment, or the peer id that its facts
   name. The last reads the whole ledger, one entry in memory at a time.
2. A proof is that of the method `ledger` (docs/protocol/ledger.md), in the tree of the newest head that covers the
   entry, and is checked before it is shown.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_entries import ORIGIN, Entry, canonical, sha256
from echo2.p2p.swarm import merkle
from echo2.runtime.errors import LocalFault

_OF_LEASE: Final = ("lease:", "reversed:", "vested:", "appeal:", "operator:", "audit:", "payout:")
"""Prefixes of the keys of entries about a lease, and about a payment."""


def find(ledger: Ledger, what: str) -> Iterator[Entry]:
    """Yield the entries that are meant by `what` (rule 1)."""
    if what.isdecimal() and len(what) < 19:
        yield from filter(None, [ledger.entry(int(what))])
    elif _is_lease(what):
        entries = [entry for prefix in _OF_LEASE for entry in ledger.entries_with_prefix(f"{prefix}{what}")]
        yield from sorted(entries)
    elif (entry := ledger.find(what)) is not None:
        yield entry
    elif what:
        wanted = msgspec.msgpack.encode(what)
        yield from (entry for entry in ledger.entries() if wanted in entry.facts)


def _is_lease(what: str) -> bool:
    return len(what) == 32 and all(digit in "0123456789abcdef" for digit in what)


def format_entry(entry: Entry) -> str:
    """Return an entry as one line of JSON, bytes in hexadecimal digits."""
    told = {
        "entry": entry.seq, "at": entry.at, "kind": entry.kind, "key": entry.key,
        "postings": [list(posting) for posting in entry.postings],
        "facts": _plain(msgspec.msgpack.decode(entry.facts)), "hash": entry.hash.hex(),
    }  # fmt: skip
    return msgspec.json.encode(told).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def proof(database: Database, number: int) -> str:
    """Return the proof of an entry as one line of JSON (rule 2). Raises `LocalFault`."""
    ledger = Ledger(database)
    entry = ledger.entry(number)
    if entry is None:
        raise LocalFault(f"the ledger has no entry {number}: it has {ledger.tip().entries}")
    row = database.one("SELECT number, size FROM ledger_heads ORDER BY number DESC LIMIT 1")
    if row is None or row[1] < number:
        raise LocalFault(f"no head covers entry {number} yet: the next one does, within a quarter of an hour")
    head, size = row
    path, written = ledger.tree.inclusion(number, size), canonical(*entry[:6])
    before = ledger.entry(number - 1)
    root = ledger.tree.root(size)
    if not merkle.verify(root, written, number - 1, size, path, sha256):
        raise LocalFault(f"entry {number} is not in the tree of head {head}: run `echo2-coord ledger verify`")
    told = {
        "head": head, "size": size, "root": root.hex(), "entry": number, "canonical": written.hex(),
        "previous": (ORIGIN if before is None else before.hash).hex(), "path": [digest.hex() for digest in path],
    }  # fmt: skip
    return msgspec.json.encode(told).decode()
