"""The entries of the ledger: a hash chain, double entry, integers only. Pure.

Rules
1. An entry has postings that sum to 0, or no postings: then it only states a fact.
2. An entry has an idempotency key, which is used once.
3. entry_hash = SHA-256(previous entry_hash || canonical bytes); the hash before the first entry is 32 zero bytes.
   Canonical bytes are MessagePack of [seq, at, kind, key, postings, facts], where facts are MessagePack themselves.
4. No account is ever below zero, except `fund:operator`.
5. The entries are also the leaves of a Merkle tree: leaf i is entry i + 1, and hashes as SHA-256(00 || canonical bytes
   of the entry): RFC 6962, section 2.1.
"""

import functools
import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from echo2.p2p.swarm import merkle, merkle_log

ORIGIN = bytes(32)


FUND, ESCROW, ROUNDING, FORFEIT = "fund:operator", "escrow:run", "rounding", "forfeit"


_ACCOUNT = re.compile(
    r"fund:operator|escrow:run|rounding|forfeit|paid:[a-z]+|node:[1-9A-HJ-NP-Za-km-z]+:(accrued|unvested|payable)|held:[1-9A-HJ-NP-Za-km-z]+"
)

_encode = msgspec.msgpack.Encoder().encode


class Posting(NamedTuple):
    """A change of one account: `amount` is added to it, in the unit of the price mode (points: milli-RE)."""

    account: str
    amount: int


class Entry(NamedTuple):
    """An entry of the chain. `at`: ms. `facts`: MessagePack.

    A new kind of ledger entry has its facts in a struct beside its rules; coordinator/accounts/ledger.py appends it.
    Where it moves anything, `_RULES` of ledger/ledger_replay.py says what follows from its facts. It has a row in
    docs/protocol/ledger.md, and a golden vector in tests/coordinator/accounts/test_entry_vectors.py."""

    seq: int
    at: int
    kind: str
    key: str
    postings: tuple[Posting, ...]
    facts: bytes
    hash: bytes


class Tip(NamedTuple):
    """The end of the ledger: the number of entries, and the hash of the last one."""

    entries: int
    hash: bytes


class LedgerFault(Exception):
    """An entry breaks the rules, by a bug of the caller. Nothing was written."""


class Tampered(Exception):
    """The stored ledger breaks its own rules at entry `seq`."""

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(f"ledger entry {seq}: {why}")
        self.seq = seq


def accrued_account(node: str) -> str:
    """Return the account that is credited with a node's accepted work. `node`: its peer id."""
    return f"node:{node}:accrued"


def unvested_account(node: str) -> str:
    """Return the account that keeps the weight of a node's canaries until it is vested. `node`: its peer id."""
    return f"node:{node}:unvested"


def quarantine_account(node: str) -> str:
    """Return the account that keeps the weight of a node's groups in quarantine. `node`: its peer id."""
    return f"held:{node}"


def transfer(source: str, target: str, amount: int) -> tuple[Posting, ...]:
    """Return the postings that move an amount between two accounts; none for 0."""
    return (Posting(source, -amount), Posting(target, amount)) if amount else ()


def canonical(seq: int, at: int, kind: str, key: str, postings: Sequence[Posting], facts: bytes) -> bytes:
    """Return the bytes of an entry that its hash covers (rule 3)."""
    return _encode([seq, at, kind, key, postings, facts])


def chain_hash(previous: bytes, entry: bytes) -> bytes:
    """Return the hash of an entry. `previous`: the hash before it. `entry`: its canonical bytes."""
    return hashlib.sha256(previous + entry).digest()


class GrowingRows:
    """The rows of a tree that is built from its first entry on (p2p/swarm/merkle_log.py), as many as are needed."""

    def __init__(self) -> None:
        self.size = 0
        self._rows: dict[int, bytes] = {}

    def append(self, entry: bytes) -> bytes:
        """Add an entry, its canonical bytes; return its row."""
        row = merkle_log.row(self.size, merkle.leaf_hash(entry, sha256), self._rows.__getitem__, sha256)
        self.size += 1
        width = len(row) // 32
        for level in range(width - 1):  # the left siblings that this leaf has covered
            del self._rows[self.size - 1 - (1 << level)]
        self._rows[self.size - 1] = row
        return row


def check_postings(postings: Sequence[Posting]) -> None:
    """Check that postings add up to 0 and name known accounts. Raises `LedgerFault`."""
    if sum([amount for _, amount in postings]) != 0:
        raise LedgerFault("postings do not sum to 0")
    for account, _ in postings:
        if not _is_account(account):
            raise LedgerFault(f"there is no account {account!r}")


@functools.lru_cache(maxsize=4096)
def _is_account(name: str) -> bool:
    return _ACCOUNT.fullmatch(name) is not None


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
