"""Compare a node's Receipts with a copy of run.sqlite: docs/protocol/ledger.md, and its section Ends without an entry.
receipts.py COPY TOLD"""

import hashlib
import json
import sqlite3
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path

from documents import Map, check, unpack

WRONG = ("seeded-choice", "close-choices", "drift", "drift-median", "not-generated", "evidence", "near-ties")
Ends = dict[bytes, tuple[tuple[int, bytes], int]]
"""By lease: the (number, hash) of an entry that its Receipt names, and its weight."""


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def tree(leaves: list[bytes]) -> bytes:
    """Return the tree hash of RFC 6962, section 2.1, over hashes of leaves."""
    if len(leaves) < 2:
        return leaves[0] if leaves else sha256(b"")
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\x01" + tree(leaves[:half]) + tree(leaves[half:]))


def ends_of(path: str) -> Ends:
    """Return the ends of leases that the ledger tells of; check those without an entry of their own."""
    copy = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    rows = copy.execute("SELECT seq, kind, facts, hash FROM entries ORDER BY seq").fetchall()
    stored = copy.execute("SELECT entry, lease, document FROM ends ORDER BY entry, lease").fetchall()
    copy.close()
    ends, together = Ends(), dict[int, Map]()
    for seq, kind, facts, named in rows:
        told = unpack(facts)
        if kind in ("lease.accepted", "lease.refused", "lease.expired"):
            ends[told["lease"]] = (seq, named), told["weight"]
        elif kind == "leases.ended":
            together[seq] = told
    for entry, group in groupby(stored, key=lambda row: row[0]):
        documents = [document for _, _, document in group]
        if entry is not None:
            check(entry in together, "an end is of an entry that tells of no ends")
            check_together(entry, together[entry], documents)
        for document in documents:
            lease = unpack(document)["lease"]
            check(lease not in ends, "a lease has two ends")
            ends[lease] = (0, sha256(b"\x00" + document)), 0
    return ends


def check_together(seq: int, told: Map, documents: list[bytes]) -> None:
    """Check an entry that covers several lease ends."""
    check(tree([sha256(b"\x00" + document) for document in documents]) == told["root"], f"entry {seq}: other ends")
    kinds, counts = ("expired", "refused", "wrong"), Counter[tuple[str, str]]()
    for end in map(unpack, documents):
        without = end["code"] in ("expired", "superseded", "declined")
        its = ("expired",) if without else ("refused", "wrong")[: 1 + (end["code"] in WRONG)]
        counts.update((end["node"], kind) for kind in its)
    named = [row for row in told["counts"] if row[0]]
    for node, *sums in named:
        check([counts.pop((node, kind), 0) for kind in kinds] == sums, f"entry {seq} counts other ends than it has")
    rest = [sum(number for (_, one), number in counts.items() if one == kind) for kind in kinds]
    check([["", *rest]] * any(rest) + named == told["counts"], f"entry {seq} counts other ends than it has")
    check(told["ends"] == len(documents), f"entry {seq} counts other ends than it has")


def main(path: str, told: str) -> None:
    ends, earned = ends_of(path), 0
    for sealed in json.loads(Path(told).read_text())["receipts"]:
        receipt = unpack(unpack(bytes.fromhex(sealed))[2])
        place, weight = ends.get(receipt["lease"], (None, 0))
        check(place == (receipt["entry"], receipt["entry_hash"]), "the ledger was rewritten under a receipt")
        check(weight == receipt["weight"], "the ledger pays other than the receipt says")
        earned += weight
    print(json.dumps({"earned": earned}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
