"""The state of the market, which follows from the entries of the ledger alone. Pure.

Rules
1. `take` reads entries in their order, each once. The same entries give the same state, wherever they are read.
2. An entry that the order of an epoch or a rule of asks forbids raises `BadTerms` or `BadAsk`, and changes nothing.
3. Epochs are numbered 1, 2, 3, ...: the next one is announced while the one before runs or after it, asks for it are
   sealed until `closes`, then its lottery is drawn, asks are opened, and it opens once the one before is closed. No
   sealed ask stands behind the draw: who dates it back knows the beacon, and what others ask. So each key that is
   offered was in the log before its lot was known. The successor of a key that was rotated since is not offered.
4. A node is remembered while it has pay that is not released, or a measurement that is not stale. The ask and the
   benchmark of another one are forgotten when an epoch opens without it: free keys leave nothing behind here.
5. The first tokens of a lease that moved on, and a refused group that is paid after all, count as work of the epoch in
   which their entry stands, and in no measurement.
6. The successor of a key has its ask, its measurement and its suspension from then on. The balance of the key waits
   (ledger/balance_waits.py), and whether its probation has ended stays with it, so that pay is released
   to it meanwhile. Work that is credited to the key (rule 5) once its balance has moved is the successor's work.
7. A replaced key whose balance stays with it, as that was disputed, is on probation until its wait ends at the latest:
   it works no more, so its tenth group in a row never comes.
8. A suspension and a ban are two things: a banned key whose suspension ends stays banned. `node.unbanned` ends both, a
   refused group that is paid after all the suspension alone.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from echo2.coordinator.market.asks import StandingAsks, check_opened, check_sealed
from echo2.coordinator.market.entries import (
    LEASE_END_KINDS,
    AskOpened,
    AskSealed,
    BalanceMoved,
    Benchmarked,
    CreditedWork,
    EpochAnnounced,
    EpochClosed,
    EpochDrawn,
    EpochOpened,
    Forfeited,
    OwnersGrouped,
    RotatedKey,
    Settled,
    StatedEnd,
)
from echo2.coordinator.market.epoch_pay import accepted_work
from echo2.coordinator.market.epoch_plan import EpochPlan, RunOff, offers, plan_epoch
from echo2.coordinator.market.epoch_terms import BadTerms, check_beacon, check_terms
from echo2.coordinator.market.holdback import (
    Tranches,
    earned_tranche,
    forfeit_amount,
    join_tranches,
    merge_tranches,
    release_tranches,
    vest_tranches,
)
from echo2.coordinator.market.node_memo import NodeMemo
from echo2.coordinator.market.prices import PricedNode
from echo2.coordinator.market.throughput import NEW_NODE, LeasedGroup, MeasuredNode, Throughput, measure_node
from echo2.ledger.balance_waits import (
    BALANCE_DISPUTED_KIND,
    BalanceDisputed,
    Waits,
    add_wait,
    disputable,
    holder,
    movable,
)
from echo2.ledger.ledger_entries import FORFEIT, Entry, LedgerFault

_Facts = TypeVar("_Facts")
NO_BEACON: Final = bytes(32)
_NO_GROUPS: Final[list[LeasedGroup]] = []
_NO_TRANCHES: Final[Tranches] = ()


class WorkedNode(NamedTuple):
    """The work of a node in the open epoch so far, and its measurement if the epoch closed now."""

    work: int
    measured: MeasuredNode


def _worked_node(before: Throughput, records: list[LeasedGroup], count: int) -> WorkedNode:
    return WorkedNode(accepted_work(records), measure_node(before, records))


class OpenEpoch(NamedTuple):
    """The epoch that runs. `opened`: when. `forfeits`: that its budget has."""

    terms: EpochAnnounced
    opened: int
    forfeits: int
    plan: EpochPlan


class _OfKey(msgspec.Struct, frozen=True):
    """The facts of `node.banned` and `node.unbanned` that the market reads."""

    node: str


class _Suspension(_OfKey, frozen=True):
    """The facts of `node.suspended` that the market reads. `until`: ms."""

    until: int


class MarketState:
    """All that the market knows. Only `take` changes it. `run`: the run's id, which asks are bound to."""

    def __init__(self, run: bytes) -> None:
        self.run = run
        self.epoch = 0
        """Of the last epoch that was opened."""
        self.asks: dict[str, int] = {}
        self.sealed: dict[str, bytes] = {}
        self.benchmarks: dict[str, int] = {}
        self.measurements: dict[str, Throughput] = {}
        self.records: dict[str, list[LeasedGroup]] = defaultdict(list)
        """Ends of leases since the last close."""
        self.tranches: dict[str, Tranches] = {}
        self.suspended: dict[str, int] = {}
        """Node -> until when."""
        self.banned: set[str] = set()
        self.owners: dict[str, bytes] = {}
        self.announced: EpochAnnounced | None = None
        self.beacon: bytes | None = None
        """Of the announced epoch, once it is drawn: no ask is sealed from then on, whatever its time."""
        self.late: set[str] = set()
        """Successors of keys that were rotated since the draw."""
        self.open: OpenEpoch | None = None
        self.forfeits = 0
        """Balance of the account `forfeit`."""
        self.incumbents: frozenset[str] = frozenset()
        self.leavers: list[RunOff] = []
        self.settled: set[str] = set()
        """Of `vested` and `released`, those that were written since an epoch was opened."""
        self.payable: dict[str, int] = {}
        """Balances of what may be paid out, without those of 0."""
        self.waits: Waits = {}
        self._worked = NodeMemo(_worked_node)
        self._merged = NodeMemo(merge_tranches)
        self._after_vesting = NodeMemo(vest_tranches)
        self._after_release = NodeMemo(release_tranches)

    def take(self, entry: Entry) -> None:
        """Read the next entry; kinds that do not concern the market are passed over. Raises `BadTerms`, `BadAsk`."""
        if entry.kind in LEASE_END_KINDS:
            self._take_lease_end(entry)
        elif entry.kind in _HANDLERS:
            _HANDLERS[entry.kind](self, entry)
        for account, amount in entry.postings:
            if account == FORFEIT:
                self.forfeits += amount
            elif account.endswith(":payable"):
                node = account.split(":")[1]
                self.payable[node] = self.payable.get(node, 0) + amount
                if not self.payable[node]:
                    del self.payable[node]

    def proven(self, node: str, now: int) -> bool:
        """Whether a node's probation has ended: by its work, or as the wait of its disputed balance has (rule 7)."""
        wait = self.waits.get(node)
        ended = wait is not None and wait.disputed and now >= wait.due
        return ended or self.measurements.get(node, NEW_NODE).proven

    def work_of(self, node: str) -> WorkedNode:
        """Return the work of a node in the open epoch so far."""
        records = self.records.get(node, _NO_GROUPS)
        return self._worked.of(node, (self.measurements.get(node, NEW_NODE), records), len(records))

    def merged_tranches(self, node: str, at: int) -> Tranches:
        """Return a node's tranches as they stand before that of an epoch which closes at `at`."""
        return self._merged.of(node, (self.tranches.get(node, _NO_TRANCHES),), at)

    def free_stepwise(self) -> Iterator[str]:
        """Yield after each node whose earlier tranches have been freed."""
        return chain(
            self._worked.free_stepwise(),
            self._merged.free_stepwise(),
            self._after_vesting.free_stepwise(),
            self._after_release.free_stepwise(),
        )

    def vested_tranches(self, node: str, at: int) -> tuple[Tranches, int]:
        """Return a node's tranches as all has vested up to `at`, and how much that is."""
        return self._after_vesting.of(node, (self.tranches.get(node, _NO_TRANCHES),), at)

    def released_tranches(self, node: str, at: int) -> tuple[Tranches, int]:
        """Return a node's tranches after a release at `at`, and how much is released."""
        return self._after_release.of(node, (self.tranches.get(node, _NO_TRANCHES),), at, self.proven(node, at))

    def plan_for(self, terms: EpochAnnounced, present: list[str], budget: int, now: int) -> EpochPlan:
        """Return the plan of the announced epoch, with these nodes present and this budget, forfeits included. Before
        its lottery is drawn the lots are others than they will be."""
        leavers = [one for one in self.leavers if one.until > now]
        known = [node for node in present if node not in self.late]
        offered = offers(known, self.asks, self.measurements, self.benchmarks, self.incumbents)
        return plan_epoch(offered, terms, self.beacon or NO_BEACON, budget, leavers, self.owners)

    def is_barred(self, node: str, now: int) -> bool:
        """Whether a node is suspended or banned."""
        return node in self.banned or self.suspended.get(node, 0) > now

    def next_terms(self, epoch: int) -> EpochAnnounced:
        """Return the terms that were announced for an epoch. Raises `BadTerms`."""
        if self.announced is None or self.announced.epoch != epoch:
            raise BadTerms(f"no terms are announced for epoch {epoch}")
        return self.announced

    def check_next(self, terms: EpochAnnounced, at: int) -> None:
        """Check terms that are announced at `at`. Raises `BadTerms`."""
        check_terms(terms, at)
        if self.announced is not None:
            raise BadTerms(f"the terms of epoch {self.announced.epoch} are fixed already")
        if terms.epoch != self.epoch + 1:
            raise BadTerms(f"epoch {terms.epoch} is not the next one, which is {self.epoch + 1}")

    def check_sealing(self, epoch: int, at: int) -> None:
        """Check that asks for an epoch are still sealed at `at` (rule 3). Raises `BadTerms`."""
        if at > self.next_terms(epoch).closes or self.beacon is not None:
            raise BadTerms(f"the asks of epoch {epoch} are closed: seal one for the next epoch")

    def check_draw(self, epoch: int, beacon: bytes, at: int) -> None:
        """Check that the lottery of an epoch is drawn at `at` (rule 3). Raises `BadTerms`."""
        check_beacon(beacon)
        if at <= self.next_terms(epoch).closes or self.beacon is not None:
            raise BadTerms(f"the lottery of epoch {epoch} is drawn once, after its asks close")

    def drawn_terms(self, epoch: int) -> EpochAnnounced:
        """Return the terms of an epoch whose lottery is drawn. Raises `BadTerms`."""
        terms = self.next_terms(epoch)
        if self.beacon is None:
            raise BadTerms(f"the asks of epoch {epoch} are opened once they are closed and its lottery is drawn")
        return terms

    # entries

    def _take_lease_end(self, entry: Entry) -> None:
        end = _facts(entry, StatedEnd)
        accepted = entry.kind == "lease.accepted"
        weight, returned = end.weight if accepted else 0, end.code == "declined"
        record = LeasedGroup(end.sent, end.received, end.expires, weight, accepted, returned)
        self.records[end.node].append(record)

    def _take_credit(self, entry: Entry) -> None:
        fact = _facts(entry, CreditedWork)
        if fact.paid:
            self.suspended.pop(fact.node, None)
        if fact.paid and fact.weight:
            record = LeasedGroup(entry.at, entry.at, entry.at, fact.weight, accepted=True, measured=False)
            self.records[holder(self.waits, fact.node)].append(record)

    def _take_rotation(self, entry: Entry) -> None:
        fact = _facts(entry, RotatedKey)
        left = self.measurements.get(fact.node)
        tables: tuple[dict[str, Any], ...] = (self.asks, self.benchmarks, self.measurements, self.suspended)
        for table in tables:
            if fact.node in table:
                table[fact.successor] = table.pop(fact.node)
        if left is not None:
            self.measurements[fact.node] = left.forgotten()
        if fact.node in self.banned:
            self.banned.add(fact.successor)
        self.banned.add(fact.node)
        if self.beacon is not None:
            self.late.add(fact.successor)
        add_wait(self.waits, fact.node, fact.successor, entry.at)

    def _take_dispute(self, entry: Entry) -> None:
        fact = _facts(entry, BalanceDisputed)
        try:
            wait = disputable(self.waits, fact.node, entry.at)
        except LedgerFault as error:
            raise BadTerms(str(error)) from error
        self.waits[fact.node] = wait._replace(disputed=True)

    def _take_balance_move(self, entry: Entry) -> None:
        fact = _facts(entry, BalanceMoved)
        try:
            wait = movable(self.waits, fact.node, entry.at)
        except LedgerFault as error:
            raise BadTerms(str(error)) from error
        self.waits[fact.node] = wait._replace(moved=True)
        left, new = self.tranches.pop(fact.node, _NO_TRANCHES), wait.successor
        if left:
            self.tranches[new] = join_tranches(self.tranches.get(new, _NO_TRANCHES), left)
        if self.proven(fact.node, entry.at):
            self.measurements[new] = self.measurements.get(new, NEW_NODE)._replace(proven=True)

    def _take_benchmark(self, entry: Entry) -> None:
        fact = _facts(entry, Benchmarked)
        self.benchmarks[fact.node] = fact.rate

    def _take_announcement(self, entry: Entry) -> None:
        terms = _facts(entry, EpochAnnounced)
        self.check_next(terms, entry.at)
        self.announced, self.sealed, self.owners = terms, {}, {}
        self.beacon, self.late = None, set()

    def _take_sealed_ask(self, entry: Entry) -> None:
        fact = _facts(entry, AskSealed)
        self.check_sealing(fact.epoch, entry.at)
        check_sealed(self.standing, fact.node, fact.hash)
        self.sealed[fact.node] = fact.hash

    def _opened_ask(self, entry: Entry) -> None:
        fact = _facts(entry, AskOpened)
        self.drawn_terms(fact.epoch)
        self.asks[fact.node] = check_opened(self.standing, self.run, fact.node, fact.epoch, fact.ask, fact.salt)
        del self.sealed[fact.node]

    @property
    def standing(self) -> StandingAsks:
        """The asks that stand, and the commitments for the next epoch."""
        return StandingAsks(self.asks, self.sealed)

    def _take_grouping(self, entry: Entry) -> None:
        fact = _facts(entry, OwnersGrouped)
        self.next_terms(fact.epoch)
        self.owners = dict(fact.owners)

    def _take_draw(self, entry: Entry) -> None:
        fact = _facts(entry, EpochDrawn)
        self.check_draw(fact.epoch, fact.beacon, entry.at)
        self.beacon = fact.beacon

    def _take_opening(self, entry: Entry) -> None:
        fact = _facts(entry, EpochOpened)
        terms = self.drawn_terms(fact.epoch)
        if self.open is not None:
            raise BadTerms(f"epoch {self.open.terms.epoch} is not closed")
        plan = self.plan_for(terms, fact.present, terms.budget + fact.forfeits, entry.at)
        self.open = OpenEpoch(terms, entry.at, fact.forfeits, plan)
        self.epoch, self.announced, self.sealed, self.settled = fact.epoch, None, {}, set()
        self.beacon, self.late = None, set()
        self._forget(set(fact.present), entry.at)

    def _forget(self, present: set[str], now: int) -> None:
        """Forget nodes without work that are not here (rule 4), and suspensions that have ended."""
        known = present | self.measurements.keys() | self.tranches.keys()
        self.asks = {node: ask for node, ask in self.asks.items() if node in known}
        self.benchmarks = {node: rate for node, rate in self.benchmarks.items() if node in known}
        self.suspended = {node: until for node, until in self.suspended.items() if until > now}

    def _take_close(self, entry: Entry) -> None:
        fact, open_ = _facts(entry, EpochClosed), self.open
        if open_ is None or open_.terms.epoch != fact.epoch:
            raise BadTerms(f"epoch {fact.epoch} is not open")
        for node in self.records:
            self.measurements[node] = self.work_of(node).measured.throughput
        for row in fact.nodes:
            if row.pay:
                before = self.merged_tranches(row.node, entry.at)
                self.tranches[row.node] = (*before, earned_tranche(entry.at, row.work, row.pay))
        work = {row.node: row.work for row in fact.nodes}
        self.leavers = [*_leavers(open_, work, entry.at), *_still(open_.plan.run_offs, work, entry.at)]
        self.incumbents = frozenset(row.node for row in fact.nodes if row.active)
        self.records, self.open = defaultdict(list), None
        self._worked.clear()
        self._merged.clear()
        for node, one in list(self.measurements.items()):
            if one.stale(entry.at):
                self.measurements[node] = one.forgotten()
            elif not one.covered and node not in self.tranches:
                del self.measurements[node]

    def _take_vesting(self, entry: Entry) -> None:
        self.settled.add(entry.kind)
        for node, _ in _facts(entry, Settled).amounts:
            self.tranches[node] = self.vested_tranches(node, entry.at)[0]
        self._after_vesting.clear()

    def _take_release(self, entry: Entry) -> None:
        self.settled.add(entry.kind)
        for node, _ in _facts(entry, Settled).amounts:
            self.tranches[node] = self.released_tranches(node, entry.at)[0]
        self._after_release.clear()
        self.tranches = {node: tranches for node, tranches in self.tranches.items() if tranches}

    def _take_forfeit(self, entry: Entry) -> None:
        fact = _facts(entry, Forfeited)
        tranches = self.tranches.get(fact.node)
        if tranches:
            proven = self.proven(fact.node, entry.at)
            self.tranches[fact.node] = forfeit_amount(tranches, entry.at, proven, fact.amount).tranches

    def _take_suspension(self, entry: Entry) -> None:
        fact = _facts(entry, _Suspension)
        self.suspended[fact.node] = fact.until

    def _take_ban(self, entry: Entry) -> None:
        self.banned.add(_facts(entry, _OfKey).node)

    def _take_unban(self, entry: Entry) -> None:
        node = _facts(entry, _OfKey).node
        self.banned.discard(node)
        self.suspended.pop(node, None)


def _facts(entry: Entry, kind: type[_Facts]) -> _Facts:
    try:
        return msgspec.msgpack.decode(entry.facts, type=kind)
    except msgspec.MsgspecError as error:
        raise BadTerms(f"the facts of {entry.kind} {entry.key} do not decode: {error}") from error


def _leavers(open_: OpenEpoch, work: dict[str, int], now: int) -> list[RunOff]:
    """Return what the active nodes of a closed epoch may still bring, should they leave."""
    if not open_.terms.run_off:
        return []
    until = now + open_.terms.run_off
    return [RunOff(_remaining_promise(node, work), until) for node in open_.plan.market.nodes]


def _still(run_offs: list[RunOff], work: dict[str, int], now: int) -> list[RunOff]:
    """Return the run-offs that have not ended."""
    return [one._replace(node=_remaining_promise(one.node, work)) for one in run_offs if one.until > now]


def _remaining_promise(node: PricedNode, work: dict[str, int]) -> PricedNode:
    done = work.get(node.node.decode(), 0)
    divisor = node.most.denominator
    left = max(0, node.most.numerator - done * divisor)
    expected = node.expected
    if left * expected.denominator >= expected.numerator * divisor:
        return node._replace(most=expected)
    return node._replace(most=Fraction(left, divisor))


_HANDLERS: Final[dict[str, Callable[[MarketState, Entry], Any]]] = {
    "lease.reversed": MarketState._take_credit,
    "key.rotated": MarketState._take_rotation,
    BALANCE_DISPUTED_KIND: MarketState._take_dispute,
    "balance.moved": MarketState._take_balance_move,
    "measured": MarketState._take_benchmark,
    "ask.sealed": MarketState._take_sealed_ask,
    "ask.opened": MarketState._opened_ask,
    "epoch.announced": MarketState._take_announcement,
    "owners.grouped": MarketState._take_grouping,
    "epoch.drawn": MarketState._take_draw,
    "epoch.opened": MarketState._take_opening,
    "epoch.closed": MarketState._take_close,
    "vested": MarketState._take_vesting,
    "released": MarketState._take_release,
    "forfeited": MarketState._take_forfeit,
    "node.suspended": MarketState._take_suspension,
    "node.banned": MarketState._take_ban,
    "node.unbanned": MarketState._take_unban,
}
"""Kind of entry -> what reads it."""
