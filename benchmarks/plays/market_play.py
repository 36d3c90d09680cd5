"""Epochs of a market in simulated time: the product's own entries, appended to a ledger in memory. Pure.

Money is in nano units, work in milli-RE, rates in milli-RE per hour, times in ms.

Rules
1. An epoch goes as in a run: announced, owners grouped, asks sealed, drawn, asks opened, opened, leases, closed,
   vested, released. Each entry is made by coordinator/market/epochs.py and read by `MarketState.take`.
2. Only active nodes have leases. Their use of them is said by the caller, per node and epoch.
3. Balances are those of the entries' postings. None but the fund's falls below 0.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from benchmarks.plays.price_rules import PriceRule, RuledState
from echo2.coordinator.market.entries import EpochAnnounced, EpochClosed, NewEntry, StatedEnd
from echo2.coordinator.market.epochs import (
    announce,
    benchmark,
    close_epoch,
    draw,
    forfeit,
    group_owners,
    open_ask,
    open_epoch,
    release,
    seal_ask,
    vest,
)
from echo2.coordinator.market.market_state import MarketState
from echo2.coordinator.market.throughput import HOUR, LeasedGroup, Throughput, measure_node
from echo2.ledger.ledger_entries import FUND, Entry, Posting
from echo2.protocol.sealed_asks import commitment

QUARTER: Final = HOUR // 4
TURNAROUND: Final = 60_000
"""Of an honest node's group."""
LIFE: Final = 4 * TURNAROUND
"""Of a lease."""
PLENTY_PER_EPOCH: Final = 10**15
_SALT: Final = bytes(16)
_RUN: Final = bytes(32)

Leases = Callable[[str, int], Iterable[LeasedGroup]]
"""(node, when the epoch opened) -> the ends of the leases that the node has in it."""


class PlayTerms(NamedTuple):
    """The terms of each epoch, as in `EpochAnnounced`."""

    need: int
    reserve: int
    budget: int = PLENTY_PER_EPOCH
    milliseconds: int = QUARTER
    newcomers: int = 50
    cap: int = 1000
    run_off: int = 0


class PlayedEpoch(NamedTuple):
    """The outcome of an epoch: its closing entry, and the node that each row is of."""

    closed: EpochClosed

    @property
    def active(self) -> list[str]:
        """The active nodes."""
        return [row.node for row in self.closed.nodes if row.active]

    def pay(self, node: str) -> int:
        """Return what a node was paid."""
        return sum(row.pay for row in self.closed.nodes if row.node == node)

    def work(self, node: str) -> int:
        """Return a node's accepted work."""
        return sum(row.work for row in self.closed.nodes if row.node == node)

    @property
    def spent(self) -> int:
        """All pay."""
        return sum(row.pay for row in self.closed.nodes)


class MarketPlay:
    """A market in memory. `state`: the product's. `now`: ms."""

    def __init__(self, seed: int = 0, rule: PriceRule = "pivot") -> None:
        """`rule`: of prices."""
        self.state: MarketState = RuledState(_RUN, rule) if rule != "pivot" else MarketState(_RUN)
        self.balances = Counter[str]()
        self.now = HOUR
        self._seed = seed
        self._entries = 0

    def benchmarked(self, rates: Mapping[str, int]) -> None:
        """Let newcomers have the rates that the coordinator measured."""
        for node, rate in rates.items():
            self.add(benchmark(self.now, node, rate))

    def measure(self, rates: Mapping[str, int], groups: int = 40) -> None:
        """Let nodes be measured already, by groups that they did one after the other until now."""
        for node, rate in rates.items():
            done = steady(rate, self.now - groups * TURNAROUND, groups * TURNAROUND)
            self.state.measurements[node] = measure_node(Throughput(), done).throughput

    def epoch(
        self,
        terms: PlayTerms,
        present: Iterable[str],
        asks: Mapping[str, int],
        leases: Leases,
        owners: Mapping[str, bytes] | None = None,
        sealed_only: Iterable[str] = (),
    ) -> PlayedEpoch:
        """Play an epoch (rules 1 and 2). `asks`: of the nodes that send one. `sealed_only`: those of them that do not
        open theirs. `owners`: node -> tag. Raises `BadAsk`, `BadTerms`."""
        opened = self.open(terms, present, asks, owners, sealed_only)
        for node in self.active:
            self.ends(node, leases(node, opened))
        return self.close(opened + terms.milliseconds)

    def ends(self, node: str, leases: Iterable[LeasedGroup]) -> None:
        """Let leases of a node end."""
        for one in leases:
            self._ended(node, one)

    def open(
        self,
        terms: PlayTerms,
        present: Iterable[str],
        asks: Mapping[str, int],
        owners: Mapping[str, bytes] | None = None,
        sealed_only: Iterable[str] = (),
    ) -> int:
        """Announce an epoch, take its asks, and open it; return when. Raises `BadAsk`, `BadTerms`."""
        number = self.state.epoch + 1
        announced = EpochAnnounced(epoch=number, closes=self.now + 2, **terms._asdict())
        self.add(announce(self.state, self.now, announced))
        if owners:
            self.add(group_owners(self.state, self.now, dict(owners)))
        for node, ask in asks.items():
            hash_ = commitment(_RUN, node, number, ask, _SALT)
            self.add(seal_ask(self.state, self.now + 1, node, number, hash_))
        self.add(draw(self.state, self.now + 3, self.beacon(number)))
        for node in asks.keys() - set(sealed_only):
            self.add(open_ask(self.state, self.now + 3, node, number, asks[node], _SALT))
        self.add(open_epoch(self.state, self.now + 4, present))
        return self.now + 4

    def beacon(self, epoch: int) -> bytes:
        """Return the beacon of an epoch, which nobody in the market knows before it is drawn."""
        return (self._seed * 1_000_003 + epoch).to_bytes(32, "big")

    @property
    def active(self) -> list[str]:
        """The active nodes of the open epoch, in their order."""
        assert self.state.open is not None
        return [one.node.decode() for one in self.state.open.plan.market.nodes]

    def promise(self, node: str) -> int:
        """Return the work that an active node of the open epoch is paid for, milli-RE."""
        assert self.state.open is not None
        nodes = self.state.open.plan.market.nodes
        return next(int(one.most) for one in nodes if one.node == node.encode())

    def close(self, at: int) -> PlayedEpoch:
        """Close the epoch, vest and release."""
        new = close_epoch(self.state, at)
        self.add(new)
        self.now = at
        self.add(vest(self.state, at))
        self.add(release(self.state, at))
        assert isinstance(new.facts, EpochClosed)
        return PlayedEpoch(new.facts)

    def forfeits(self, node: str, amount: int) -> int:
        """Let a node forfeit an amount, as far as it is in reach; return what was taken."""
        before = self.balances["forfeit"]
        self.add(forfeit(self.state, self.now, node, amount, "proof", self._entries.to_bytes(16, "big")))
        return self.balances["forfeit"] - before

    def belongs_to(self, node: str) -> int:
        """Return all that a node has, payable or not yet."""
        return sum(self.balances[f"node:{node}:{part}"] for part in ("accrued", "unvested", "payable"))

    def add(self, new: NewEntry | None) -> None:
        """Append an entry."""
        if new is None:
            return
        self._entries += 1
        postings = tuple(Posting(*one) for one in new.postings)
        facts = msgspec.msgpack.encode(new.facts)
        self.state.take(Entry(self._entries, new.at, new.kind, new.key, postings, facts, b""))
        for account, amount in postings:
            self.balances[account] += amount
            assert account == FUND or self.balances[account] >= 0, f"{account} falls below zero by {new.kind}"

    def _ended(self, node: str, one: LeasedGroup) -> None:
        kind = "accepted" if one.accepted else "expired" if one.received is None else "refused"
        at = one.expires if one.received is None else one.received
        end = StatedEnd(node, one.sent, one.expires, one.received, one.weight)
        self.add(NewEntry(at, f"lease.{kind}", f"lease:{self._entries}", end))


def steady(rate: int, begin: int, milliseconds: int = QUARTER, turnaround: int = TURNAROUND) -> list[LeasedGroup]:
    """Return the groups of a node that computes one after the other, without a pause, at `rate`."""
    weight = rate * turnaround // HOUR
    return [
        LeasedGroup(at, at + turnaround, at + LIFE, weight, True)
        for at in range(begin, begin + milliseconds - turnaround + 1, turnaround)
    ]
