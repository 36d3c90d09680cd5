"""The market of a ledger, computed again from its entries: docs/protocol/ledger.md, section Market."""

import hashlib
import math
from collections import Counter
from fractions import Fraction
from typing import Any, NamedTuple

import msgpack

HOUR, MINUTE, DAY, ONE = 3_600_000, 60_000, 86_400_000, 1 << 32
Map = dict[str, Any]
LIMITS = {
    "epoch": (1, 1 << 53), "milliseconds": (1000, 7 * DAY), "need": (0, 10**15), "reserve": (1, 10**15),
    "budget": (0, 10**18), "newcomers": (0, 1000), "cap": (1, 1000), "beta": (0, 100), "run_off": (0, DAY),
}  # fmt: skip
FIELDS = {
    "measured": "rules node rate", "ask.sealed": "rules node epoch hash", "ask.opened": "rules node epoch ask salt",
    "owners.grouped": "rules epoch owners", "epoch.drawn": "rules epoch beacon", "vested": "rules epoch amounts",
    "epoch.announced": "rules epoch closes milliseconds need reserve budget mode newcomers cap beta run_off",
    "epoch.opened": "rules epoch forfeits present", "epoch.closed": "rules epoch since short binding nodes",
    "released": "rules epoch amounts", "forfeited": "rules node lease amount lacking why",
}  # fmt: skip
NEVER = {"work": 0, "leased": 0, "rest": 0, "covered": [], "rates": [], "groups": 0, "row": 0, "proven": False}


class Wrong(Exception):
    """An entry does not follow from those before it."""


def check(good: Any, why: str) -> None:
    if not good:
        raise Wrong(why)


def faded(value: int, periods: int, half: int) -> int:
    """Return what is left of a value which halves in so many periods; n(k) is looked for by halving."""
    low, high, power = 0, ONE + 1, 1 << (32 * half - periods % half)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**half <= power else (low, middle)
    return (value * low // ONE) // 2 ** (periods // half)


class Offer(NamedTuple):
    """An offer. `cost`: per RE. `counted`: by which the order is made. `lot`: in the lottery."""

    node: str
    rate: int
    cost: Fraction
    counted: Fraction
    newcomer: bool
    lot: bytes


class Row(NamedTuple):
    """A node that is paid: at a price, for at most `most` milli-RE, until a time if it is in its run-off."""

    node: str
    price: Fraction
    expected: Fraction
    most: Fraction
    until: int = 0

    def ceiling(self) -> int:
        return math.ceil(self.price * self.most / 1000)


class Market:
    """The state of the market. `take` checks an entry against it, and then reads it."""

    def __init__(self, run: bytes) -> None:
        self.run, self.epoch, self.forfeit = run, 0, 0
        self.asks, self.benchmarks, self.suspended = dict[str, int](), dict[str, int](), dict[str, int | None]()
        self.sealed, self.owners = dict[str, bytes](), dict[str, bytes]()
        self.nodes, self.ends, self.vesting = dict[str, Map](), dict[str, list[Map]](), dict[str, list[list[int]]]()
        self.announced: Map | None = None
        self.settled, self.late, self.beacon = set[str](), set[str](), b""
        self.open: Map | None = None
        self.shares, self.taken_back = dict[bytes, tuple[str, int, Any]](), set[Any]()
        self.incumbents, self.leavers, self.closed = set[str](), list[Row](), list[list[Any]]()

    def take(self, at: int, kind: str, key: str, postings: list[list[Any]], facts: bytes, told: Map) -> bool:
        """Read the next entry; tell whether its key and its postings were checked."""
        if kind in ("lease.accepted", "lease.refused", "lease.expired"):
            day = (told["node"], at // DAY) if told["code"] == "quarantine" else None
            self.ends.setdefault(told["node"], []).append({**told, "accepted": kind == "lease.accepted", "day": day})
        elif kind in ("node.suspended", "node.banned", "node.unbanned"):
            self.suspended[told["node"]] = None if kind == "node.banned" else told.get("until", 0)
        elif kind in FIELDS:
            stated = {"rules": 1, **{name: told[name] for name in FIELDS[kind].split() if name != "rules"}}
            named, moves, changes = getattr(self, "_" + kind.replace(".", "_"))(at, stated)
            check(key == named, f"its key is {key}, {named} follows")
            moves = [list(one) for one in moves if one[1]]
            check(postings == moves, f"it moves {postings}, where {moves} follows")
            check(facts == msgpack.packb({**stated, **changes}), f"it states other facts than {changes}")
        elif kind in ("begun.paid", "lease.reversed") and told.get("paid", True) and told["weight"]:
            credited = {"sent": at, "received": at, "expires": at, "weight": told["weight"], "accepted": True}
            self.ends.setdefault(told["node"], []).append({**credited, "unmeasured": True})
        elif kind == "lease.reversed" and not told["paid"]:
            self.taken_back.add(told["lease"])
        elif kind == "quarantine.ended" and not told["released"]:
            self.taken_back.add((told["node"], told["day"]))
        elif kind == "key.rotated":
            tables: list[dict[str, Any]] = [self.asks, self.benchmarks, self.nodes, self.suspended]
            left = self.nodes.get(told["node"])
            for table in tables:
                if told["node"] in table:
                    table[told["successor"]] = table.pop(told["node"])
            if left:
                self.nodes[told["node"]] = {**NEVER, "row": left["row"], "proven": left["proven"]}
            self.suspended[told["node"]] = None
            self.late |= {told["successor"]} if self.beacon else set()
        self.forfeit += sum(amount for account, amount in postings if account == "forfeit")
        return kind in FIELDS

    def _terms(self, epoch: int) -> Map:
        check(self.announced and self.announced["epoch"] == epoch, f"epoch {epoch} is not the announced one")
        assert self.announced is not None
        return self.announced

    # each rule returns the key, the postings, and the facts that follow

    def _measured(self, at: int, told: Map) -> tuple[str, Any, Map]:
        check(0 < told["rate"] <= 10**12, "no benchmark has such a rate")
        self.benchmarks[told["node"]] = told["rate"]
        return f"measured:{told['node']}:{at}", [], {}

    def _epoch_announced(self, at: int, told: Map) -> tuple[str, Any, Map]:
        check(self.announced is None and told["epoch"] == self.epoch + 1, "it is not the next epoch")
        check(all(least <= told[name] <= most for name, (least, most) in LIMITS.items()), "a term is out of its limits")
        check(told["mode"] in ("pivot", "uniform", "paybid", "split", "random"), "there is no such price mode")
        check(told["closes"] > at, "its closing time is none")
        self.announced, self.sealed, self.owners, self.beacon, self.late = told, {}, {}, b"", set()
        return f"epoch:{told['epoch']}:announced", [], {}

    def _owners_grouped(self, at: int, told: Map) -> tuple[str, Any, Map]:
        self._terms(told["epoch"])
        self.owners = dict(told["owners"])
        return f"owners:{told['epoch']}", [], {"owners": sorted(map(list, self.owners.items()))}

    def _ask_sealed(self, at: int, told: Map) -> tuple[str, Any, Map]:
        check(at <= self._terms(told["epoch"])["closes"] and not self.beacon, "asks are closed")
        check(len(told["hash"]) == 32 and told["node"] not in self.sealed, "an ask was sealed, or this is no hash")
        self.sealed[told["node"]] = told["hash"]
        return f"sealed:{told['node']}:{told['epoch']}", [], {}

    def _ask_opened(self, at: int, told: Map) -> tuple[str, Any, Map]:
        node, epoch, ask, salt = told["node"], told["epoch"], told["ask"], told["salt"]
        check(self._terms(epoch) and self.beacon, "the lottery is not drawn")
        check(1000 <= ask <= 10**14 and len(salt) >= 16, "the ask or its salt is out of the limits")
        hashed = hashlib.sha256(msgpack.packb(["ask", self.run, node, epoch, ask, salt])).digest()
        check(hashed == self.sealed.pop(node, None), "this ask was not sealed")
        check(node not in self.asks or 4 * ask <= 5 * self.asks[node], "the ask rises by more than a quarter")
        self.asks[node] = ask
        return f"opened:{node}:{epoch}", [], {}

    def _epoch_drawn(self, at: int, told: Map) -> tuple[str, Any, Map]:
        check(at > self._terms(told["epoch"])["closes"] and not self.beacon and len(told["beacon"]) == 32, "no draw")
        self.beacon = told["beacon"]
        return f"epoch:{told['epoch']}:drawn", [], {}

    def _epoch_opened(self, at: int, told: Map) -> tuple[str, Any, Map]:
        terms = self._terms(told["epoch"])
        check(self.open is None and self.beacon, "an epoch is open, or the lottery is not drawn")
        barred = {node for node, until in self.suspended.items() if until is None or until > at}
        here = sorted(set(told["present"]) - barred)
        budget, forfeits = terms["budget"] + self.forfeit, self.forfeit
        offers = [one for one in map(self._offer, here) if one and one.node not in self.late]
        active, run_offs, short, binding = self._plan(offers, budget, at)
        self.open = {"terms": terms, "opened": at, "budget": budget, "forfeits": forfeits, "short": short}
        self.open |= {"binding": binding, "active": active, "run_offs": run_offs}
        self.epoch, self.announced, self.sealed, self.beacon, self.late = told["epoch"], None, {}, b"", set()
        known = {*here, *self.nodes, *self.vesting}
        self.asks = {node: ask for node, ask in self.asks.items() if node in known}
        self.benchmarks = {node: rate for node, rate in self.benchmarks.items() if node in known}
        self.suspended = {node: until for node, until in self.suspended.items() if node in barred}
        moves = [("fund:operator", -terms["budget"]), ("forfeit", -forfeits), ("escrow:run", budget)]
        return f"epoch:{told['epoch']}:opened", moves, {"forfeits": forfeits, "present": here}

    # measurement

    def _mean(self, node: str) -> Fraction:
        one = self.nodes.get(node, NEVER)
        return Fraction(one["work"] * HOUR, one["leased"]) if one["leased"] else Fraction(0)

    def rate(self, node: str) -> int:
        one, mean, benchmark = self.nodes.get(node, NEVER), self._mean(node), self.benchmarks.get(node, 0)
        if one["groups"] < 30:
            return min(benchmark or int(mean), int(mean)) if one["leased"] else benchmark
        count, total, error = len(one["rates"]), sum(one["rates"]), Fraction(1)
        if count > 1 and total:
            square = Fraction(count * sum(rate * rate for rate in one["rates"]) - total**2, count * total**2) * 10**18
            root = math.isqrt(math.ceil(square))
            error = Fraction(root + (root * root < square), 10**9)
        return int(mean * max(1 - Fraction(41, 25) * error, Fraction(1, 2)))

    def _timed(self, node: str) -> list[Map]:
        return [end for end in self.ends.get(node, []) if "unmeasured" not in end]

    def _grown(self, node: str) -> tuple[list[list[int]], int]:
        """Return the union of a node's leased time with that of its ends, and by how much it grows."""
        before = [list(one) for one in self.nodes.get(node, NEVER)["covered"]]
        new = []
        for end in self._timed(node):
            begin, stop = span(end)
            begin = max(begin, before[0][1]) if len(before) == 64 else begin
            new += [[begin, stop]] if stop > begin else []
        union: list[list[int]] = []
        for begin, stop in sorted(before + new):
            if union and begin <= union[-1][1]:
                union[-1][1] = max(union[-1][1], stop)
            else:
                union.append([begin, stop])
        length = [sum(stop - begin for begin, stop in one) for one in (before, union)]
        return union[-64:], length[1] - length[0]

    def _measure(self, node: str) -> None:
        one, (covered, grown) = dict(self.nodes.get(node, NEVER)), self._grown(node)
        accepted = [end for end in self._timed(node) if end["accepted"]]
        minutes, one["rest"] = divmod(one["rest"] + grown, MINUTE)
        one["work"] = faded(one["work"], minutes, 60) + sum(end["weight"] for end in accepted)
        one["leased"] = faded(one["leased"], minutes, 60) + grown
        rates = [end["weight"] * HOUR // max(1, span(end)[1] - span(end)[0]) for end in accepted]
        one |= {"covered": covered, "rates": [*one["rates"], *rates][-64:], "groups": one["groups"] + len(accepted)}
        for end in self._timed(node):
            one["row"] = one["row"] + 1 if end["accepted"] else 0
            one["proven"] = one["proven"] or one["row"] >= 10
        self.nodes[node] = one

    # activation and prices

    def _offer(self, node: str) -> Offer | None:
        rate, newcomer = self.rate(node), self.nodes.get(node, NEVER)["groups"] < 30
        if node not in self.asks or not rate or self.announced is None:
            return None
        cost, factor = Fraction(1000 * self.asks[node], rate), Fraction(19, 20) if node in self.incumbents else 1
        return Offer(node, rate, cost, cost * factor, newcomer, hashlib.sha256(self.beacon + node.encode()).digest())

    def _counts(self, offers: list[Offer], most: int | None) -> dict[str, int]:
        used, counts = Counter[bytes](), dict[str, int]()
        for one in offers:
            owner = self.owners.get(one.node, one.node.encode())
            counts[one.node] = one.rate if most is None else min(one.rate, most - used[owner])
            used[owner] += counts[one.node]
        return counts

    def _plan(self, offers: list[Offer], budget: int, at: int) -> tuple[list[Row], list[Row], int, bool]:
        rows, short, binding = self._clear(offers, budget)
        leavers = [one for one in self.leavers if one.until > at]
        if self.announced and self.announced["mode"] == "split":
            return rows, [], short, binding
        gone = shared([one for one in leavers if one.node not in {row.node for row in rows}], budget)
        if gone:
            named, left = {one.node for one in gone}, budget - sum(one.ceiling() for one in gone)
            rows, short, binding = self._clear(offers, left)
            active = {row.node for row in rows}
            late = [one for one in leavers if one.node not in active | named]
            left -= sum(row.ceiling() for row in rows)
            gone = [one for one in gone if one.node not in active] + shared(late, max(0, left))
        return rows, gone, short, binding

    def _clear(self, offers: list[Offer], budget: int) -> tuple[list[Row], int, bool]:
        """Return the active nodes with prices, what the need lacks, and whether the budget binds."""
        terms = self.announced or {}
        need, reserve, mode, hours = (terms[name] for name in ("need", "reserve", "mode", "milliseconds"))
        if mode == "split":
            bound = Fraction(budget * 1000, reserve)
            rows = [Row(one.node, Fraction(reserve), bound, bound) for one in offers]
            return rows, max(0, need - sum(one.rate for one in offers)), False
        most = None if terms["cap"] == 1000 else terms["cap"] * need // 1000
        fitting = sorted((one for one in offers if one.cost <= reserve), key=lambda one: one.lot)
        measured = [one for one in fitting if not one.newcomer]
        measured.sort(key=lambda one: mode != "random" and one.counted)
        counts = self._counts([*measured, *(one for one in fitting if one.newcomer)], most)
        ready = [one for one in measured if counts[one.node]]
        fresh = [one for one in fitting if one.newcomer and counts[one.node]]

        def reaching(those: list[Offer], asked: Fraction) -> list[Offer]:
            taken: list[Offer] = []
            while those[len(taken) :] and rate(taken) < asked:
                taken.append(those[len(taken)])
            return taken

        def rate(those: list[Offer]) -> int:
            return sum(counts[one.node] for one in those)

        rest = ready[len(reaching(ready, Fraction(need))) :] if mode != "random" else []
        fresh = [one for one in fresh if not rest or one.counted <= rest[0].counted]
        share = max(Fraction(terms["newcomers"] * need, 1000), Fraction(2 * max(0, need - rate(ready))))
        share, half = (share, share / 2) if ready else (Fraction(need), Fraction(need))
        first = reaching(fresh, half)
        still = max(0, need - rate(first))
        chosen = reaching(ready, Fraction(still))
        gap = still - rate(chosen)
        more = reaching(fresh[len(first) :], min(Fraction(gap), share - rate(first))) if gap > 0 else []
        active = [*chosen, *first, *more]
        behind = next((one.counted for one in ready if one not in chosen), None)
        prices = []
        for one in active:
            decides = behind if mode == "uniform" else None if one.newcomer else self._pivot(one, measured, still, most)
            price = Fraction(reserve) if decides is None else decides * one.cost / one.counted
            prices.append(one.cost if one.newcomer or mode in ("paybid", "random") else min(Fraction(reserve), price))
        whole = [Fraction(counts[one.node] * hours, HOUR) for one in active]
        spent = sum(math.ceil(price * work / 1000) for price, work in zip(prices, whole, strict=True))
        short = max(0, need - rate(active))
        if spent <= budget:
            more_of = Fraction(budget, spent) if spent else Fraction(1)
            capped = [counts[one.node] != one.rate for one in active]
            return [
                Row(one.node, price, work, work if cut else work * more_of)
                for one, price, work, cut in zip(active, prices, whole, capped, strict=True)
            ], short, False  # fmt: skip
        limits = [Fraction(budget * 1000) / sum(whole[:k]) for k in range(1, len(whole) + 1)]
        stay = max((k for k, top in enumerate(limits, 1) if max(one.cost for one in active[:k]) <= top), default=0)
        rows = [Row(active[k].node, min(prices[k], limits[stay - 1]), whole[k], whole[k]) for k in range(stay)]
        return rows, short, True

    def _pivot(self, mine: Offer, measured: list[Offer], need: int, most: int | None) -> Fraction | None:
        others = [one for one in measured if one is not mine]
        counts, total, owned = self._counts(others, most), 0, 0
        owner = self.owners.get(mine.node, mine.node.encode())
        for one in others:
            total += counts[one.node]
            owned += one.rate if self.owners.get(one.node, one.node.encode()) == owner else 0
            if total >= need or (most is not None and owned >= most):
                return one.counted
        return None

    # pay

    def _epoch_closed(self, at: int, told: Map) -> tuple[str, Any, Map]:
        plan = self.open
        check(plan and plan["terms"]["epoch"] == told["epoch"], "this epoch is not open")
        assert plan is not None
        terms, rows = plan["terms"], [*plan["active"], *plan["run_offs"]]
        if terms["mode"] == "split":
            others = sorted(self.ends.keys() - {row.node for row in rows})
            rows += [Row(node, Fraction(terms["reserve"]), Fraction(0), Fraction(0)) for node in others]
        good = [[end for end in self.ends.get(row.node, []) if end["accepted"]] for row in rows]
        work = [sum(end["weight"] for end in ends) for ends in good]
        if terms["mode"] == "split" and sum(work):
            price = min(Fraction(terms["reserve"]), Fraction(plan["budget"] * 1000, sum(work)))
            rows = [row._replace(price=price, most=Fraction(one)) for row, one in zip(rows, work, strict=True)]
        exact = [row.price * min(Fraction(one), row.most) / 1000 for row, one in zip(rows, work, strict=True)]
        base = [int(amount) for amount in exact]
        rest = sum(int((amount - whole) * ONE) for amount, whole in zip(exact, base, strict=True)) // ONE
        quick = [sum(end["weight"] * quickness(end) for end in ends) // max(1, sum(end["weight"] for end in ends))
                 for ends in good]  # fmt: skip
        pay, total = base, sum(base)
        if terms["beta"] and total:
            mean = Fraction(sum(amount * q for amount, q in zip(base, quick, strict=True)), total)
            beta = Fraction(terms["beta"], 1000)
            pay = [math.floor(a * (1 + beta * (q - mean) / ONE)) for a, q in zip(base, quick, strict=True)]
        rest += total - sum(pay)
        spent, count = sum(pay) + rest, len(plan["active"])
        own = min(terms["budget"], spent)
        back = plan["forfeits"] - (spent - own)
        moves = [("escrow:run", -plan["budget"]), ("fund:operator", terms["budget"] - own), ("forfeit", back)]
        self.closed = []
        for k, row in enumerate(rows):
            later, grown = pay[k] // 5, self._grown(row.node)[1]
            self.closed.append([row.node, int(row.price), work[k], grown, pay[k], later, k < count])
            moves += [(f"node:{row.node}:accrued", pay[k] - later), (f"node:{row.node}:unvested", later)]
        moves.append(("rounding", rest))
        changes = {"since": plan["opened"], "short": plan["short"], "binding": plan["binding"], "nodes": self.closed}
        self._settle(at, plan, dict(zip([row.node for row in rows], work, strict=True)))
        return f"epoch:{told['epoch']}:closed", moves, changes

    def _settle(self, at: int, plan: Map, work: dict[str, int]) -> None:
        """Let the state after a close follow."""
        for node in self.ends:
            self._measure(node)
        for node, _, done, _, pay, later, _ in self.closed:
            for end in self._timed(node):
                self.shares[end["lease"]] = node, pay * end["weight"] // max(1, done), end["day"]
            if pay:
                old = merged(self.vesting.get(node, []), at)
                self.vesting[node] = [*old, [at, done, later, at, pay - later, pay - later, 0]]
        leave = plan["terms"]["run_off"] if plan["terms"]["mode"] != "split" else 0
        leaving = [row._replace(until=at + leave) for row in plan["active"] if leave]
        self.leavers = [
            one._replace(most=min(one.expected, max(Fraction(0), one.most - work.get(one.node, 0))))
            for one in [*leaving, *(row for row in plan["run_offs"] if row.until > at)]
        ]
        self.incumbents = {row[0] for row in self.closed if row[6]}
        self.ends, self.open, self.settled = {}, None, set()
        for node, one in list(self.nodes.items()):
            if one["covered"] and at - one["covered"][-1][1] >= DAY:
                self.nodes[node] = {**NEVER, "row": one["row"], "proven": one["proven"]}
            elif not one["covered"] and node not in self.vesting:
                del self.nodes[node]

    def _vested(self, at: int, told: Map) -> tuple[str, Any, Map]:
        amounts, moves = [], []
        for node, tranches in sorted(self.vesting.items()):
            parts = []
            for closed, _, unvested, since, *_ in tranches:
                passed = min(at - since, left := closed + DAY - since)
                parts.append((unvested * passed // left, passed) if passed > 0 and unvested else (0, 0))
            amount = sum(part for part, _ in parts)
            if amount:
                for one, (part, passed) in zip(tranches, parts, strict=True):
                    one[2], one[3], one[4] = one[2] - part, one[3] + passed, one[4] + part
                amounts.append([node, amount])
                moves += [(f"node:{node}:unvested", -amount), (f"node:{node}:accrued", amount)]
        check(amounts, "nothing vests")
        return self._again("vested", at), moves, {"epoch": self.epoch, "amounts": amounts}

    def _released(self, at: int, told: Map) -> tuple[str, Any, Map]:
        amounts, moves = [], []
        for node, tranches in sorted(self.vesting.items()):
            keep = self._kept(node, at)
            amount = sum(one[4] for one in tranches) - sum(keep)
            if amount:
                after = [[*one[:4], kept, *one[5:]] for one, kept in zip(tranches, keep, strict=True)]
                self.vesting[node] = merged(after, at)
                amounts.append([node, amount])
                moves += [(f"node:{node}:accrued", -amount), (f"node:{node}:payable", amount)]
        self.vesting = {node: tranches for node, tranches in self.vesting.items() if tranches}
        check(amounts, "nothing is released")
        return self._again("released", at), moves, {"epoch": self.epoch, "amounts": amounts}

    def _again(self, kind: str, at: int) -> str:
        key = f"epoch:{self.epoch}:{kind}" + (f":{at}" if kind in self.settled else "")
        self.settled.add(kind)
        return key

    def proven(self, node: str, at: int) -> bool:
        return bool(self.nodes.get(node, NEVER)["proven"])

    def _kept(self, node: str, at: int) -> list[int]:
        """Return what is held back of each tranche."""
        left, kept, proven = 40_000, [], self.proven(node, at)
        for closed, work, _, _, accrued, at_once, taken in reversed(self.vesting.get(node, [])):
            within = min(left, work) if at - closed < DAY else 0
            left -= within
            share = math.ceil(Fraction(at_once * within, work)) if work else 0
            kept.append(min(accrued, max(0, share - taken)) if proven else accrued)
        return kept[::-1]

    def _forfeited(self, at: int, told: Map) -> tuple[str, Any, Map]:
        node, left, taken, reach = told["node"], told["amount"], [0, 0], self._kept(told["node"], at)
        for one, kept in zip(reversed(self.vesting.get(node, [])), reversed(reach), strict=True):
            later = min(left, one[2])
            now = min(left - later, kept)
            left, taken = left - later - now, [taken[0] + later, taken[1] + now]
            one[2], one[4], one[6] = one[2] - later, one[4] - now, one[6] + now
        moves = [(f"node:{node}:unvested", -taken[0]), (f"node:{node}:accrued", -taken[1]), ("forfeit", sum(taken))]
        return f"forfeited:{told['lease'].hex()}", moves, {"lacking": left}

    def state(self) -> Map:
        """Return the market's part of the state."""
        plan = self.open and {
            **{name: self.open[name] for name in ("opened", "budget", "short", "binding")},
            "active": [row_of(row)[:4] for row in self.open["active"]],
            "run_offs": [row_of(row) for row in self.open["run_offs"]],
        }
        nodes, rates = sorted(self.nodes.items()), {node: self.rate(node) for node in self.asks}
        return {
            "epoch": self.epoch,
            "asks": dict(sorted(self.asks.items())),
            "measured": {node: {**one, "v": str(self._mean(node)), "rate": self.rate(node)} for node, one in nodes},
            "rho": {node: str(Fraction(ask, rates[node])) for node, ask in sorted(self.asks.items()) if rates[node]},
            "vesting": dict(sorted(self.vesting.items())),
            "open": plan,
            "closed": self.closed,
        }


def row_of(row: Row) -> list[Any]:
    return [row.node, str(row.price), str(row.expected), str(row.most), row.until]


def span(end: Map) -> tuple[int, int]:
    received, expires = end["received"], end["expires"]
    return end["sent"], max(end["sent"], expires if received is None else min(received, expires))


def quickness(end: Map) -> int:
    if end["received"] is None or end["expires"] <= end["sent"]:
        return 0
    left = max(0, end["expires"] - max(end["received"], end["sent"]))
    return int(left * ONE // (end["expires"] - end["sent"]))


def shared(leavers: list[Row], budget: int) -> list[Row]:
    """Return run-offs within a budget."""
    cost = sum(one.ceiling() for one in leavers)
    if cost <= budget:
        return leavers
    return [one._replace(most=one.most * Fraction(max(0, budget - len(leavers)), cost)) for one in leavers]


def merged(tranches: list[list[int]], at: int) -> list[list[int]]:
    """Return tranches, those as old as a day made into one."""
    old = [one for one in tranches if at - one[0] >= DAY]
    young = [one for one in tranches if at - one[0] < DAY]
    work, unvested, accrued = (sum(one[k] for one in old) for k in (1, 2, 4))
    return [[old[-1][0], work, unvested, old[-1][3], accrued, 0, 0], *young] if unvested + accrued else young
