"""A second replayer, after docs/protocol/ledger.md: verifies an export, and prints the state. replay.py EXPORT

It needs the standard library, msgpack and PyNaCl, whose rule of signatures is a run's, and nothing of the product. It
ends with exit code 81 at the first fault."""

import gzip
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
from market_rules import DAY, HOUR, ONE, Map, Market, Moves, Wrong, check, faded, key_from, shift
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
ACCOUNT = re.compile(
    rf"fund:operator|escrow:run|rounding|forfeit|paid:[a-z]+|node:[{BASE58}]+:(accrued|unvested|payable)|held:[{BASE58}]+"
)
P, OF_ORDER_8 = 2**255 - 19, 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
RAILS = "csv", "command", "bank", "https"
WRONG = ("seeded-choice", "close-choices", "drift", "drift-median", "not-generated", "evidence", "near-ties")
NEW = {"accepted": 0, "groups": 0, "wrong": 0, "vouched": False, "banned": None, "code": "", "since": 0, "until": 0}
NEW |= {"doubted": 0, "audited": 0, "aged": 0}


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, strict_map_key=False, object_hook=Map)


# signed documents: docs/protocol/documents.md, and sections Heads and A restored ledger


def opened(sealed: bytes, kind: str, run: bytes, role: Map, without: Any = ()) -> Map:
    """Return the payload of a sealed document, if enough keys of the role signed it."""
    (named, of, payload, signatures), good = unpack(sealed), set()
    covered = b"echo2/1/" + kind.encode() + run + len(payload).to_bytes(8, "big") + payload
    for key, signature in signatures:
        try:
            VerifyKey(key).verify(covered, signature)
            good.add(key)
        except (BadSignatureError, ValueError):
            continue
    signers = (good & set(role["keys"])) - set(without)
    check((named, of) == (kind, run) and len(signers) >= role.threshold, f"this {kind} is not signed by its role")
    return Map(unpack(payload))


def sound_key(key: bytes) -> bool:
    """Tell whether a key is a canonical encoding, and of no point of small order."""
    y = int.from_bytes(key, "little") % 2**255
    return y < P and y not in (0, 1, P - 1, OF_ORDER_8, P - OF_ORDER_8)


def roots_of(sealed: list[bytes]) -> list[Map]:
    """Return the chain of Roots."""
    chain: list[Map] = []
    for document in sealed:
        root = unpack(unpack(document)[2])
        run = (chain or [root])[0].run
        for signers in [*chain[-1:], root]:
            opened(document, "root", run, signers.roles.root)
        sound = all(len(set(r["keys"])) == len(r["keys"]) >= r.threshold >= 1 for r in root.roles.values())
        check(root.serial == len(chain) + 1 and sound and len(document) <= 65536, "this Root does not follow")
        check(root.run == run and root.issued >= 0, "this Root is of another run")
        check({"root", "policy", "channel", "ledger"} <= root.roles.keys(), "this Root lacks a role")
        named = [key for role in root.roles.values() for key in role["keys"]]
        check(all(map(sound_key, named)), "this Root names a key of small order, or one that is not canonical")
        chain.append(root)
    return chain


def kept(sealed: bytes, kind: str, chain: list[Map], vouched: bool, signs: str = "ledger", time: str = "issued") -> Map:
    """Open a document that is kept for good. `vouched`: a later one that counts names it. `time`: the field with it."""
    gone = set() if vouched else {key for root in chain for key in root.get("revoked", {})}
    signer = {key for key, _ in unpack(sealed)[3]}
    for place in reversed(range(len(chain))):
        role = chain[place].roles[signs]
        if len(signer & set(role["keys"])) < role.threshold:
            continue
        document = opened(sealed, kind, chain[place].run, role, gone)
        ends = [root.issued for root in chain[place + 1 : place + 2]]
        check(vouched or all(document[time] < end for end in ends), f"this {kind} is of a replaced key")
        return document
    raise Wrong(f"this {kind} is signed by no keys of its role")


def names(head: Map, before: bytes | None) -> bool:
    """Tell whether a head names the sealed head before it; None: it is the first."""
    return bool(head.get("before") == (None if before is None else sha256(unpack(before)[2])))


def logs_of(sealed: list[bytes], chain: list[Map]) -> list[Map]:
    """Return the run's logs: the first, and those that began behind a restored ledger."""
    logs = [Map(id=chain[0].run, serial=0)]
    for document in sealed:
        log = kept(document, "log.restored", chain, False, "root", "restored")
        shown = kept(log.head, "ledgerhead", chain, True)
        follows = (log.serial, log.old) == (len(logs), logs[-1].id)
        check(follows and shown.log in [one.id for one in logs], f"log {len(logs)} does not follow")
        check(shown.size >= log.size >= 1 and shown.number >= log.number, "nothing of a log was lost")
        logs.append(Map(log, id=sha256(unpack(document)[2]), document=document, known=shown.size))
    return logs


def heads_of(sealed: list[bytes], chain: list[Map], logs: list[Map]) -> list[Map]:
    """Return the heads, which are judged from the newest to the oldest."""
    heads: list[Map] = []
    for document in reversed(sealed):
        heads.insert(0, kept(document, "ledgerhead", chain, bool(heads) and names(heads[0], document)))
    for k, head in enumerate(heads):
        before = heads[k - 1] if k else Map(size=0, issued=-1)
        check(head.number == k + 1 and names(head, sealed[k - 1] if k else None), f"head {k + 1} names none before it")
        check(head.size > before.size and head.issued > before.issued, f"head {k + 1} is not later")
        (own,) = [log for log in logs if log.id == head.log]
        check(own.serial == 0 or own.number < head.number, "it is before its log")
        later = logs[own.serial + 1 :]
        check(all(head.number <= log.number and head.size <= log.size for log in later), "it is behind its log")
    return heads


# section Weights


def weight(costs: Map | None, prompt: int, turns: list[list[int]]) -> int:
    if costs is None:
        return sum((2000 * (prompt + sum(one)) + 128) // 256 for one in turns)

    def cost(before: int, tokens: int) -> int:
        seen = (before + tokens) * (before + tokens + 1) // 2 - before * (before + 1) // 2
        return int(costs.given * tokens + costs.attention * seen)

    total, whole = costs.denominator * cost(0, prompt), costs.unit * costs.denominator
    for one in turns:
        for place, tokens in enumerate(one):
            factor = costs.denominator if place % 2 else costs.decode
            total += factor * cost(prompt + sum(one[:place]), tokens)
    return int((2000 * total + whole) // (2 * whole))


def left(one: Map, at: int) -> tuple[int, int]:
    """Return what is left of an account's audited work, and up to when it has decayed then."""
    since = one.aged or at
    hours = max(0, (at - since) // HOUR)
    count = max(faded(one.audited, hours, 168), min(one.audited, 3 * ONE))
    return count * (hours < 720), since + hours * HOUR


class Replay:
    """A ledger computed again. `market`: None in a run of points, where weight moves at the verdict. `logs`: the
    run's. `beacons`: number of entries under a head -> SHA-256 of the sealed head."""

    def __init__(self, chain: list[Map], market: Market | None) -> None:
        self.chain, self.market, self.logs, self.beacons = chain, market, list[Map](), dict[int, bytes]()
        self.seq, self.at, self.tip, self.keys, self.tree = 0, 0, bytes(32), set[str](), list[bytes]()
        self.balances, self.accounts, self.work = Counter[str](), dict[str, Map](), dict[str, list[int]]()
        self.costs: tuple[int, Map | None] = (0, None)
        self.verdicts, self.canaries = dict[bytes, tuple[str, str, int, bool]](), dict[bytes, tuple[str, int]]()
        self.quarantine, self.payments = dict[tuple[str, int], list[int]](), dict[bytes, Map]()
        self.plan, self.roots, self.begun_logs = Map(plan=0), dict[int, bytes](), [chain[0].run]
        if market:
            market.balances = self.balances

    def take(self, written: bytes, named: bytes) -> None:
        """Verify the next entry (section Verifying). Raises `Wrong`, and whatever bytes of another form lead to."""
        seq, at, kind, key, postings, facts = unpack(written)
        check(seq == self.seq + 1, f"entry {seq} stands in its place")
        check(msgpack.packb([seq, at, kind, key, postings, facts]) == written, "its bytes are not canonical")
        check(sha256(self.tip + written) == named and key not in self.keys, "its hash is wrong, or its key known")
        check(all(ACCOUNT.fullmatch(account) for account, _ in postings), "it names an unknown account")
        entry = Map(seq=seq, at=at, kind=kind, key=key, postings=postings, facts=facts, told=unpack(facts))
        form, rule = RULES.get(kind, (None, None))
        moves = [list(one) for one in rule(self, entry, entry.told) or [] if one[1]] if rule else []
        if not (self.market and self.market.take(entry)):
            due = key_from(form, entry) if form else key
            moves = moves if not self.market or kind.startswith("payout.") else []
            check((key, postings) == (due, moves), f"the key {due} and the postings {moves} follow")
        if self.market and kind == "epoch.drawn":
            beacon = self.beacons.get(self.seq, sha256(self.chain[0].run + self.tip))
            check(entry.told.beacon == beacon, "its beacon is that of no head")
        for account, amount in postings:
            self.balances[account] += amount
        below = [account for account, _ in postings if self.balances[account] < 0 and account != "fund:operator"]
        check(not below, f"{below} falls below zero")
        self.stand(at, kind, entry.told)
        self.seq, self.at, self.tip = seq, at, named
        self.keys.add(key)
        self.grow(sha256(b"\x00" + written))

    # section Tree

    def grow(self, leaf: bytes) -> None:
        for _ in range((self.seq & -self.seq).bit_length() - 1):
            leaf = sha256(b"\x01" + self.tree.pop() + leaf)
        self.tree.append(leaf)
        if self.seq in [log.size for log in self.logs[1:]]:
            self.roots[self.seq] = self.root()

    def root(self) -> bytes:
        root = self.tree[-1]
        for left in reversed(self.tree[:-1]):
            root = sha256(b"\x01" + left + root)
        return root

    # the rules of kinds: each returns the postings that follow, in a run of points

    def issued(self, entry: Map, told: Map) -> Moves:
        check(not self.market, "a run with a market issues no points")
        return shift("fund:operator", "escrow:run", told.amount)

    def weigh(self, told: Map, follows: Callable[[Map | None], int]) -> None:
        check(told.get("costs", 0) == self.costs[0], "it is weighed by Costs that are not in force")
        check(told.weight == follows(self.costs[1]), f"it weighs {follows(self.costs[1])}")

    def group(self, told: Map) -> None:
        def follows(costs: Map | None) -> int:
            played, prompt = [turns for turns in told.get("turns", []) if sum(turns[::2])], told.get("prompt", 0)
            return weight(costs, prompt, played) if played else 0

        self.weigh(told, follows)

    def ended(self, entry: Map, told: Map) -> Moves:
        node, code, amount, accepted = told.node, told.code, told.weight, entry.kind == "lease.accepted"
        self.verdicts[told.lease] = node, code, amount, accepted
        turns, prompt = told.get("turns", []), told.get("prompt", 0)
        sums = len(turns), sum(prompt + sum(one[1::2]) for one in turns), sum(sum(one[::2]) for one in turns)
        check((told.rollouts, told.tokens_in, told.tokens_out) == sums, f"{sums} rollouts and tokens follow")
        check(accepted or not (amount or turns or prompt or told.get("costs", 0)), "it earns nothing")
        if accepted:
            self.group(told)
            self.worked(node, 1, told.rollouts, told.tokens_in + told.tokens_out, amount)
            if code == "quarantine":
                self.quarantine.setdefault((node, entry.at // DAY), []).append(amount)
            elif code == "canary":
                self.canaries[told.lease] = node, amount
        account = {"quarantine": f"held:{node}", "canary": f"node:{node}:unvested"}.get(code, f"node:{node}:accrued")
        return shift("escrow:run", account, amount)

    def worked(self, node: str, *more: int) -> None:
        self.work[node] = [a + b for a, b in zip(self.work.get(node, [0] * 4), more, strict=True)]

    def together(self, entry: Map, told: Map) -> None:
        check(sum(one[1] + one[2] for one in told.counts) == told.ends, "it counts other ends")

    def day_ended(self, entry: Map, told: Map) -> Moves:
        weights = self.quarantine.pop((told.node, told.day), [])
        check((told.groups, told.weight) == (len(weights), sum(weights)), "others were in this quarantine")
        return shift(f"held:{told.node}", f"node:{told.node}:accrued" if told.released else "escrow:run", told.weight)

    def vested_tranches(self, entry: Map, told: Map) -> Moves:
        check(self.canaries.pop(told.lease, None) == (told.node, told.weight), "no such canary waits")
        return shift(f"node:{told.node}:unvested", f"node:{told.node}:accrued", told.weight)

    def reversed(self, entry: Map, told: Map) -> Moves:
        """Follow section Reversals."""
        node, code, amount, accepted = self.verdicts.get(told.lease, (told.node, told.code, told.weight, False))
        check((node, code, accepted) == (told.node, told.code, not told.paid), "its lease had another verdict")
        if told.paid:
            self.group(told)
            return shift("escrow:run", f"node:{node}:accrued", told.weight)
        there = amount if self.market else min(self.balances[f"node:{node}:accrued"], amount)
        check((told.weight, told.get("lacking", 0)) == (amount, amount - there), "another weight, or lack, follows")
        return shift(f"node:{node}:accrued", "escrow:run", there)

    def set_costs(self, entry: Map, told: Map) -> None:
        costs, before = kept(told.sealed, "costs", self.chain, True), self.costs[1]
        check(told.costs == sha256(told.sealed), "its Costs have another hash")
        check(before is None or costs.at > before.at, "its Costs are not newer than those before")
        self.costs = entry.seq, costs

    def log_restored(self, entry: Map, told: Map) -> None:
        """Follow section A restored ledger."""
        log = self.logs[told.serial]
        due = {"rules": 1, "serial": log.serial, "log": log.id, "size": log.size, "known": log.known}
        check(told == due | {"sealed": log.document}, "it repeats no document")
        check(self.roots[log.size] == log.root, "it restores other entries")
        self.begun_logs.append(log.id)

    # section Payments in money

    def planned(self, entry: Map, told: Map) -> None:
        check(told.plan > self.plan.plan and told.rail in RAILS and told.total >= told.payments > 0, "no later plan")
        payable = sum(n for account, n in self.balances.items() if account.endswith(":payable"))
        check(told.total <= payable, f"{payable} is payable")
        self.plan = Map(told)

    def sent(self, entry: Map, told: Map) -> Moves:
        plan = self.plan
        if entry.kind == "payout.restored":
            check(told.plan > 0 and told.rail in RAILS and len(told.file) == 32, "no plan had it")
            plan = Map(told, payments=1, total=told.amount)
            self.plan = plan if told.plan >= self.plan.plan else self.plan
        check((told.plan, told.rail) == (plan.plan, plan.rail), "its plan is not the newest")
        plan.update(payments=plan.payments - 1, total=plan.total - told.amount)
        check(min(plan.payments, plan.total) >= 0 and told.payment not in self.payments, "the plan has no such payment")
        check((len(told.payment), len(told.provider), len(told.account)) == (16, 16, 32), "an id has another length")
        check(told.amount % 10_000_000 == 0 < told.amount, "no rail moves this amount")
        self.payments[told.payment] = Map(told, state="sent", last=0, asked=False)
        return shift(f"node:{told.node}:payable", f"paid:{told.rail}", told.amount)

    def answered(self, entry: Map, told: Map) -> Moves | None:
        one, after = self.payments[told.payment], entry.kind.removeprefix("payout.")
        one.last, before, asked = one.last + 1, one.state, one.asked
        check((told.number, told.node) == (one.last, one.node), "it is not the payment's next entry")
        one.asked = after == "questioned"
        if one.asked:
            check(not asked and told.question, "a question is open")
            return None
        one.state = after
        follows = before == "sent" or (before, after) == ("confirmed", "returned")
        by = told.get("by", "provider")
        check(by in ("provider", "operator"), "it is by nobody")
        check(follows or (asked and by == "operator"), f"it cannot follow {before}")
        payable, paid = f"node:{one.node}:payable", f"paid:{one.rail}"
        if after == "returned":
            return shift(paid, payable, one.amount) if before != after else None
        return shift(payable, paid, one.amount) if before == "returned" else None

    # sections Standing and Audited work

    def account(self, node: str) -> Map:
        return self.accounts.setdefault(node, Map(NEW))

    def stand(self, at: int, kind: str, told: Map) -> None:
        """Let the accounts of keys follow."""
        if kind in ("lease.accepted", "lease.refused"):
            self.counted(at, kind == "lease.accepted", told)
        elif kind == "leases.ended":
            for one, count, wrong in [(self.account(id), *more) for id, _, *more in told.counts if id and more[0]]:
                one.groups += count
                one.wrong = one.groups if wrong else one.wrong
        elif kind == "key.rotated":
            self.accounts[told.successor] = self.account(told.node)
            self.accounts[told.node] = Map(NEW, banned=f"its key was replaced by {told.successor}")
        elif kind == "lease.reversed":
            one, sign = self.account(told.node), 1 if told.paid else -1
            one.update(accepted=max(0, one.accepted + sign), audited=max(0, one.audited + sign * ONE * told.audited))
            one.update({"wrong": 0, "until": min(one.until, at)} if told.paid else {"wrong": one.groups})
        elif kind == "quarantine.ended":
            self.account(told.node).doubted = int(not told.released)
        elif kind == "node.suspended":
            self.account(told.node).update(code=told.code, since=told["from"], until=told.until)
        elif kind == "node.banned":
            self.account(told.node).banned = told.why
        elif kind == "node.unbanned":
            self.account(told.node).update(banned=None, until=min(self.account(told.node).until, at))
        elif kind == "node.vouched":
            self.account(told.node).vouched = True

    def counted(self, at: int, accepted: bool, told: Map) -> None:
        """Count a group that was accepted or refused; audited work decays before an accepted one."""
        one, rules = self.account(told.node), told.get("rules", 1)
        one.groups += 1
        if accepted:
            if rules > 2:
                one.audited, one.aged = left(one, at)
            one.accepted += 1
            one.audited += ONE * (rules < 3 or bool(told.get("audited")))
            one.doubted = int(told.code == "quarantine")
        else:
            one.wrong = one.groups if told.code in WRONG else one.wrong
            one.doubted = int(told.code == "evidence" or one.doubted)

    def rank(self, node: str) -> str:
        one = Map(self.accounts.get(node, NEW))
        audited, _ = left(one, self.at)
        clean = not one.wrong or one.groups - one.wrong >= 300
        if one.doubted:
            return "new"
        if audited >= 30 * ONE and clean:
            return "proven"
        return "known" if audited >= 3 * ONE or one.vouched else "new"

    def state(self) -> str:
        """Return the state as it is printed (section Replay)."""
        order = sorted(self.work, key=lambda node: (self.work[node][3], key_of(node)), reverse=True)
        state = Map(entries=self.seq, tip=self.tip.hex())
        state.balances = {account: n for account, n in sorted(self.balances.items()) if n}
        state["keys"] = {node: {"rank": self.rank(node), "account": one} for node, one in sorted(self.accounts.items())}
        state.ranking = [
            {"node": node, "weight": self.work[node][3], "groups": self.work[node][0], "rollouts": self.work[node][1],
             "tokens": self.work[node][2], "accrued": self.balances[f"node:{node}:accrued"], "rank": self.rank(node)}
            for node in order if self.work[node][3]
        ]  # fmt: skip
        if self.market is not None:
            state.market = self.market.state()
        return json.dumps(state, indent=1, ensure_ascii=False) + "\n"


RULES = {
    "points.issued": ("points:{seq}", Replay.issued),
    **dict.fromkeys(("lease.accepted", "lease.refused", "lease.expired"), ("lease:{lease}", Replay.ended)),
    "leases.ended": ("ends:{seq}", Replay.together),
    "quarantine.ended": ("quarantine:{node}:{day}", Replay.day_ended),
    "lease.reversed": ("reversed:{lease}", Replay.reversed),
    "appeal.answered": ("{by}:{lease}:{asked}", None),
    "log.restored": ("restored:{serial}", Replay.log_restored),
    "costs.set": ("costs:{costs}", Replay.set_costs),
    "canary.vested": ("vested:{lease}", Replay.vested_tranches),
    "key.rotated": ("key:{successor}:{seq}", None),
    **dict.fromkeys([f"node.{end}" for end in ("suspended", "vouched", "banned", "unbanned", "noted")],
                    ("key:{node}:{seq}", None)),
    "payout.planned": ("payouts:{plan}", Replay.planned),
    **dict.fromkeys(("payout.sent", "payout.restored"), ("payout:{payment}:0", Replay.sent)),
    **dict.fromkeys(("payout.confirmed", "payout.returned", "payout.questioned"),
                    ("payout:{payment}:{number}", Replay.answered)),
}  # fmt: skip
"""Kind of entry -> its key, and its rule: the table of section Entry."""


def key_of(node: str) -> bytes:
    number = 0
    for digit in node:
        number = number * 58 + BASE58.index(digit)
    data = number.to_bytes(38, "big")
    check(data[:6] == bytes.fromhex("002408011220"), f"{node} is no peer id")
    return data


def replayed(folder: Path) -> Replay:
    """Verify an export (section Export), and return its ledger computed again."""
    chain = roots_of(unpack((folder / "roots").read_bytes()))
    spec = opened((folder / "runspec").read_bytes(), "runspec", chain[0].run, chain[-1].roles.root)
    restored, sealed = folder / "restored", unpack((folder / "heads").read_bytes())
    replay = Replay(chain, Market(spec.run) if spec.price_mode == "market" else None)
    replay.logs = logs_of(unpack(restored.read_bytes()) if restored.is_file() else [], chain)
    heads = heads_of(sealed, chain, replay.logs)
    replay.beacons = {head.size: sha256(one) for head, one in zip(heads, sealed, strict=True)}
    for path in sorted((folder / "entries").iterdir()):
        try:
            check(int(path.name) == replay.seq + 1, "a file of entries is missing")
            with gzip.open(path) as file:
                rows = unpack(file.read())
            for written, named in rows:
                replay.take(written, named)
                for head in [head for head in heads if head.size == replay.seq]:
                    check((head.root, head.tip) == (replay.root(), replay.tip), "it is not that of its head")
                    check(head.log in replay.begun_logs, "no entry begins the log of its head")
        except Exception as error:
            raise Wrong(f"ledger entry {replay.seq + 1}: {type(error).__name__} {error}") from error
    check(not heads or heads[-1].size <= replay.seq, f"ledger entry {replay.seq + 1}: a head covers it")
    for row in (folder / "SHA256SUMS").read_text().splitlines():
        digest, _, name = row.partition("  ")
        check(sha256((folder / name).read_bytes()).hex() == digest, f"{name} is not as it was exported")
    own = folder / "state"
    check(not own.is_file() or own.read_text() == replay.state(), "the coordinator's own state is another one")
    return replay


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "roots").is_file():
        print("usage: replay.py EXPORT, the folder that `echo2-coord ledger export` wrote", file=sys.stderr)
        sys.exit(2)
    try:
        print(replayed(Path(sys.argv[1])).state(), end="")
    except Exception as fault:
        print(f"{type(fault).__name__} {fault}", file=sys.stderr)
        sys.exit(81)
