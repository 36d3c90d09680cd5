"""Replay a ledger out of a copy of run.sqlite: docs/protocol/ledger.md. accounts.py COPY TOLD"""

import hashlib
import json
import re
import sqlite3
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

from documents import Map, check, pack, unpack

ACCOUNT = re.compile(r"fund:operator|escrow:run|rounding|forfeit|paid:\w+|node:\w+:(accrued|unvested|payable)|held:\w+")
WRONG = ("seeded-choice", "close-choices", "drift", "drift-median", "not-generated", "evidence", "near-ties")


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def tree(leaves: list[bytes]) -> bytes:
    """Return the tree hash of RFC 6962, section 2.1, over hashes of leaves."""
    if len(leaves) < 2:
        return leaves[0] if leaves else sha256(b"")
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\x01" + tree(leaves[:half]) + tree(leaves[half:]))


ONE, HOUR, HALF_LIFE = 1 << 32, 3_600_000, 168


def decayed(count: int, hours: int) -> int:
    """Let a count of audited work decay; n is found by halving the interval."""
    low, high, power = 0, ONE + 1, 1 << (32 * HALF_LIFE - hours % HALF_LIFE)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**HALF_LIFE <= power else (low, middle)
    left = (count * low // ONE) // 2 ** (hours // HALF_LIFE)
    return max(left, min(count, 3 * ONE)) if hours < 30 * 24 else 0


def weight(costs: Map | None, prompt: int, turns: list[list[int]]) -> int:
    """Return the weight of a group, token by token."""
    if costs is None:
        return sum((1000 * (prompt + sum(one)) * 2 + 128) // 256 for one in turns)
    cost = Fraction(sum(costs["given"] + costs["attention"] * n for n in range(1, prompt + 1)))
    for one in turns:
        before = prompt
        for place, tokens in enumerate(one):
            factor = Fraction(1) if place % 2 else Fraction(costs["decode"], costs["denominator"])
            for n in range(before + 1, before + tokens + 1):
                cost += factor * (costs["given"] + costs["attention"] * n)
            before += tokens
    return int(1000 * cost / costs["unit"] + Fraction(1, 2))


class Replay:
    """`ends`: by lease, with the (number, hash) that a receipt names. `groups`: codes of a node's groups in order."""

    def __init__(self, path: str) -> None:
        copy = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        rows = copy.execute("SELECT seq, at, kind, key, postings, facts, hash FROM entries ORDER BY seq").fetchall()
        stored = {account: amount for account, amount in copy.execute("SELECT account, amount FROM balances") if amount}
        self.rest = copy.execute("SELECT lease, document, entry FROM ends ORDER BY lease").fetchall()
        copy.close()
        self.balances, self.ends, self.before = Counter[str](), dict[bytes, tuple[Map, tuple[int, bytes]]](), bytes(32)
        self.groups, self.vouched = dict[str, list[str]](), set[str]()
        self.kept, self.lost = dict[tuple[str, int], list[tuple[bytes, int, int]]](), set[bytes]()
        self.doubted, self.audited, self.aged = dict[str, bool](), Counter[str](), dict[str, int]()
        self.unvested = dict[bytes, int]()
        self.moved, self.answers = Counter[str](), dict[bytes, str]()
        self.costs: dict[int, Map | None] = {0: None}
        self.plan: Map = {"plan": 0}
        self.payments: dict[bytes, Map] = {}
        check(len({row[3] for row in rows}) == len(rows), "two entries under one key")
        for self.number, row in enumerate(rows, start=1):
            self.entry(*row)
        for lease, document, entry in self.rest:
            check(entry is None or lease in self.ends, "an end is of an entry that tells of no ends")
            self.ends[lease] = unpack(document), (0, sha256(b"\x00" + document))
        check({account: n for account, n in self.balances.items() if n} == stored, "the balances are others")

    def entry(self, seq: int, at: int, kind: str, key: str, packed: bytes, facts: bytes, named: bytes) -> None:
        check(seq == self.number, f"entry {seq} stands where {self.number} belongs")
        postings, told = unpack(packed), unpack(facts)
        self.at = at
        self.before = sha256(self.before + pack([seq, at, kind, key, postings, facts]))
        check(self.before == named, f"entry {seq} does not hash to what is stored")
        check(sum(amount for _, amount in postings) == 0, f"entry {seq} does not add up to 0")
        for account, amount in postings:
            check(ACCOUNT.fullmatch(account), f"there is no account {account}")
            self.balances[account] += amount
        others = [self.balances[account] for account, _ in postings if account != "fund:operator"]
        check(min(others, default=0) >= 0, f"an account falls below zero in entry {seq}")
        if kind in ("lease.accepted", "lease.refused", "lease.expired"):
            account = f"held:{told['node']}" if told["code"] == "quarantine" else f"node:{told['node']}:accrued"
            if told["code"] == "canary":
                account = f"node:{told['node']}:unvested"
                self.unvested[told["lease"]] = told["weight"]
            paid = [["escrow:run", -told["weight"]], [account, told["weight"]]] if told["weight"] else []
            self.weigh(seq, kind == "lease.accepted", told)
            check(postings == (paid if kind == "lease.accepted" else []), f"entry {seq} pays other than it says")
            check(key == f"lease:{told['lease'].hex()}", f"entry {seq} is of another lease than its key")
            self.ends[told["lease"]] = told, (seq, named)
            self.groups.setdefault(told["node"], []).extend([told["code"]] * (kind != "lease.expired"))
            if kind == "lease.accepted":
                self.audit(told, at)
            if kind == "lease.accepted" or told["code"] == "evidence":
                self.doubted[told["node"]] = told["code"] in ("quarantine", "evidence")
            day = (told["node"], at // 86_400_000)
            if kind == "lease.accepted" and "calibration" in told and told.get("rules", 1) > 1 and day in self.kept:
                check(told["code"] == "quarantine", f"entry {seq} is outside quarantine on a day in doubt")
            if told["code"] == "quarantine":
                self.kept.setdefault(day, []).append((told["lease"], told["weight"], told.get("peak", 0)))
        elif kind == "costs.set":
            check(key == f"costs:{sha256(told['sealed']).hex()}" and not postings, f"entry {seq} sets other costs")
            self.costs[seq] = unpack(unpack(told["sealed"])[2])
        elif kind == "leases.ended":
            self.together(seq, told)
        elif kind == "lease.reversed":
            self.reversed(seq, key, postings, told)
        elif kind == "appeal.answered":
            check(not postings, f"entry {seq} moves something")
            self.answers[told["lease"]] = told["again"]
            check(key == f"{told['by']}:{told['lease'].hex()}:{told['asked']}", f"entry {seq} is of another appeal")
        elif kind == "canary.vested":
            account, weight = f"node:{told['node']}:", self.unvested.pop(told["lease"], 0)
            paid = [[f"{account}unvested", -weight], [f"{account}accrued", weight]]
            check(weight == told["weight"] and postings == paid, f"entry {seq} vests other than the canary earned")
            check(key == f"vested:{told['lease'].hex()}", f"entry {seq} is of another lease than its key")
        elif kind.startswith("payout."):
            check(key == self.payout(seq, kind, postings, told), f"entry {seq} is of another payment than its key")
        elif kind == "quarantine.ended":
            self.released_tranches(seq, key, postings, told)
        elif kind == "key.rotated":
            old, new = told["node"], told["successor"]
            check(
                key == f"key:{new}:{seq}" and new not in self.groups,
                f"entry {seq} passes a standing on to a key with one",
            )
            self.groups[new] = self.groups.pop(old, [])
            self.doubted[new] = self.doubted.pop(old, False)
            self.audited[new] = self.audited.pop(old, 0)
            if old in self.aged:
                self.aged[new] = self.aged.pop(old)
            if old in self.vouched:
                self.vouched = (self.vouched - {old}) | {new}
        elif kind == "node.vouched":
            self.vouched.add(told["node"])

    def payout(self, seq: int, kind: str, postings: list[list[Any]], told: Map) -> str:
        """Check an entry about a payment in money; return the key that it must have."""
        moves: list[list[Any]] = []
        if kind == "payout.planned":
            check(told["plan"] > self.plan["plan"], f"entry {seq}: a plan's number does not rise")
            self.plan = {**told, "left": [told["payments"], told["total"]]}
            check(not postings, f"entry {seq} moves something")
            return f"payouts:{told['plan']}"
        first = kind in ("payout.sent", "payout.restored")
        if kind == "payout.sent":
            check((told["plan"], told["rail"]) == (self.plan["plan"], self.plan["rail"]), f"entry {seq}: another plan")
            self.plan["left"] = [self.plan["left"][0] - 1, self.plan["left"][1] - told["amount"]]
            check(min(self.plan["left"]) >= 0, f"entry {seq}: the plan has no such payment")
        if kind == "payout.restored":
            check(told["plan"] >= 1 and len(told["file"]) == 32, f"entry {seq} is of no plan's file")
            if told["plan"] >= self.plan["plan"]:
                self.plan = {"plan": told["plan"], "rail": told["rail"], "left": [0, 0]}
        if first:
            check(told["payment"] not in self.payments, f"entry {seq} sends a payment twice")
            check(told["amount"] > 0 and told["amount"] % 10_000_000 == 0, f"entry {seq} is no amount of a rail")
            self.payments[told["payment"]] = {**told, "state": "sent", "last": 0, "asked": False}
        one = self.payments[told["payment"]]
        names = [f"node:{one['node']}:payable", f"paid:{one['rail']}"]
        if first:
            moves = [[names[0], -one["amount"]], [names[1], one["amount"]]]
        else:
            one["last"] += 1
            check((told["number"], told["node"]) == (one["last"], one["node"]), f"entry {seq} is not the next one")
        if kind == "payout.questioned":
            check(not one["asked"], f"entry {seq} asks while a question is open")
            one["asked"] = True
        elif kind in ("payout.confirmed", "payout.returned"):
            before, one["state"] = one["state"], kind.removeprefix("payout.")
            follows = before == "sent" or (before, one["state"]) == ("confirmed", "returned")
            check(follows or (one["asked"] and told["by"] == "operator"), f"entry {seq} cannot follow {before}")
            one["asked"] = False
            if (before == "returned") != (one["state"] == "returned"):
                source, target = names if before == "returned" else reversed(names)
                moves = [[source, -one["amount"]], [target, one["amount"]]]
        check(postings == moves, f"entry {seq} moves other than it says")
        return f"payout:{told['payment'].hex()}:{one['last']}"

    def weigh(self, seq: int, paid: bool, told: Map) -> None:
        """Check that the weight of a group follows from its lengths, by the costs that were set last."""
        if not paid or not told.get("turns"):
            return
        check(told["costs"] == max(self.costs), f"entry {seq} is weighed by costs that are not in force")
        played = [turns for turns in told["turns"] if sum(turns[::2])]
        follows = weight(self.costs[told["costs"]], told["prompt"], played) if played else 0
        check(told["weight"] == follows, f"entry {seq}: its lengths weigh {follows}")
        check(told.get("rollouts", len(told["turns"])) == len(told["turns"]), f"entry {seq}: lengths of other rollouts")

    def audit(self, told: Map, at: int) -> None:
        """Count the audited work of an accepted group's node."""
        node, rules = told["node"], told.get("rules", 1)
        if rules > 2:
            hours = max(0, at - self.aged.setdefault(node, at)) // HOUR
            self.audited[node] = decayed(self.audited[node], hours)
            self.aged[node] += hours * HOUR
        check(rules < 3 or told["audited"] in ("", "exact", "evidence", "canary", "rerun"), "audited in an unknown way")
        self.audited[node] += ONE * (rules < 3 or bool(told["audited"]))

    def reversed(self, seq: int, key: str, postings: list[list[Any]], told: Map) -> None:
        """Check an entry that reverses a verdict: a refused group is paid, or an accepted one is taken back."""
        node, weight, taken = told["node"], told["weight"], told["weight"] - told["lacking"]
        check(key == f"reversed:{told['lease'].hex()}", f"entry {seq} is of another lease than its key")
        self.weigh(seq, told["paid"], told)
        end, _ = self.ends.get(told["lease"], ({"code": told["code"], "weight": weight * (not told["paid"])}, None))
        check((end["code"], end["weight"] == 0) == (told["code"], told["paid"]), f"entry {seq}: another verdict")
        account, codes = f"node:{node}:accrued", self.groups.setdefault(node, [])
        source, target = ("escrow:run", account) if told["paid"] else (account, "escrow:run")
        paid = [[source, -taken], [target, taken]]
        check(postings == (paid if taken else []), f"entry {seq} pays other than it says")
        check(taken >= 0 and (not told["lacking"] or self.balances[account] == 0), f"entry {seq} takes too little")
        self.moved[node] += weight if told["paid"] else -taken
        self.audited[node] = max(0, self.audited[node] + ONE * told["audited"] * (1 if told["paid"] else -1))
        codes[:] = ["?" if code in WRONG else code for code in codes] if told["paid"] else [*codes[:-1], "drift"]

    def released_tranches(self, seq: int, key: str, postings: list[list[Any]], told: Map) -> None:
        """Check an entry that ends the quarantine of one node and day."""
        node, kept = told["node"], self.kept.pop((told["node"], told["day"]), [])
        check(key == f"quarantine:{node}:{told['day']}", f"entry {seq} is of another quarantine than its key")
        weight = sum(weight for _, weight, _ in kept)
        check((told["groups"], told["weight"]) == (len(kept), weight), f"entry {seq} ends another quarantine")
        rerun = told.get("calibration", b"")
        check(not rerun or (told["released"] and len(rerun) == 32), f"entry {seq} names a re-run that does not release")
        decided, again = told.get("decided", ""), self.answers.get(kept[0][0], "lost") if kept else "lost"
        if decided:
            check(told["released"] == (again in ("ok", "lost")), f"entry {seq} ends other than its check says")
            check((decided == "window") == (again == "lost"), f"entry {seq} names a check that there is not")
        elif told.get("rules", 1) > 1 and told["released"] and not rerun:
            check(all(peak < 4 for *_, peak in kept), f"entry {seq} releases a day whose evidence rose too high")
        target = f"node:{node}:accrued" if told["released"] else "escrow:run"
        check(postings == [[f"held:{node}", -weight], [target, weight]], f"entry {seq} pays other than it says")
        self.lost.update(() if told["released"] else (lease for lease, *_ in kept))
        self.doubted[node] = not told["released"]

    def together(self, seq: int, told: Map) -> None:
        """Check an entry that covers several lease ends."""
        mine = [(lease, document) for lease, document, entry in self.rest if entry == seq]
        named = [row for row in told["counts"] if row[0]]
        for node, _, refused, wrong in named:
            self.groups.setdefault(node, []).extend(["?"] * (refused - wrong) + ["drift"] * wrong)
        if not mine:
            return  # its ends are forgotten
        check(tree([sha256(b"\x00" + document) for _, document in mine]) == told["root"], f"entry {seq}: other ends")
        counts = Counter[tuple[str, str]]()
        for lease, document in mine:
            end = unpack(document)
            check(end["lease"] == lease and lease not in self.ends, f"entry {seq}: an end of another lease")
            self.ends[lease] = end, (0, b"")
            without = end["code"] in ("expired", "superseded", "declined")
            kinds = ("expired",) if without else ("refused", "wrong")[: 1 + (end["code"] in WRONG)]
            counts.update((end["node"], kind) for kind in kinds)
        kinds = ("expired", "refused", "wrong")
        for node, *sums in named:
            check([counts.pop((node, kind), 0) for kind in kinds] == sums, f"entry {seq} counts other ends than it has")
        rest = [sum(number for (_, one), number in counts.items() if one == kind) for kind in kinds]
        check([["", *rest]] * any(rest) + named == told["counts"], f"entry {seq} counts other ends than it has")
        check(told["ends"] == len(mine), f"entry {seq} counts other ends than it has")

    def rank(self, node: str) -> str:
        codes = self.groups.get(node, [])
        if self.doubted.get(node):
            return "new"
        idle = max(0, self.at - self.aged.get(node, self.at)) // HOUR
        audited = decayed(self.audited[node], idle) // ONE
        if audited >= 30 and not set(WRONG) & set(codes[-300:]):
            return "proven"
        return "known" if audited >= 3 or node in self.vouched else "new"


def main(path: str, told: str) -> None:
    replay, mine = Replay(path), json.loads(Path(told).read_text())
    receipts = [unpack(unpack(bytes.fromhex(sealed))[2]) for sealed in mine["receipts"]]
    for receipt in receipts:
        end, place = replay.ends.get(receipt["lease"], ({}, None))
        check(place == (receipt["entry"], receipt["entry_hash"]), "the ledger was rewritten under a receipt")
        check(end["weight"] == receipt["weight"], "the ledger pays other than the receipt says")
    away = replay.lost | set(replay.unvested) | {lease for kept in replay.kept.values() for lease, *_ in kept}
    earned = sum(receipt["weight"] for receipt in receipts if receipt["lease"] not in away)
    earned += replay.moved[mine["peer"]]
    rank = replay.rank(mine["peer"])
    check(replay.balances[f"node:{mine['peer']}:accrued"] == earned, "the account is not what the receipts add up to")
    print(json.dumps({"entries": replay.number, "earned": earned, "rank": rank, "balances": replay.balances}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
