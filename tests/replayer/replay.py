"""A second replayer, after docs/protocol/ledger.md: verifies an export, and prints the state. replay.py EXPORT

It needs the standard library, msgpack and Ed25519 (cryptography), and nothing of the product. It ends with exit code 81
at the first fault."""

import gzip
import hashlib
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgpack
from balance_rules import Market
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from epoch_rules import DAY, HOUR, ONE, Map, Wrong, check, faded

BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
ACCOUNT = re.compile(
    rf"fund:operator|escrow:run|rounding|forfeit|paid:[a-z]+|node:[{BASE58}]+:(accrued|unvested|payable)|held:[{BASE58}]+"
)
WRONG = ("seeded-choice", "close-choices", "drift", "drift-median", "not-generated", "evidence", "near-ties")
NEW = {"accepted": 0, "groups": 0, "wrong": 0, "vouched": False, "banned": None, "code": "", "since": 0, "until": 0}
NEW |= {"doubted": 0, "audited": 0, "aged": 0}


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, strict_map_key=False)


def opened(sealed: bytes, kind: str, run: bytes, role: Map, without: Any = ()) -> Map:
    """Return the payload of a sealed document, if enough keys of the role signed it."""
    (named, of, payload, signatures), good = unpack(sealed), set()
    covered = b"echo2/1/" + kind.encode() + run + len(payload).to_bytes(8, "big") + payload
    for key, signature in signatures:
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, covered)
            good.add(key)
        except (InvalidSignature, ValueError):
            continue
    signers = (good & set(role["keys"])) - set(without)
    check((named, of) == (kind, run) and len(signers) >= role["threshold"], f"this {kind} is not signed by its role")
    return dict(unpack(payload))


def roots_of(sealed: list[bytes]) -> list[Map]:
    """Return the chain of Roots."""
    chain: list[Map] = []
    for document in sealed:
        root = unpack(unpack(document)[2])
        for signers in [*chain[-1:], root]:
            opened(document, "root", (chain or [root])[0]["run"], signers["roles"]["root"])
        sound = all(len(set(r["keys"])) == len(r["keys"]) >= r["threshold"] >= 1 for r in root["roles"].values())
        check(root["serial"] == len(chain) + 1 and sound and len(document) <= 65536, "this Root does not follow")
        check(root["run"] == (chain or [root])[0]["run"], "this Root is of another run")
        check({"root", "policy", "channel", "ledger"} <= root["roles"].keys(), "this Root lacks a role")
        chain.append(root)
    return chain


def kept(sealed: bytes, kind: str, chain: list[Map], vouched: bool, signs: str = "ledger", time: str = "issued") -> Map:
    """Open a document that is kept for good. `vouched`: a later one that counts names it. `time`: the field with it."""
    gone = set() if vouched else {key for root in chain for key in root.get("revoked", {})}
    signer = {key for key, _ in unpack(sealed)[3]}
    for place in reversed(range(len(chain))):
        role = chain[place]["roles"][signs]
        if len(signer & set(role["keys"])) < role["threshold"]:
            continue
        document = opened(sealed, kind, chain[0]["run"], role, gone)
        later = [root.get("issued") for root in chain[place + 1 : place + 2]]
        check(vouched or later in ([], [None]) or document[time] < later[0], f"this {kind} is of a replaced key")
        return document
    raise Wrong(f"this {kind} is signed by no keys of its role")


def names(head: Map, before: bytes | None) -> bool:
    """Tell whether a head names the sealed head before it; None: it is the first."""
    if before is None or head.get("before") is None:
        return bool(head.get("previous") == (None if before is None else sha256(before)))
    return bool(head["before"] == sha256(unpack(before)[2]))


def logs_of(sealed: list[bytes], chain: list[Map]) -> list[Map]:
    """Return the run's logs: the first, and those that began behind a restored ledger."""
    logs: list[Map] = [{"id": chain[0]["run"], "serial": 0, "number": 0, "size": 0}]
    for document in sealed:
        log = kept(document, "log.restored", chain, False, "root", "restored")
        shown = kept(log["head"], "ledgerhead", chain, True)
        follows = (log["serial"], log["old"]) == (len(logs), logs[-1]["id"])
        check(follows and shown["log"] in [one["id"] for one in logs], f"log {len(logs)} does not follow")
        check(shown["size"] >= log["size"] >= 1 and shown["number"] >= log["number"], "nothing of a log was lost")
        logs.append(log | {"id": sha256(unpack(document)[2]), "document": document, "known": shown["size"]})
    return logs


def heads_of(sealed: list[bytes], chain: list[Map], logs: list[Map]) -> list[Map]:
    heads: list[Map] = []
    for document in reversed(sealed):
        heads.insert(0, kept(document, "ledgerhead", chain, bool(heads) and names(heads[0], document)))
    for k, head in enumerate(heads):
        before = heads[k - 1] if k else {"size": 0, "issued": -1}
        follows = head["number"] == k + 1 and names(head, sealed[k - 1] if k else None)
        (own,) = [log for log in logs if log["id"] == head["log"]]
        place = head["number"], head["size"]
        check(own["serial"] == 0 or (own["number"] < place[0] and own["size"] < place[1]), "it is before its log")
        later = logs[own["serial"] + 1 :]
        check(all(place[0] <= log["number"] and place[1] <= log["size"] for log in later), "it is behind its log")
        check(follows and head["size"] > before["size"] and head["issued"] > before["issued"], f"head {k + 1} is wrong")
    return heads


def weight(costs: Map | None, prompt: int, turns: list[list[int]]) -> int:
    """Return the weight of a group that one node made alone."""
    if costs is None:
        return sum((2000 * (prompt + sum(one)) + 128) // 256 for one in turns)

    def cost(before: int, tokens: int) -> int:
        seen = (before + tokens) * (before + tokens + 1) // 2 - before * (before + 1) // 2
        return int(costs["given"] * tokens + costs["attention"] * seen)

    total, whole = costs["denominator"] * cost(0, prompt), costs["unit"] * costs["denominator"]
    for one in turns:
        for place, tokens in enumerate(one):
            factor = costs["denominator"] if place % 2 else costs["decode"]
            total += factor * cost(prompt + sum(one[:place]), tokens)
    return (2000 * total + whole) // (2 * whole)


def begun(costs: Map | None, prompt: int, first: list[int]) -> int:
    return weight(costs, prompt, [[one] for one in first]) - weight(costs, prompt, [[] for _ in first])


class Replay:
    """A ledger computed again. `market`: None in a run of points, where weight moves at the verdict."""

    def __init__(self, chain: list[Map], market: Market | None) -> None:
        self.chain, self.market = chain, market
        self.seq, self.tip, self.keys, self.tree = 0, bytes(32), set[str](), list[bytes]()
        self.balances, self.accounts, self.work = Counter[str](), dict[str, Map](), dict[str, list[int]]()
        self.costs: tuple[int, Map | None] = (0, None)
        self.verdicts, self.canaries = dict[bytes, tuple[str, str, int, bool]](), dict[bytes, tuple[str, int]]()
        self.quarantine: dict[tuple[str, int], list[int]] = {}
        self.plan: Map = {"plan": 0}
        self.payments: dict[bytes, Map] = {}
        self.roots, self.logs = dict[int, bytes](), [chain[0]["run"]]

    def take(self, written: bytes, named: bytes) -> None:
        """Verify the next entry. Raises `Wrong`, and whatever bytes of another form lead to."""
        seq, at, kind, key, postings, facts = unpack(written)
        check(seq == self.seq + 1, f"entry {seq} stands in its place")
        check(msgpack.packb([seq, at, kind, key, postings, facts]) == written, "its bytes are not canonical")
        check(sha256(self.tip + written) == named and key not in self.keys, "its hash is wrong, or its key known")
        check(all(ACCOUNT.fullmatch(account) for account, _ in postings), "it names an unknown account")
        check(sum(amount for _, amount in postings) == 0, "its postings do not add up to 0")
        told = unpack(facts)
        rule = None if self.market and kind == "points.issued" else RULES.get(kind)
        due, moves = rule(self, seq, at, kind, told) if rule else (key, [])
        if self.market and not kind.startswith("payout."):
            moves = []
        if self.market is None or not self.market.take(at, kind, key, postings, facts, told):
            follows = [list(one) for one in moves if one[1]]
            check((key, postings) == (due, follows), f"the key {due} and the postings {follows} follow")
        for account, amount in postings:
            self.balances[account] += amount
        below = [account for account, _ in postings if self.balances[account] < 0 and account != "fund:operator"]
        check(not below, f"{below} falls below zero")
        self.stand(seq, at, kind, told)
        self.seq, self.tip, leaf = seq, named, sha256(b"\x00" + written)
        self.keys.add(key)
        for _ in range((seq & -seq).bit_length() - 1):
            leaf = sha256(b"\x01" + self.tree.pop() + leaf)
        self.tree.append(leaf)

    def begin(self, logs: list[Map], kind: str, facts: bytes) -> None:
        """Compare an entry that begins a log with the log's document. The entry was taken."""
        if kind == "log.restored":
            told = unpack(facts)
            log = logs[told["serial"]]
            due = {"rules": 1, "serial": log["serial"], "log": log["id"], "size": log["size"], "known": log["known"]}
            check(told == due | {"sealed": log["document"]} and told["serial"] > 0, "it repeats no document")
            check(self.seq > log["size"] and self.roots[log["size"]] == log["root"], "it restores other entries")
            self.logs.append(log["id"])
        if self.seq in [log["size"] for log in logs]:
            self.roots[self.seq] = self.root()

    def root(self) -> bytes:
        root = self.tree[-1]
        for left in reversed(self.tree[:-1]):
            root = sha256(b"\x01" + left + root)
        return root

    def weigh(self, told: Map, prompt: int, follows: Any) -> None:
        if not prompt:
            check(not (self.market and told["weight"]), "it weighs nothing without lengths")
        else:
            check(told.get("costs", 0) == self.costs[0], "it is weighed by Costs that are not in force")
            check(told["weight"] == follows(self.costs[1]), f"it weighs {follows(self.costs[1])}")

    def group(self, told: Map) -> None:
        def follows(costs: Map | None) -> int:
            played = [turns for turns in told["turns"] if sum(turns[::2])]
            whole = weight(costs, told.get("prompt", 0), played) if played else 0
            return whole - begun(costs, told.get("prompt", 0), told.get("begun", []))

        self.weigh(told, "turns" in told, follows)

    def ended(self, seq: int, at: int, kind: str, told: Map) -> tuple[str, Any]:
        node, code, amount = told["node"], told["code"], told["weight"]
        self.verdicts[told["lease"]] = node, code, amount, kind == "lease.accepted"
        account = {"quarantine": f"held:{node}", "canary": f"node:{node}:unvested"}.get(code, f"node:{node}:accrued")
        if kind == "lease.accepted":
            self.group(told)
            check(told["rollouts"] == len(told.get("turns", range(told["rollouts"]))), "it has other rollouts")
            if code == "quarantine":
                self.quarantine.setdefault((node, at // DAY), []).append(amount)
            elif code == "canary":
                self.canaries[told["lease"]] = node, amount
            self.worked(node, 1, told["rollouts"], told["tokens_in"] + told["tokens_out"], amount)
        check(kind == "lease.accepted" or not amount, "it earns nothing")
        return f"lease:{told['lease'].hex()}", [("escrow:run", -amount), (account, amount)]

    def worked(self, node: str, *more: int) -> None:
        self.work[node] = [a + b for a, b in zip(self.work.get(node, [0] * 4), more, strict=True)]

    def begun(self, seq: int, at: int, kind: str, told: Map) -> tuple[str, Any]:
        if kind == "begun.paid":
            prompt = told.get("prompt", 0)
            self.weigh(told, prompt, lambda costs: begun(costs, prompt, told["tokens"]))
            self.worked(told["node"], 0, 0, 0, told["weight"])
        check(kind == "begun.paid" or not told["weight"], "it earns nothing")
        moves = [("escrow:run", -told["weight"]), (f"node:{told['node']}:accrued", told["weight"])]
        return f"begun:{told['lease'].hex()}", moves

    def together(self, seq: int, at: int, kind: str, told: Map) -> tuple[str, Any]:
        check(sum(one[1] + one[2] for one in told["counts"]) == told["ends"], "it counts other ends")
        return f"ends:{seq}", []

    def day_ended(self, seq: int, at: int, kind: str, told: Map) -> tuple[str, Any]:
        node, weights = told["node"], self.quarantine.pop((told["node"], told["day"]), [])
        check((told["groups"], told["weight"]) == (len(weights), sum(weights)), "others were in this quarantine")
        target = f"node:{node}:accrued" if told["released"] else "escrow:run"
        return f"quarantine:{node}:{told['day']}", [(f"held:{node}", -sum(weights)), (target, sum(weights))]

    def reversed(self, seq: int, at: int, kind: str, told: Map) -> tuple[str, Any]:
        node, code, amount, accepted = self.verdicts.get(told["lease"], (told["node"], told["code"], 0, False))
        same = (node, code, accepted) == (told["node"], told["code"], not told["paid"])
        check(same, "its lease had another verdict")
        key, account = f"reversed:{told['lease'].hex()}", f"node:{node}:accrued"
        if told["paid"]:
            self.group(told)
            return key, [("escrow:run", -told["weight"]), (account, told["weight"])]
        there = amount if self.market else min(self.balances[account], amount)
        check((told["weight"], told.get("lacking", 0)) == (amount, amount - there), "another weight, or lack, follows")
        return key, [(account, -there), ("escrow:run", there)]

    def vested(self, seq: int, at: int, kind: str, told: Map) -> tuple[str, Any]:
        node, amount = told["node"], told["weight"]
        check(self.canaries.pop(told["lease"], None) == (node, amount), "no such canary waits")
        return f"vested:{told['lease'].hex()}", [(f"node:{node}:unvested", -amount), (f"node:{node}:accrued", amount)]

    def set_costs(self, seq: int, at: int, kind: str, told: Map) -> tuple[str, Any]:
        costs, before = kept(told["sealed"], "costs", self.chain, True), self.costs[1]
        check(told["costs"] == sha256(told["sealed"]), "its Costs have another hash")
        check(before is None or costs["at"] > before["at"], "its Costs are not newer than those before")
        self.costs = seq, costs
        return f"costs:{told['costs'].hex()}", []

    def paid_out(self, seq: int, at: int, kind: str, told: Map) -> tuple[str, Any]:
        """Follow a plan and its payments."""
        if kind == "payout.planned":
            check(told["plan"] == self.plan["plan"] + 1 and told["total"] >= told["payments"] > 0, "no next plan")
            payable = sum(n for account, n in self.balances.items() if account.endswith(":payable"))
            check(told["total"] <= payable, f"{payable} is payable")
            check(told["rail"] in ("csv", "command", "bank", "https"), "there is no such rail")
            self.plan = {**told, "left": [told["payments"], told["total"]]}
            return f"payouts:{told['plan']}", []
        payment, plan = told["payment"], self.plan
        if kind == "payout.sent":
            check((told["plan"], told["rail"]) == (plan["plan"], plan["rail"]), "its plan is not the newest")
            plan["left"] = [plan["left"][0] - 1, plan["left"][1] - told["amount"]]
            check(min(plan["left"]) >= 0 and payment not in self.payments, "the plan has no such payment")
            check(told["amount"] > 0 and told["amount"] % 10_000_000 == 0, "no rail moves this amount")
            self.payments[payment] = {**told, "state": "sent", "last": 0, "asked": False}
        one = self.payments[payment]
        amount, names = one["amount"], (f"node:{one['node']}:payable", f"paid:{one['rail']}")
        moves = [(names[0], -amount), (names[1], amount)]
        if kind == "payout.sent":
            return f"payout:{payment.hex()}:0", moves
        one["last"] += 1
        check((told["number"], told["node"]) == (one["last"], one["node"]), "it is not the payment's next entry")
        if kind == "payout.questioned":
            check(not one["asked"] and told["question"], "a question is open")
            one["asked"] = True
            return f"payout:{payment.hex()}:{one['last']}", []
        before, one["state"] = one["state"], kind.removeprefix("payout.")
        follows = before == "sent" or (before, one["state"]) == ("confirmed", "returned")
        answers = one["asked"] and told.get("by", "provider") == "operator"
        check(follows or answers, f"it cannot follow {before}")
        one["asked"] = False
        back = (before == "returned") - (one["state"] == "returned")
        return f"payout:{payment.hex()}:{one['last']}", moves if back > 0 else [
            (names[1], -amount), (names[0], amount)] if back else []  # fmt: skip

    # standing

    def stand(self, seq: int, at: int, kind: str, told: Map) -> None:
        """Let the accounts of keys follow."""
        if kind == "leases.ended":
            for node, _, refused, wrong in told["counts"]:
                if refused:
                    one = self.accounts.setdefault(node, dict(NEW))
                    one["groups"] += refused
                    one["wrong"] = one["groups"] if wrong else one["wrong"]
        if kind == "key.rotated":
            old, new = told["node"], told["successor"]
            self.accounts[new] = self.accounts.get(old, dict(NEW))
            self.accounts[old] = {**NEW, "banned": f"its key was replaced by {new}"}
        if kind not in STANDING:
            return
        one, rules, code = self.accounts.setdefault(told["node"], dict(NEW)), told.get("rules", 1), told.get("code", "")
        accepted = kind == "lease.accepted"
        if accepted or kind in ("lease.refused", "begun.refused"):
            if rules > 2:
                since = one["aged"] or at
                hours = max(0, at - since) // HOUR
                if one["aged"]:
                    one["audited"] = max(faded(one["audited"], hours, 168), min(one["audited"], 3 * ONE))
                one["aged"] = since + hours * HOUR
            one["groups"] += 1
            one["accepted"] += accepted
            one["audited"] += ONE * (accepted and (rules < 3 or bool(told.get("audited"))))
            one["wrong"] = one["groups"] if not accepted and code in WRONG else one["wrong"]
            one["doubted"] = int(code == "quarantine") if accepted else int(code == "evidence" or one["doubted"])
        elif kind == "lease.reversed" and told["paid"]:
            one |= {"accepted": one["accepted"] + 1, "wrong": 0, "until": min(one["until"], at)}
            one["audited"] += ONE * told["audited"]
        elif kind == "lease.reversed":
            one |= {"accepted": max(0, one["accepted"] - 1), "wrong": one["groups"]}
            one["audited"] = max(0, one["audited"] - ONE * told["audited"])
        elif kind == "quarantine.ended":
            one["doubted"] = int(not told["released"])
        elif kind == "node.suspended" and "rules" in told:
            one |= {"code": code, "since": told["from"], "until": told["until"]}
        elif kind in ("node.suspended", "node.banned"):
            one["banned"] = told["why"]
        elif kind == "node.unbanned":
            one |= {"banned": None, "until": min(one["until"], at)}
        else:
            one["vouched"] = True

    def rank(self, node: str) -> str:
        one = self.accounts.get(node, NEW)
        clean = not one["wrong"] or one["groups"] - one["wrong"] >= 300
        if one["doubted"]:
            return "new"
        if one["audited"] >= 30 * ONE and clean:
            return "proven"
        return "known" if one["audited"] >= 3 * ONE or one["vouched"] else "new"

    def state(self) -> str:
        """Return the state as it is printed."""
        order = sorted(self.work, key=lambda node: (self.work[node][3], key_of(node)), reverse=True)
        state: Map = {"entries": self.seq, "tip": self.tip.hex()}
        state["balances"] = {account: n for account, n in sorted(self.balances.items()) if n}
        state["keys"] = {node: {"rank": self.rank(node), "account": one} for node, one in sorted(self.accounts.items())}
        state["ranking"] = [
            {"node": node, "weight": self.work[node][3], "groups": self.work[node][0], "rollouts": self.work[node][1],
             "tokens": self.work[node][2], "accrued": self.balances[f"node:{node}:accrued"], "rank": self.rank(node)}
            for node in order if self.work[node][3]
        ]  # fmt: skip
        if self.market is not None:
            state["market"] = self.market.state()
        return json.dumps(state, indent=1, ensure_ascii=False) + "\n"


RULES = {
    "points.issued": lambda self, seq, at, kind, told: (
        f"points:{seq}", [("fund:operator", -told["amount"]), ("escrow:run", told["amount"])]),
    **dict.fromkeys(("lease.accepted", "lease.refused", "lease.expired"), Replay.ended),
    **dict.fromkeys(("begun.paid", "begun.refused"), Replay.begun), "leases.ended": Replay.together,
    "quarantine.ended": Replay.day_ended, "lease.reversed": Replay.reversed, "canary.vested": Replay.vested,
    "appeal.answered": lambda self, seq, at, kind, told: (f"{told['by']}:{told['lease'].hex()}:{told['asked']}", []),
    "key.rotated": lambda self, seq, at, kind, told: (f"key:{told['successor']}:{seq}", []),
    "node.suspended": lambda self, seq, at, kind, told: (
        f"key:{told['node']}:{seq}" if "rules" in told else f"suspension:{seq}", []),
    **dict.fromkeys(("node.vouched", "node.banned", "node.unbanned", "node.noted"),
                    lambda self, seq, at, kind, told: (f"key:{told['node']}:{seq}", [])),
    "costs.set": Replay.set_costs,
    "log.restored": lambda self, seq, at, kind, told: (f"restored:{told['serial']}", []),
    **dict.fromkeys(("payout.planned", "payout.sent", "payout.confirmed", "payout.returned", "payout.questioned"),
                    Replay.paid_out),
}  # fmt: skip
STANDING = {"lease.accepted", "lease.refused", "begun.refused", "lease.reversed", "quarantine.ended", "node.suspended"}
STANDING |= {"node.vouched", "node.banned", "node.unbanned"}


def key_of(node: str) -> bytes:
    number = 0
    for digit in node:
        number = number * 58 + BASE58.index(digit)
    data = number.to_bytes(38, "big")
    check(data[:6] == bytes.fromhex("002408011220"), f"{node} is no peer id")
    return data


def replayed(folder: Path) -> Replay:
    """Verify an export, and return its ledger computed again."""
    chain = roots_of(unpack((folder / "roots").read_bytes()))
    role = chain[-1]["roles"]["root"]
    spec = opened((folder / "runspec").read_bytes(), "runspec", chain[0]["run"], role)
    restored = folder / "restored"
    logs = logs_of(unpack(restored.read_bytes()) if restored.is_file() else [], chain)
    heads = heads_of(sealed := unpack((folder / "heads").read_bytes()), chain, logs)
    beacons = {head["size"]: sha256(one) for head, one in zip(heads, sealed, strict=True)}
    replay = Replay(chain, Market(spec["run"]) if spec["price_mode"] == "market" else None)
    for path in sorted((folder / "entries").iterdir()):
        try:
            check(int(path.name) == replay.seq + 1, "a file of entries is missing")
            with gzip.open(path) as file:
                rows = unpack(file.read(1 << 30))
            for written, named in rows:
                tip, drawn = replay.tip, replay.market and replay.market.beacon
                replay.take(written, named)
                replay.begin(logs, *unpack(written)[2:6:3])
                new = replay.market and not drawn and replay.market.beacon
                check(not new or new == beacons.get(replay.seq - 1, sha256(spec["run"] + tip)), "a beacon of no head")
                for head in [head for head in heads if head["size"] == replay.seq]:
                    check((head["root"], head["tip"]) == (replay.root(), replay.tip), "it is not that of its head")
                    check(head["log"] in replay.logs, "no entry begins the log of its head")
        except Exception as error:
            raise Wrong(f"ledger entry {replay.seq + 1}: {type(error).__name__} {error}") from error
    check(not heads or heads[-1]["size"] <= replay.seq, f"ledger entry {replay.seq + 1}: a head covers it")
    for row in (folder / "SHA256SUMS").read_text().splitlines():
        digest, _, name = row.partition("  ")
        check(sha256((folder / name).read_bytes()).hex() == digest, f"{name} is not as it was exported")
    own = folder / "state"
    check(not own.is_file() or own.read_text() == replay.state(), "the coordinator's own state is another one")
    return replay


if __name__ == "__main__":
    try:
        print(replayed(Path(sys.argv[1])).state(), end="")
    except Exception as fault:
        print(f"{type(fault).__name__} {fault}", file=sys.stderr)
        sys.exit(81)
