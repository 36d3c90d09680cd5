"""Histories of a ledger from a seed, in a real ledger in memory: leases, standing, quarantine, reversals, epochs of a
market, payments."""

import hashlib
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.accounts import reversals
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.schema import SCRIPT
from echo2.coordinator.market import balance_moves, epochs
from echo2.coordinator.market.entries import AskOpened, AskSealed, BalanceMoved, EpochAnnounced, EpochOpened, NewEntry
from echo2.coordinator.market.market_replay import ReplayedMarket
from echo2.coordinator.market.throughput import Throughput
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.ledger.balance_waits import BalanceDisputed
from echo2.ledger.costs_in_force import CostsSet, seal_costs
from echo2.ledger.ledger_entries import (
    ESCROW,
    FORFEIT,
    FUND,
    Entry,
    Posting,
    accrued_account,
    quarantine_account,
    transfer,
    unvested_account,
)
from echo2.ledger.ledger_facts import (
    CanaryVested,
    KeyRotated,
    LeaseCounts,
    LeaseReversed,
    LeasesEnded,
    QuarantineEnded,
    Remark,
    Suspended,
)
from echo2.ledger.payout_facts import (
    PayoutEnded,
    PayoutPlanned,
    PayoutQuestioned,
    PayoutRestored,
    PayoutSent,
    payable,
    payment_id,
)
from echo2.p2p.identity import peer_id
from echo2.protocol.group_weights import Costs, GroupLengths, group_weight
from echo2.protocol.sealed_asks import BadAsk, commitment
from echo2.runtime.units import DAY

QUARTER = 900_000
START = 1_800_000_000_000
REFUSALS = ("drift", "evidence", "near-ties", "wrong-prompt", "late", "not-generated")
ACCEPTED = ("ok", "ok", "ok", "ok", "ok", "task-score", "quarantine", "canary")


def memory() -> Database:
    """Return an empty database in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(SCRIPT)
    return Database(connection, Path("memory"), None)


class GeneratedLedger:
    """One history. `market`: None in a run of points, whose weight moves at the verdict."""

    def __init__(self, seed: int, database: Database, run: bytes, key: Ed25519PrivateKey, *, market: bool) -> None:
        self.dice, self.seed = random.Random(seed), seed
        self.ledger, self.run, self.key = Ledger(database), run, key
        self.market = ReplayedMarket(run) if market else None
        self.now, self.number = START, 0
        self.nodes = [peer_id(bytes([number]) * 32) for number in range(1, self.dice.randint(3, 8))]
        self.costs: tuple[int, Costs | None] = (0, None)
        self.outcomes: list[LeaseOutcome] = []
        self.kept: dict[tuple[str, int], list[int]] = {}
        self.canaries: list[LeaseOutcome] = []
        self.reversed: set[bytes] = set()
        self.taken_back: list[bytes] = []
        """Leases of groups that were accepted, and are refused after the fact."""
        self.plans, self.sent = 0, list[list[Any]]()
        self.lost: list[PayoutRestored] = []
        """Payments of which a restored ledger lacks the entries, and that are not put back yet."""
        self.aside: list[Entry] = []
        """Entries that replayers judge in their place, and that are left out."""

    def write(self, entries: int) -> "GeneratedLedger":
        """Append steps until there are so many entries."""
        steps = [self.group] * 12 + [self.refusal, self.expiry, self.keys, self.reversal, self.quarantine]
        steps += [self.together, self.set_costs, self.canary, self.payment, self.rotation, self.dispute, self.balances]
        if self.market is not None and self.dice.random() < 0.6:
            self.measured_nodes()
        while self.ledger.tip().entries < entries:
            self.now += self.dice.choice((1, 40, 1_000, 30_000))
            if self.dice.random() < 0.003:
                self.now += 8 * DAY
            if self.market is not None and self.dice.random() < 0.08:
                self.epoch_step()
            else:
                self.dice.choice(steps)()
        return self

    def append(self, kind: str, key: str, facts: msgspec.Struct, postings: Sequence[Posting] = ()) -> Entry:
        entry = self.ledger.append(self.now, kind, key, facts, postings)
        if self.market is not None:
            self.market.take(entry)
        return entry

    def weight(self, source: str, target: str, amount: int) -> tuple[Posting, ...]:
        """Return the postings of weight that moves."""
        if self.market is not None:
            return ()
        if source == ESCROW:
            self.ledger.issue_points(self.now, amount)
        return transfer(source, target, amount)

    def outcome(
        self, node: str, code: str, turns: Sequence[Sequence[int]] = (), prompt: int = 0, **more: object
    ) -> LeaseOutcome:
        """Return the end of a lease. `turns`, `prompt`: lengths, of which the numbers of tokens are the sums."""
        self.number += 1
        sent = self.now - self.dice.randint(0, 60_000)
        usual = {
            "node": node, "lease": self.number.to_bytes(16, "big"), "era": 0, "version": 1, "sent": sent,
            "expires": sent + self.dice.choice((20_000, 60_000, QUARTER)), "received": self.now, "code": code,
            "rollouts": len(turns), "tokens_in": sum(prompt + sum(one[1::2]) for one in turns),
            "tokens_out": sum(sum(one[::2]) for one in turns), "weight": 0, "trainable": True, "prompt": prompt,
            "turns": [list(one) for one in turns],
            "submission_hash": bytes(32), "rules": self.dice.choice((2, 3, 3, 3)),
        }  # fmt: skip
        return LeaseOutcome(**{**usual, **more})

    def lengths(self) -> GroupLengths:
        turns = [[self.dice.randint(1, 300) for _ in range(self.dice.choice((1, 1, 3)))] for _ in range(4)]
        if self.dice.random() < 0.1:
            turns[0] = [0, 5]
        return GroupLengths(self.dice.randint(1, 500), turns)

    # verdicts

    def group(self) -> None:
        lengths, code = self.lengths(), self.dice.choice(ACCEPTED)
        amount = group_weight(self.costs[1], lengths)
        node = self.dice.choice(self.nodes[: 1 + len(self.nodes) // 2] if self.dice.random() < 0.7 else self.nodes)
        one = self.outcome(
            node, code, lengths.turns, lengths.prompt, weight=amount, costs=self.costs[0],
            audited=self.dice.choice(("", "exact", "exact")),
        )  # fmt: skip
        target = {"quarantine": quarantine_account, "canary": unvested_account}.get(code, accrued_account)(node)
        self.append("lease.accepted", f"lease:{one.lease.hex()}", one, self.weight(ESCROW, target, amount))
        self.outcomes.append(one)
        if code == "quarantine":
            self.kept.setdefault((node, self.now // DAY), []).append(amount)
        if code == "canary":
            self.canaries.append(one)

    def refusal(self) -> None:
        one = self.outcome(self.dice.choice(self.nodes), self.dice.choice(REFUSALS))
        self.append("lease.refused", f"lease:{one.lease.hex()}", one)
        self.outcomes.append(one)

    def expiry(self) -> None:
        code = self.dice.choice(("expired", "declined"))
        one = self.outcome(self.dice.choice(self.nodes), code, received=None, submission_hash=None)
        self.append("lease.expired", f"lease:{one.lease.hex()}", one)

    def together(self) -> None:
        chosen = sorted(self.dice.sample(self.nodes, 2))
        counts = [LeaseCounts(node, self.dice.randint(0, 3), 2, self.dice.randint(0, 1)) for node in chosen]
        fact = LeasesEnded(ends=sum(one.without_group + one.refused for one in counts), root=bytes(32), counts=counts)
        self.append("leases.ended", f"ends:{self.ledger.tip().entries + 1}", fact)

    def quarantine(self) -> None:
        days = sorted(day for day in self.kept if day[1] < self.now // DAY or self.dice.random() < 0.2)
        if not days:
            return
        node, day = days[0]
        weights = self.kept.pop(days[0])
        if self.ledger.find(f"quarantine:{node}:{day}"):
            self.kept[days[0]] = weights
            return
        released = self.dice.random() < 0.6
        if not released:
            kept = [one for one in self.outcomes if (one.node, one.code) == (node, "quarantine")]
            self.taken_back += [one.lease for one in kept if one.received is not None and one.received // DAY == day]
        fact = QuarantineEnded(
            rules=3, node=node, day=day, groups=len(weights), weight=sum(weights), released=released
        )  # fmt: skip
        moves = self.weight(quarantine_account(node), accrued_account(node) if released else ESCROW, sum(weights))
        self.append("quarantine.ended", f"quarantine:{node}:{day}", fact, moves)

    def canary(self) -> None:
        if self.canaries:
            one = self.canaries.pop(0)
            fact = CanaryVested(node=one.node, lease=one.lease, weight=one.weight)
            moves = self.weight(unvested_account(one.node), accrued_account(one.node), one.weight)
            self.append("canary.vested", f"vested:{one.lease.hex()}", fact, moves)

    def reversal(self) -> None:
        apart = ("quarantine", "canary")
        open_ = [one for one in self.outcomes if one.code not in apart and one.lease not in self.reversed]
        if not open_:
            return
        one = self.dice.choice(open_)
        self.reversed.add(one.lease)
        paid = one.weight == 0 and not one.rollouts
        if not paid:
            self.taken_back.append(one.lease)
        lengths = self.lengths()
        amount = group_weight(self.costs[1], lengths) if paid else one.weight
        told = {"prompt": lengths.prompt, "turns": [list(t) for t in lengths.turns]}
        there = (
            amount if paid or self.market is not None else min(self.ledger.balance(accrued_account(one.node)), amount)
        )
        fact = LeaseReversed(
            node=one.node, lease=one.lease, code=one.code, paid=paid, weight=amount, lacking=amount - there,
            audited=self.dice.random() < 0.5, by="operator", why="a check", costs=self.costs[0] if paid else 0,
            **(told if paid else {}),  # type: ignore[arg-type]
        )  # fmt: skip
        source, target = (ESCROW, accrued_account(one.node)) if paid else (accrued_account(one.node), ESCROW)
        self.append("lease.reversed", f"{reversals.PREFIX}{one.lease.hex()}", fact, self.weight(source, target, there))

    def set_costs(self, **told: int) -> None:
        before = self.costs[1]
        usual = {
            "given": self.dice.randint(1, 2_000), "attention": self.dice.randint(0, 9), "decode": 29, "denominator": 8,
            "unit": 500_000,
        }  # fmt: skip
        costs = Costs(run=self.run, builds=["a build"], at=1 if before is None else before.at + 1, **{**usual, **told})
        sealed = seal_costs(costs, self.key)
        digest = hashlib.sha256(sealed).digest()
        fact = CostsSet(costs=digest, sealed=sealed)
        self.costs = self.append("costs.set", f"costs:{digest.hex()}", fact).seq, costs

    # keys

    def keys(self) -> None:
        node, key = self.dice.choice(self.nodes), f":{self.ledger.tip().entries + 1}"
        kind = self.dice.choice(("suspended", "vouched", "banned", "unbanned", "noted", "unbanned"))
        fact: msgspec.Struct = Remark(node=node, why='a remark with ä and \\ and "quotes"')
        if kind == "suspended":
            until = self.now + self.dice.choice((1_000, QUARTER))
            fact = Suspended(node=node, code="drift", evidence=bytes(32), since=self.now, until=until)
        self.append(f"node.{kind}", f"key:{node}{key}", fact)

    def rotation(self) -> None:
        if self.dice.random() < 0.4:
            old = self.dice.choice((self.nodes[-1], self.dice.choice(self.nodes)))
            new = peer_id(bytes([100 + len(self.nodes), self.number % 256]) * 16)
            fact = KeyRotated(node=old, successor=new)
            self.append("key.rotated", f"key:{new}:{self.ledger.tip().entries + 1}", fact)
            self.nodes.append(new)

    def dispute(self) -> None:
        if self.market is not None and self.dice.random() < 0.3:
            waits = self.market.market.waits
            for node, wait in waits.items():
                fact = BalanceDisputed(node=node, successor=wait.successor)
                for at in [wait.due, *([self.now] if wait.disputed else [])]:
                    self.note("balance.disputed", f"disputed:{node}:{at}", fact, at=at)
            for node in [node for node, wait in waits.items() if not wait.disputed and self.now < wait.due][:1]:
                self.put(balance_moves.dispute(self.market.market, self.now, node))

    def balances(self) -> None:
        """Move the balances of replaced keys that are due; let the time of the first one pass before, or not."""
        if self.market is None:
            return
        waits = self.market.market.waits.values()
        if self.dice.random() < 0.3:
            self.now = max(self.now, min((one.due for one in waits if not one.moved), default=0))
        movable = set(balance_moves.due(self.market.market, self.now))
        for node, wait in self.market.market.waits.items():
            if node not in movable and not wait.disputed and self.now >= wait.due:
                nothing = BalanceMoved(node=node, successor=wait.successor, accrued=0, unvested=0, payable=0)
                self.note("balance.moved", f"moved:{node}:{self.now}", nothing)
        for node in balance_moves.due(self.market.market, self.now):
            self.put(balance_moves.move_balance(self.market.market, self.now, node))

    # the market

    def measured_nodes(self) -> None:
        """Let some nodes have so many groups that their measurement counts."""
        for node in self.nodes[: self.dice.randint(1, 5)]:
            apart = self.dice.random() < 0.6
            for _ in range(self.dice.choice((29, 30, 33, 64, 65, 70))):
                self.now += 1_000
                weight = self.dice.randint(5_000, 20_000) if self.dice.random() < 0.9 else 0
                turns = [[weight * 128 // 1_000]]
                times = {"sent": self.now - self.dice.choice((500, 900, 3_000))} if apart else {}
                one = self.outcome(node, "ok", turns, costs=self.costs[0], **times)
                one = msgspec.structs.replace(one, weight=group_weight(self.costs[1], GroupLengths(0, turns)))
                self.append("lease.accepted", f"lease:{one.lease.hex()}", one)

    def epoch_step(self) -> None:
        """Close the epoch and go through the steps of the next one; some of these come first."""
        assert self.market is not None
        state = self.market.market
        if self.dice.random() < 0.2:
            self.measured_nodes()
        early = state.open is not None and self.dice.random() < 0.5
        if early:
            self.announce()
        if state.open is not None:
            self.now += self.dice.choice((QUARTER, QUARTER, QUARTER, QUARTER, 20 * QUARTER, DAY, 100 * QUARTER))
            self.put(epochs.close_epoch(state, self.now))
            self.put(epochs.vest(state, self.now))
            self.put(epochs.release(state, self.now))
            if self.dice.random() < 0.3:
                self.forfeit()
            if self.dice.random() < 0.2:
                self.now += QUARTER
                self.put(epochs.vest(state, self.now))
                self.put(epochs.release(state, self.now))
        if not early:
            self.announce()
        self.put(epochs.open_epoch(state, self.now, [node for node in self.nodes if self.dice.random() < 0.9]))

    def announce(self) -> None:
        """Announce an epoch, and go on until its asks are opened."""
        assert self.market is not None
        state = self.market.market
        for node in self.nodes:
            if node not in state.measurements and self.dice.random() < 0.7:
                self.put(epochs.benchmark(self.now, node, self.dice.randint(1, 2_000_000)))
        number = state.epoch + 1
        supply = sum(self.rate(node) for node in self.nodes)
        terms = EpochAnnounced(
            epoch=number, closes=self.now + 10, milliseconds=QUARTER,
            need=self.dice.choice((0, 1, 10**6, 10**7, supply // 3, supply // 2, 9 * supply // 10, 6 * supply // 5)),
            reserve=self.dice.choice((1_000, 10**5, 10**6)),
            budget=self.dice.choice((0, 10**3, 10**9, 10**11, 10**13)),
            newcomers=self.dice.choice((0, 50, 1000)), cap=self.dice.choice((400, 400, 1000, 1)),
            run_off=self.dice.choice((0, QUARTER, DAY)),
        )  # fmt: skip
        self.put(epochs.announce(state, self.now, terms))
        if self.dice.random() < 0.7:
            owners = {node: self.dice.choice((b"x", b"y")) for node in self.nodes if self.dice.random() < 0.7}
            self.put(epochs.group_owners(state, self.now, owners))
        self.seal_and_open(number)

    def rate(self, node: str) -> int:
        """Return the rate that counts of a node."""
        assert self.market is not None
        state = self.market.market
        return state.measurements.get(node, Throughput()).rate(state.benchmarks.get(node, 0))

    def seal_and_open(self, number: int) -> None:
        assert self.market is not None
        state, salt, asks = self.market.market, bytes(16), dict[str, int]()
        for node in self.nodes:
            if self.dice.random() < 0.8:
                most = min(10**11, 5 * state.asks.get(node, 10**11) // 4)
                asks[node] = self.dice.randint(1_000, max(1_000, most))
                if state.announced is not None and self.dice.random() < 0.7:  # one that the reserve price admits
                    full = self.rate(node) * state.announced.reserve // 1_000
                    asks[node] = min(max(1_000, full * self.dice.randint(60, 100) // 100), max(1_000, most))
                if self.dice.random() < 0.1:
                    asks[node] = max(1_000, most)
                if node not in state.asks and self.dice.random() < 0.1:
                    asks[node] = 10**14
                if self.dice.random() < 0.15:  # one that must not be opened
                    asks[node] = self.dice.choice((999, 5 * state.asks.get(node, 10**14) // 4 + 1))
                sealed = commitment(self.run, node, number, asks[node], salt)
                self.put(epochs.seal_ask(state, self.now, node, number, sealed))
        self.now += 11
        for node, ask in list(asks.items())[:1]:
            fact = AskOpened(node=node, epoch=number, ask=ask, salt=salt)
            self.note("ask.opened", f"opened:{node}:{number}", fact)
        self.put(epochs.draw(state, self.now, hashlib.sha256(self.run + self.ledger.tip().hash).digest()))
        for node in [node for node in self.nodes if node not in asks][:1]:
            late = AskSealed(node=node, epoch=number, hash=bytes(32))
            self.note("ask.sealed", f"sealed:{node}:{number}", late, at=self.now - 11)
        for node, ask in asks.items():
            if self.dice.random() < 0.9:
                try:
                    self.put(epochs.open_ask(state, self.now, node, number, ask, salt))
                except BadAsk:
                    fact = AskOpened(node=node, epoch=number, ask=ask, salt=salt)
                    self.note("ask.opened", f"opened:{node}:{number}", fact)
        if state.open is not None and state.announced is not None:
            money = ((FUND, -state.announced.budget), (ESCROW, state.announced.budget + state.forfeits))
            moves = [Posting(*one) for one in (money[0], (FORFEIT, -state.forfeits), money[1]) if one[1]]
            told = EpochOpened(epoch=number, forfeits=state.forfeits, present=[])
            self.note("epoch.opened", f"epoch:{number}:opened", told, moves)

    def forfeit(self) -> None:
        """Let nodes forfeit what groups earned that were taken back."""
        assert self.market is not None
        for lease in self.taken_back:
            node, amount = self.market.shares.due(lease) or ("", 0)
            if amount:
                self.now += 1
                self.put(epochs.forfeit(self.market.market, self.now, node, amount, "a false group", lease))

    def note(
        self, kind: str, key: str, facts: msgspec.Struct, postings: Sequence[Posting] = (), at: int | None = None
    ) -> None:
        """Note an entry behind those there are, which is left out of the history. `at`: None: now."""
        number, told = self.ledger.tip().entries + 1, msgspec.msgpack.encode(facts)
        self.aside.append(Entry(number, at or self.now, kind, key, tuple(postings), told, b""))

    def put(self, new: NewEntry | None) -> None:
        if new is not None and self.ledger.find(new.key) is None:
            self.append(new.kind, new.key, new.facts, new.postings)

    # payments

    def payment(self) -> None:
        owed = [(node, self.ledger.balance(payable(node)) // 10**7) for node in self.nodes]
        due = [(node, (amount + 1) // 2 * 10**7) for node, amount in owed]
        due = [(node, amount) for node, amount in due if amount and node not in [one.node for one in self.lost]]
        if self.sent and self.dice.random() < 0.7:
            self.payment_step(self.sent[self.dice.randrange(len(self.sent))])
        elif due and (self.plans + self.seed) % 3 == 0:
            self.plans += 1
            *those, last = [self.lost_payment(node, amount) for node, amount in due]
            for one in those:
                self.put_back(one)
            self.lost.append(last)
        elif due:
            self.plans += 1 + (self.plans + self.seed) % 3
            self.plan(due)

    def plan(self, due: list[tuple[str, int]]) -> None:
        """Plan payments, and send them. Some are put back as lost ones instead: with them the plan ends."""
        owed = sum(self.ledger.balance(payable(node)) for node in self.nodes)
        fact = self.planned(len(due), min(owed, sum(amount for _, amount in due) + 10**7))
        self.append("payout.planned", f"payouts:{self.plans}", fact)
        ends = self.plans % 2 == 0 and len(due) > 1
        for place, (node, amount) in enumerate(due):
            payment, moves = payment_id(self.run, self.plans, node), transfer(payable(node), "paid:csv", amount)
            sent = PayoutSent(
                payment=payment, plan=self.plans, node=node, rail="csv", provider=bytes(16), account=bytes(32),
                amount=amount,
            )  # fmt: skip
            if ends and place >= len(due) - 2:
                if place == len(due) - 1:
                    self.note("payout.sent", f"payout:{payment.hex()}:0", sent, moves)
                self.put_back(self.lost_payment(node, amount))
                continue
            self.append("payout.sent", f"payout:{payment.hex()}:0", sent, moves)
            self.sent.append([payment, node, amount, 1, "sent"])
            while self.lost and self.ledger.balance(payable(self.lost[0].node)) >= self.lost[0].amount:
                self.put_back(self.lost.pop(0))

        rich = [node for node in self.nodes if self.ledger.balance(payable(node)) >= 10**7]
        for node in [] if ends else rich[:1]:
            more = msgspec.structs.replace(sent, payment=bytes(16), node=node, amount=10**7)
            self.note("payout.sent", f"payout:{bytes(16).hex()}:0", more, transfer(payable(node), "paid:csv", 10**7))

    def planned(self, payments: int, total: int) -> PayoutPlanned:
        """Return the facts of the newest plan."""
        return PayoutPlanned(
            plan=self.plans, rail="csv", currency="USD", payments=payments, total=total, file=bytes(32), head=1,
            head_hash=bytes(32),
        )  # fmt: skip

    def lost_payment(self, node: str, amount: int) -> PayoutRestored:
        """Return a payment of the newest plan of which a restored ledger lacks the entries."""
        return PayoutRestored(
            payment=payment_id(self.run, self.plans, node), plan=self.plans, node=node, rail="csv", provider=bytes(16),
            account=bytes(32), amount=amount, file=bytes(32),
        )  # fmt: skip

    def put_back(self, fact: PayoutRestored) -> None:
        key, moves = f"payout:{fact.payment.hex()}:0", transfer(payable(fact.node), "paid:csv", fact.amount)
        self.note("payout.restored", key, msgspec.structs.replace(fact, plan=0), moves)
        self.append("payout.restored", key, fact, moves)
        if self.ledger.find(f"payouts:{self.plans}") is None:
            self.note("payout.planned", f"payouts:{self.plans}", self.planned(1, 1))
        self.sent.append([fact.payment, fact.node, fact.amount, 1, "sent"])

    def payment_step(self, one: list[Any]) -> None:
        """Question, confirm or return a payment."""
        payment, node, amount, number, state = one
        key, ended = f"payout:{payment.hex()}:{number}", PayoutEnded(payment=payment, number=number, node=node)
        if state == "sent" and self.dice.random() < 0.3:
            question = PayoutQuestioned(payment=payment, number=number, node=node, question="absent")
            self.append("payout.questioned", key, question)
            answer = msgspec.structs.replace(ended, number=number + 1, by="operator", why="the bank says so")
            self.append("payout.confirmed", f"payout:{payment.hex()}:{number + 1}", answer)
            one[3:] = [number + 2, "confirmed"]
        elif state == "sent":
            self.append("payout.confirmed", key, ended)
            one[3:] = [number + 1, "confirmed"]
        elif state == "confirmed":
            self.append("payout.returned", key, ended, transfer("paid:csv", payable(node), amount))
            one[3:] = [number + 1, "returned"]
