"""Replay a ledger out of a copy of run.sqlite: docs/protocol/ledger.md. ledger.py COPY TOLD"""

import hashlib
import json
import re
import sqlite3
import sys
from collections import Counter
from pathlib import Path

from documents import Map, check, pack, unpack

ACCOUNT = re.compile(r"fund:operator|escrow:run|rounding|forfeit|paid:\w+|node:\w+:(accrued|unvested|payable)")


def replay(path: str) -> tuple[Counter[str], dict[int, bytes], dict[bytes, Map]]:
    """Balances, hashes by number, ends by lease."""
    copy = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    rows = copy.execute("SELECT seq, at, kind, key, postings, facts, hash FROM entries ORDER BY seq").fetchall()
    stored = {account: amount for account, amount in copy.execute("SELECT account, amount FROM balances") if amount}
    copy.close()
    balances, hashes, ends, before = Counter[str](), dict[int, bytes](), dict[bytes, Map](), bytes(32)
    check(len({row[3] for row in rows}) == len(rows), "two entries under one key")
    for number, (seq, at, kind, key, packed, facts, named) in enumerate(rows, start=1):
        check(seq == number, f"entry {seq} stands where {number} belongs")
        postings, told = unpack(packed), unpack(facts)
        before = hashes[seq] = hashlib.sha256(before + pack([seq, at, kind, key, postings, facts])).digest()
        check(before == named, f"entry {seq} does not hash to what is stored")
        check(sum(amount for _, amount in postings) == 0, f"entry {seq} does not add up to 0")
        for account, amount in postings:
            check(ACCOUNT.fullmatch(account), f"there is no account {account}")
            balances[account] += amount
        others = [balances[account] for account, _ in postings if account != "fund:operator"]
        check(min(others, default=0) >= 0, f"an account falls below zero in entry {seq}")
        if kind.startswith("lease."):
            paid = [["escrow:run", -told["weight"]], [f"node:{told['node']}:accrued", told["weight"]]]
            check(postings == (paid if kind == "lease.accepted" else []), f"entry {seq} pays other than it says")
            check(key == f"lease:{told['lease'].hex()}", f"entry {seq} is of another lease than its key")
            ends[told["lease"]] = told
    check({account: amount for account, amount in balances.items() if amount} == stored, "the balances are others")
    return balances, hashes, ends


def main(path: str, told: str) -> None:
    (balances, hashes, ends), mine = replay(path), json.loads(Path(told).read_text())
    receipts = [unpack(unpack(bytes.fromhex(sealed))[2]) for sealed in mine["receipts"]]
    for receipt in receipts:
        check(hashes.get(receipt["entry"]) == receipt["entry_hash"], "the ledger was rewritten under a receipt")
        check(ends[receipt["lease"]]["weight"] == receipt["weight"], "the ledger pays other than the receipt says")
    earned = sum(receipt["weight"] for receipt in receipts)
    check(balances[f"node:{mine['peer']}:accrued"] == earned, "the account is not what the receipts add up to")
    print(json.dumps({"entries": len(hashes), "earned": earned, "balances": balances}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
