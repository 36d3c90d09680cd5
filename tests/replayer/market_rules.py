"""The market of a ledger, computed again from its entries: docs/protocol/ledger.md, sections Market, Balances of
replaced keys and State of the market."""

import hashlib
import math
from collections import Counter
from fractions import Fraction
from itertools import accumulate
from typing import Any, NamedTuple

import msgpack

HOUR, MINUTE, DAY, ONE = 3_600_000, 60_000, 86_400_000, 1 << 32
FORMS = {
    "measured": ("measured:{node}:{at}", "node rate"),
    "epoch.announced": (
        "epoch:{epoch}:announced", "epoch closes milliseconds need reserve budget newcomers cap run_off"
    ),
    "owners.grouped": ("owners:{epoch}", "epoch owners"),
    "ask.sealed": ("sealed:{node}:{epoch}", "node epoch hash"),
    "epoch.drawn": ("epoch:{epoch}:drawn", "epoch beacon"),
    "ask.opened": ("opened:{node}:{epoch}", "node epoch ask salt"),
    "epoch.opened": ("epoch:{epoch}:opened", "epoch forfeits present"),
    "epoch.closed": ("epoch:{epoch}:closed", "epoch since short binding nodes"),
    "vested": ("epoch:{epoch}:vested", "epoch amounts"),
    "released": ("epoch:{epoch}:released", "epoch amounts"),
    "balance.disputed": ("disputed:{node}:{at}", "node successor"),
    "balance.moved": ("moved:{node}:{at}", "node successor accrued unvested payable"),
    "forfeited": ("forfeited:{lease}", "node lease amount lacking why"),
}  # fmt: skip
"""Kind of entry -> its key, and the fields of its facts behind `rules`: the table of section Market."""
DRAWN = {"owners.grouped": None, "ask.sealed": False, "epoch.drawn": False, "ask.opened": True, "epoch.opened": True}
"""Kinds about the announced epoch -> whether they stand behind its lottery; None: on either side."""
LIMITS = {
    "milliseconds": (1000, 7 * DAY), "need": (0, 10**15), "reserve": (1, 10**15),
    "budget": (0, 10**18), "newcomers": (0, 1000), "cap": (1, 1000), "run_off": (0, DAY),
}  # fmt: skip


class Wrong(Exception):
    """An entry does not follow from those before it."""


class Map(dict[str, Any]):
    """A map whose values are attributes as well."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


NEVER = Map(work=0, leased=0, rest=0, covered=[], rates=[], groups=0, row=0, proven=False)
Moves = list[tuple[str, int]]


def check(good: Any, why: str) -> None:
    if not good:
        raise Wrong(why)


def key_from(form: str, entry: Map) -> str:
    """Return the key of an entry: bytes stand in it in hexadecimal digits."""
    told = {name: one.hex() if isinstance(one, bytes) else one for name, one in entry.told.items()}
    return form.format_map({**told, "seq": entry.seq, "at": entry.at})


def shift(source: str, target: str, amount: int) -> Moves:
    return [(source, -amount), (target, amount)]


def faded(value: int, periods: int, half: int) -> int:
    """Return what is left of a value which halves in so many periods; n(k) is looked for by halving."""
    low, high, power = 0, ONE + 1, 1 << (32 * half - periods % half)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**half <= power else (low, middle)
    return (value * low // ONE) // 2 ** (periods // half)


class Offer(NamedTuple):
    """An offer. `cost`: per RE. `counted`: 20 times that by which the order is made. `lot`: in the lottery."""

    node: str
    rate: int
    cost: Fraction
    counted: Fraction
    newcomer: bool
    lot: bytes
    owner: bytes


class Row(NamedTuple):
    """A node that is paid: at a price, for at most `most` milli-RE, until a time if it is in its run-off."""

    node: str
    price: Fraction
    expected: Fraction
    most: Fraction
    until: int = 0

    def cost(self, work: Any) -> Fraction:
        return self.price * min(work, self.most) / 1000

    def stated(self) -> list[Any]:
        return [self.node, str(self.price), str(self.expected), str(self.most), self.until]


class Market:
    """The state of the market. `take` checks an entry against it, and then reads it. `balances`: of the ledger."""

    def __init__(self, run: bytes) -> None:
        self.run, self.epoch, self.balances = run, 0, Counter[str]()
        self.asks, self.benchmarks = dict[str, int](), dict[str, int]()
        self.suspended, self.banned = dict[str, int](), set[str]()
        self.announced, self.open, self.beacon = Map(epoch=0), Map(), b""
        self.sealed, self.owners, self.late = dict[str, bytes](), dict[str, bytes](), set[str]()
        self.nodes, self.ends, self.vesting = dict[str, Map](), dict[str, list[Map]](), dict[str, list[list[int]]]()
        self.shares, self.taken_back = dict[bytes, tuple[str, int, Any]](), set[Any]()
        self.incumbents, self.settled, self.credited = set[str](), set[str](), Counter[str]()
        self.leavers, self.closed, self.replaced = list[Row](), list[list[Any]](), dict[str, list[Any]]()
        """Replaced key -> its successor, the end of its wait, whether it is disputed, whether its balance has moved."""

    def take(self, entry: Map) -> bool:
        """Read the next entry; tell whether its key and its postings were checked."""
        at, kind, told = entry.at, entry.kind, entry.told
        if kind in FORMS:
            self._check(entry)
        elif kind in ("lease.accepted", "lease.refused", "lease.expired"):
            day = (told.node, at // DAY) if told.code == "quarantine" else None
            self.ends.setdefault(told.node, []).append(Map(told, accepted=kind == "lease.accepted", day=day))
        elif kind == "lease.reversed" and told.paid:
            self.suspended.pop(told.node, None)
            node = self._holder(told.node)
            self.credited[node] += told.weight
            if told.weight:
                self.ends.setdefault(node, [])
        elif kind == "lease.reversed":
            self.taken_back.add(told.lease)
        elif kind == "quarantine.ended" and not told.released:
            self.taken_back.add((told.node, told.day))
        elif kind == "node.suspended":
            self.suspended[told.node] = told.until
        elif kind == "node.banned":
            self.banned.add(told.node)
        elif kind == "node.unbanned":
            self.suspended.pop(told.node, None)
            self.banned.discard(told.node)
        elif kind == "key.rotated":
            self._rotate(at, told.node, told.successor)
        return kind in FORMS

    def _check(self, entry: Map) -> None:
        key, facts, moves = self.following(entry)
        check(entry.key == key, f"the key {key} follows")
        check(entry.facts == facts, f"other facts follow: {msgpack.unpackb(facts)}")
        check(entry.postings == moves, f"it moves {entry.postings}, where {moves} follows")

    def following(self, entry: Map) -> tuple[str, bytes, list[list[Any]]]:
        """Return key, facts and postings that follow: the kind's rule returns postings, and writes into the facts."""
        form, fields = FORMS[entry.kind]
        told = Map(rules=1, **{name: entry.told[name] for name in fields.split()})
        again = ":{at}" if entry.kind in self.settled else ""
        if entry.kind in DRAWN:
            check(self.announced.epoch == told.epoch, f"epoch {told.epoch} is not the announced one")
            check(DRAWN[entry.kind] in (None, bool(self.beacon)), "the lottery is drawn already, or not yet")
        moves = getattr(self, "_" + entry.kind.replace(".", "_"))(entry.at, told) or []
        key = key_from(form + again, Map(entry, told=told))
        return key, msgpack.packb(told), [list(one) for one in moves if one[1]]

    # the terms of an epoch, and its asks

    def _measured(self, at: int, told: Map) -> None:
        check(0 < told.rate <= 10**12, "no benchmark has such a rate")
        self.benchmarks[told.node] = told.rate

    def _epoch_announced(self, at: int, told: Map) -> None:
        check(not self.announced.epoch and told.epoch == self.epoch + 1, "it is not the next epoch")
        check(all(least <= told[name] <= most for name, (least, most) in LIMITS.items()), "a term is out of its limits")
        check(told.closes > at, "its closing time is none")
        self.announced, self.sealed, self.owners, self.beacon, self.late = told, {}, {}, b"", set()

    def _owners_grouped(self, at: int, told: Map) -> None:
        self.owners = dict(told.owners)
        told.owners = sorted(map(list, self.owners.items()))

    def _ask_sealed(self, at: int, told: Map) -> None:
        check(at <= self.announced.closes, "asks are closed")
        check(len(told.hash) == 32 and told.node not in self.sealed, "an ask was sealed, or this is no hash")
        self.sealed[told.node] = told.hash

    def _epoch_drawn(self, at: int, told: Map) -> None:
        check(at > self.announced.closes and len(told.beacon) == 32, "asks are not closed, or this is no beacon")
        self.beacon = told.beacon

    def _ask_opened(self, at: int, told: Map) -> None:
        check(at > self.announced.closes, "asks are not closed")
        check(1000 <= told.ask <= 10**14 and len(told.salt) >= 16, "the ask or its salt is out of the limits")
        stated = msgpack.packb(["ask", self.run, told.node, told.epoch, told.ask, told.salt])
        check(hashlib.sha256(stated).digest() == self.sealed.pop(told.node, None), "this ask was not sealed")
        check(4 * told.ask <= 5 * self.asks.get(told.node, told.ask), "the ask rises by more than a quarter")
        self.asks[told.node] = told.ask

    def _epoch_opened(self, at: int, told: Map) -> Moves:
        check(not self.open, "an epoch is open")
        self.suspended = {node: until for node, until in self.suspended.items() if until > at}
        here, terms = sorted(set(told.present) - self.suspended.keys() - self.banned), self.announced
        forfeits = self.balances["forfeit"]
        budget = terms.budget + forfeits
        offered = [node for node in here if node in self.asks and node not in self.late and self.rate(node)]
        active, run_offs, short, binding = self._plan([self._offer(node) for node in offered], budget, at)
        self.open = Map(opened=at, budget=budget, short=short, binding=binding, active=active, run_offs=run_offs)
        self.open.update(terms=terms, forfeits=forfeits)
        self.epoch, self.announced, self.sealed, self.beacon, self.late = told.epoch, Map(epoch=0), {}, b"", set()
        self.settled = set()
        known = {*here, *self.nodes, *self.vesting}
        self.asks = {node: ask for node, ask in self.asks.items() if node in known}
        self.benchmarks = {node: rate for node, rate in self.benchmarks.items() if node in known}
        told.update(forfeits=forfeits, present=here)
        return [("fund:operator", -terms.budget), ("forfeit", -forfeits), ("escrow:run", budget)]

    # paragraph Measurement

    def _of(self, node: str) -> Map:
        return self.nodes.get(node, NEVER)

    def _mean(self, node: str) -> Fraction:
        one = self._of(node)
        return Fraction(one.work * HOUR, one.leased) if one.leased else Fraction()

    def rate(self, node: str) -> int:
        one, mean, benchmark = self._of(node), self._mean(node), self.benchmarks.get(node, 0)
        if one.groups < 30:
            return min(benchmark or int(mean), int(mean)) if one.leased else benchmark
        count, total, error = len(one.rates), sum(one.rates), Fraction(1)
        if total:
            square = Fraction(count * sum(rate * rate for rate in one.rates) - total**2, count * total**2) * 10**18
            root = math.isqrt(int(square))
            error = Fraction(root + (root * root < square), 10**9)
        return int(mean * max(1 - Fraction(41, 25) * error, Fraction(1, 2)))

    def _grown(self, node: str) -> tuple[list[list[int]], int]:
        """Return the union of a node's leased time with that of its ends, and by how much it grows."""
        before, union = self._of(node).covered, list[list[int]]()
        first = before[0][1] if len(before) == 64 else 0
        new = [(max(begin, first), stop) for begin, stop in map(span, self.ends.get(node, []))]
        for begin, stop in sorted([*map(tuple, before), *(one for one in new if one[0] < one[1])]):
            if union and begin <= union[-1][1]:
                union[-1][1] = max(union[-1][1], stop)
            else:
                union.append([begin, stop])
        return union[-64:], sum(stop - begin for begin, stop in union) - sum(stop - begin for begin, stop in before)

    def _measure(self, node: str) -> None:
        one, (covered, grown) = Map(self._of(node)), self._grown(node)
        accepted = [end for end in self.ends.get(node, []) if end.accepted]
        minutes, one.rest = divmod(one.rest + grown, MINUTE)
        one.work = faded(one.work, minutes, 60) + sum(end.weight for end in accepted)
        one.leased = faded(one.leased, minutes, 60) + grown
        rates = [end.weight * HOUR // max(1, span(end)[1] - span(end)[0]) for end in accepted]
        one.update(covered=covered, rates=[*one.rates, *rates][-64:], groups=one.groups + len(accepted))
        for end in self.ends.get(node, []):
            one.row = one.row if end.code == "declined" else one.row + 1 if end.accepted else 0
            one.proven = one.proven or one.row >= 10
        self.nodes[node] = one

    # paragraphs Activation and prices, and Budget

    def _offer(self, node: str) -> Offer:
        rate, owner = self.rate(node), self.owners.get(node, node.encode())
        cost = Fraction(1000 * self.asks[node], rate)
        lot = hashlib.sha256(self.beacon + node.encode()).digest()
        counted = cost * (20 - (node in self.incumbents))
        return Offer(node, rate, cost, counted, self._of(node).groups < 30, lot, owner)

    def _most(self) -> Any:
        """Return what may count of an owner."""
        terms = self.announced
        return math.inf if terms.cap == 1000 else terms.cap * terms.need // 1000

    def _counts(self, offers: list[Offer]) -> dict[str, int]:
        used, counts = Counter[bytes](), dict[str, int]()
        for one in offers:
            counts[one.node] = min(one.rate, self._most() - used[one.owner])
            used[one.owner] += counts[one.node]
        return counts

    def _plan(self, offers: list[Offer], budget: int, at: int) -> tuple[list[Row], list[Row], int, bool]:
        """Return the active nodes, those in their run-off, what the need lacks, and whether the budget binds."""
        leavers = [one for one in self.leavers if one.until > at]
        rows, short, binding = self._clear(offers, budget)
        gone = shared(without(leavers, rows), budget)
        if gone:
            left = budget - ceilings(gone)
            rows, short, binding = self._clear(offers, left)
            late = without(leavers, [*rows, *gone])
            gone = [*without(gone, rows), *shared(late, max(0, left - ceilings(rows)))]
        return rows, gone, short, binding

    def _clear(self, offers: list[Offer], budget: int) -> tuple[list[Row], int, bool]:
        """Return the active nodes with prices, what the need lacks, and whether the budget binds."""
        terms = self.announced
        need, reserve = terms.need, Fraction(terms.reserve)
        fitting = sorted((one for one in offers if one.cost <= reserve), key=lambda one: one.lot)
        measured = [one for one in fitting if not one.newcomer]
        measured.sort(key=lambda one: one.counted)
        counts = self._counts([*measured, *(one for one in fitting if one.newcomer)])
        ready = [one for one in measured if counts[one.node]]
        fresh = [one for one in fitting if one.newcomer and counts[one.node]]

        def rate(those: list[Offer]) -> int:
            return sum(counts[one.node] for one in those)

        def reaching(those: list[Offer], asked: Any) -> list[Offer]:
            return those[: next((k for k in range(len(those)) if rate(those[:k]) >= asked), len(those))]

        rest = ready[len(reaching(ready, need)) :]
        fresh = [one for one in fresh if not rest or one.counted <= rest[0].counted]
        half = Fraction(terms.newcomers * need, 2000)
        first = reaching(fresh, max(half, need - rate(ready)) if ready else need)
        still = need - rate(first)
        chosen = reaching(ready, still)
        more = reaching(fresh[len(first) :], still - rate(chosen))
        active = [*chosen, *first, *more]

        def price(one: Offer) -> Fraction:
            if one.newcomer:
                return one.cost
            decides = self._pivot(one, measured, still)
            return reserve if decides is None else min(reserve, decides * one.cost / one.counted)

        expected = [Fraction(counts[one.node] * terms.milliseconds, HOUR) for one in active]
        rows = [Row(one.node, price(one), work, work) for one, work in zip(active, expected, strict=True)]
        short, spent = max(0, need - rate(active)), ceilings(rows)
        if spent <= budget:
            beyond = [Fraction(budget, spent) if counts[one.node] == one.rate else 1 for one in active]
            return [row._replace(most=row.most * more) for row, more in zip(rows, beyond, strict=True)], short, False
        limits = [Fraction(budget * 1000) / work for work in accumulate(expected)]
        dearest = accumulate((one.cost for one in active), max)
        stay = max((k for k, top in enumerate(dearest, 1) if top <= limits[k - 1]), default=0)
        return [row._replace(price=min(row.price, limits[stay - 1])) for row in rows[:stay]], short, True

    def _pivot(self, mine: Offer, measured: list[Offer], need: int) -> Fraction | None:
        others, total, owned = [one for one in measured if one is not mine], 0, 0
        counts = self._counts(others)
        for one in others:
            total += counts[one.node]
            owned += one.rate * (one.owner == mine.owner)
            if total >= need or owned >= self._most():
                return one.counted
        return None

    # paragraph Pay

    def _epoch_closed(self, at: int, told: Map) -> Moves:
        check(self.open and self.open.terms.epoch == told.epoch, "this epoch is not open")
        plan, terms, rows = self.open, self.open.terms, [*self.open.active, *self.open.run_offs]
        ends = {row.node: self.ends.get(row.node, []) for row in rows}
        work = {node: sum(end.weight for end in some) + self.credited[node] for node, some in ends.items()}
        exact = [row.cost(work[row.node]) for row in rows]
        pay, rest = [int(amount) for amount in exact], sum(int(amount % 1 * ONE) for amount in exact) // ONE
        own = min(terms.budget, sum(pay) + rest)
        moves = [("escrow:run", -plan.budget), ("fund:operator", terms.budget - own)]
        moves += [("forfeit", plan.forfeits + own - sum(pay) - rest)]
        self.closed = []
        for k, (row, due) in enumerate(zip(rows, pay, strict=True)):
            leased, active = self._grown(row.node)[1], k < len(plan.active)
            self.closed.append([row.node, int(row.price), work[row.node], leased, due, due // 5, active])
            moves += [(f"node:{row.node}:accrued", due - due // 5), (f"node:{row.node}:unvested", due // 5)]
        self._settle(at, plan)
        told.update(since=plan.opened, short=plan.short, binding=plan.binding, nodes=self.closed)
        return [*moves, ("rounding", rest)]

    def _settle(self, at: int, plan: Map) -> None:
        """Let the state after a close follow."""
        for node in self.ends:
            self._measure(node)
        for node, _, done, _, pay, later, _ in self.closed:
            for end in self.ends.get(node, []):
                self.shares[end.lease] = node, pay * end.weight // max(1, done), end.day
            if pay:
                tranche = [at, done, later, at, pay - later, pay - later, 0]
                self.vesting[node] = [*merged(self.vesting.get(node, []), at), tranche]
        leave, work = plan.terms.run_off, {row[0]: row[2] for row in self.closed}
        leaving = [*(row._replace(until=at + leave) for row in plan.active), *plan.run_offs]
        self.leavers = [
            row._replace(most=min(row.expected, max(Fraction(0), row.most - work[row.node])))
            for row in leaving if row.until > at
        ]  # fmt: skip
        self.incumbents = {row[0] for row in self.closed if row[6]}
        self.ends, self.credited, self.open = {}, Counter(), Map()
        for node, one in list(self.nodes.items()):
            if one.covered and at - one.covered[-1][1] >= DAY:
                self._forget(node)
            elif not one.covered and node not in self.vesting:
                del self.nodes[node]

    def _forget(self, node: str) -> None:
        """Forget a measurement, but not whether 10 groups in a row were accepted, nor how many were last."""
        self.nodes[node] = Map(NEVER, row=self.nodes[node].row, proven=self.nodes[node].proven)

    def _vested(self, at: int, told: Map) -> Moves:
        amounts = []
        for node, tranches in sorted(self.vesting.items()):
            passed = [max(0, min(at, one[0] + DAY) - one[3]) * (one[2] > 0) for one in tranches]
            parts = [
                one[2] * time // (one[0] + DAY - one[3] or DAY) for one, time in zip(tranches, passed, strict=True)
            ]
            amounts += [[node, sum(parts)]] if sum(parts) else []
            for one, part, time in zip(tranches, parts, passed, strict=True) if sum(parts) else ():
                one[2], one[3], one[4] = one[2] - part, one[3] + time, one[4] + part
        return self._amounts("vested", told, amounts, "unvested", "accrued")

    def _released(self, at: int, told: Map) -> Moves:
        amounts = []
        for node, tranches in sorted(self.vesting.items()):
            keep = self._kept(node, at)
            amount = sum(one[4] for one in tranches) - sum(keep)
            if amount:
                amounts.append([node, amount])
                after = [[*one[:4], kept, *one[5:]] for one, kept in zip(tranches, keep, strict=True)]
                self.vesting[node] = merged(after, at)
        self.vesting = {node: tranches for node, tranches in self.vesting.items() if tranches}
        return self._amounts("released", told, amounts, "accrued", "payable")

    def _amounts(self, kind: str, told: Map, amounts: list[list[Any]], source: str, target: str) -> Moves:
        check(amounts, f"nothing is {kind}")
        self.settled.add(kind)
        told.update(epoch=self.epoch, amounts=amounts)
        return [one for node, n in amounts for one in shift(f"node:{node}:{source}", f"node:{node}:{target}", n)]

    def _kept(self, node: str, at: int) -> list[int]:
        """Return what is held back of each tranche."""
        _, due, disputed, _ = self.replaced.get(node, ("", 0, False, False))
        left, kept, proven = 40_000, [], self._of(node).proven or (disputed and at >= due)
        for closed, work, _, _, accrued, at_once, taken in reversed(self.vesting.get(node, [])):
            within = min(left, work) if at - closed < DAY else 0
            left -= within
            share = math.ceil(Fraction(at_once * within, work))
            kept.append(min(accrued, max(0, share - taken)) if proven else accrued)
        return kept[::-1]

    def _forfeited(self, at: int, told: Map) -> Moves:
        owner, share, day = self.shares.get(told.lease, ("", 0, None))
        check({told.lease, day} & self.taken_back, "its group was not taken back")
        check(share and told.amount == share, f"its group earned {share}")
        check(told.node == self._holder(owner), f"its group is of {owner}")
        left, later, now = share, 0, 0
        for one, kept in zip(self.vesting.get(told.node, [])[::-1], self._kept(told.node, at)[::-1], strict=True):
            parts = min(left, one[2]), min(max(0, left - one[2]), kept)
            one[2], one[4], one[6] = one[2] - parts[0], one[4] - parts[1], one[6] + parts[1]
            left, later, now = left - sum(parts), later + parts[0], now + parts[1]
        told.lacking = left
        return [(f"node:{told.node}:unvested", -later), (f"node:{told.node}:accrued", -now), ("forfeit", later + now)]

    # section Balances of replaced keys

    def _rotate(self, at: int, node: str, successor: str) -> None:
        self.replaced[node] = [successor, at + 3 * DAY, False, False]
        self.replaced.pop(successor, None)
        tables: list[dict[str, Any]] = [self.asks, self.benchmarks, self.suspended]
        for table in tables:
            if node in table:
                table[successor] = table.pop(node)
        if node in self.nodes:
            self.nodes[successor] = self.nodes[node]
            self._forget(node)
        self.banned |= {node, successor} if node in self.banned else {node}
        self.late |= {successor} if self.beacon else set()

    def _holder(self, node: str) -> str:
        while node in self.replaced and self.replaced[node][3]:
            node = self.replaced[node][0]
        return node

    def _balance_disputed(self, at: int, told: Map) -> None:
        wait = self.replaced[told.node]
        check(not wait[2] and at < wait[1], "it cannot be disputed any more")
        wait[2] = True
        told.successor = wait[0]

    def _balance_moved(self, at: int, told: Map) -> Moves:
        node, (new, due, disputed, _) = told.node, self.replaced[told.node]
        check(not disputed and at >= due, "its balance does not move, or not yet")
        sums = {name: self.balances[f"node:{node}:{name}"] for name in ("accrued", "unvested", "payable")}
        check(any(sums.values()), "it has no balance")
        self.replaced[node][3] = True
        tranches = [*self.vesting.pop(node, []), *self.vesting.get(new, [])]
        if tranches:
            self.vesting[new] = sorted(tranches, key=lambda one: one[0])
        if self._of(node).proven:
            self.nodes[new] = Map(self._of(new), proven=True)
        told.update(sums, successor=new)
        return [(f"node:{one}:{name}", sign * n) for one, sign in ((node, -1), (new, 1)) for name, n in sums.items()]

    def state(self) -> dict[str, Any]:
        """Return the market's part of the state (section State of the market)."""
        rates = {node: self.rate(node) for node in {*self.nodes, *self.asks}}
        plan = {name: self.open[name] for name in ("opened", "budget", "short", "binding")} if self.open else None
        if plan:
            plan["active"] = [row.stated()[:4] for row in self.open.active]
            plan["run_offs"] = [row.stated() for row in self.open.run_offs]
        measured = {node: {**one, "v": str(self._mean(node)), "rate": rates[node]} for node, one in self.nodes.items()}
        return {
            "epoch": self.epoch,
            "asks": dict(sorted(self.asks.items())),
            "measured": dict(sorted(measured.items())),
            "rho": {node: str(Fraction(ask, rates[node])) for node, ask in sorted(self.asks.items()) if rates[node]},
            "vesting": dict(sorted(self.vesting.items())),
            "open": plan,
            "closed": self.closed,
            "replaced": dict(sorted(self.replaced.items())),
        }


def span(end: Map) -> tuple[int, int]:
    stop = end.expires if end.received is None else min(end.received, end.expires)
    return end.sent, max(end.sent, stop)


def without(rows: list[Row], others: list[Row]) -> list[Row]:
    return [row for row in rows if row.node not in {one.node for one in others}]


def ceilings(rows: list[Row]) -> int:
    """Return what rows cost at most, each rounded up."""
    return sum(math.ceil(row.cost(row.most)) for row in rows)


def shared(leavers: list[Row], budget: int) -> list[Row]:
    """Return the first run-offs, as many as a budget covers whole."""
    return [row for k, row in enumerate(leavers, 1) if ceilings(leavers[:k]) <= budget]


def merged(tranches: list[list[int]], at: int) -> list[list[int]]:
    """Return tranches, those as old as a day made into one."""
    old, young = ([one for one in tranches if (at - one[0] >= DAY) == aged] for aged in (True, False))
    work, unvested, accrued = (sum(one[k] for one in old) for k in (1, 2, 4))
    return [[old[-1][0], work, unvested, old[-1][3], accrued, 0, 0], *young] if unvested + accrued else young
