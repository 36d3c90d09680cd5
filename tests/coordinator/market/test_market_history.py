"""Any history of a market keeps its invariants: money neither appears nor disappears, and each epoch stays within its
budget. A replay of the entries agrees at every close."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from echo2.coordinator.market.balance_moves import dispute, due, move_balance
from echo2.coordinator.market.entries import EpochClosed, NewEntry
from echo2.coordinator.market.epoch_terms import BadTerms
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
from echo2.coordinator.market.market_replay import replay_market
from echo2.ledger.balance_waits import BALANCE_WAIT_MS
from echo2.ledger.ledger_entries import ESCROW, FORFEIT, FUND
from echo2.ledger.ledger_facts import KEY_ROTATED_KIND, KeyRotated
from echo2.protocol.sealed_asks import BadAsk, commitment
from tests.support.market import BEACON, QUARTER, RUN, SALT, Book, announced

NODES = list("abcdef")
NODE = st.sampled_from(NODES)
ACCOUNTS = ("accrued", "unvested", "payable")
ASKS = st.integers(900, 3_000) | st.sampled_from([1_000, 10**14, 10**14 + 1, -5])


class History(RuleBasedStateMachine):
    """Steps in any order; those that the rules forbid are refused and change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book()
        self.now = 1_000_000
        self.hidden: dict[str, int] = {}
        """Asks that were sealed."""
        self.earned = Counter[str]()
        """Nano units of pay per node, by the closing entries."""

    @rule(passed=st.sampled_from([1, 20, QUARTER, 40 * QUARTER, -30]))
    def time_passes(self, passed: int) -> None:
        self.now += passed

    @rule(node=NODE, rate=st.integers(1, 10**5))
    def measure(self, node: str, rate: int) -> None:
        new = benchmark(self.now, node, rate)
        if new.key not in self.book.keys:
            self.book.add(new)

    @rule(
        budget=st.integers(0, 10**6),
        need=st.integers(0, 10**5),
        reserve=st.integers(1, 10**5),
        cap=st.sampled_from([400, 1000]),
        run_off=st.sampled_from([0, QUARTER]),
    )
    def fix_terms(self, **terms: object) -> None:
        try:
            new = announced(self.book.state.epoch + 1, self.now + 10, **terms)
            self.book.add(announce(self.book.state, self.now, new))
            self.hidden.clear()
        except BadTerms:
            assert self.book.state.announced is not None

    @rule(tags=st.lists(st.sampled_from([b"x", b"y"]), min_size=6, max_size=6))
    def group(self, tags: list[bytes]) -> None:
        if self.book.state.announced is not None and not self.book.state.owners:
            self.book.add(group_owners(self.book.state, self.now, dict(zip(NODES, tags, strict=True))))

    @rule(node=NODE, ask=ASKS)
    def seal(self, node: str, ask: int) -> None:
        number = self.book.state.epoch + 1
        try:
            hash_ = commitment(RUN, node, number, ask, SALT)
            self.book.add(seal_ask(self.book.state, self.now, node, number, hash_))
            self.hidden[node] = ask
        except (BadAsk, BadTerms):
            assert node in self.hidden or self.late()

    def late(self) -> bool:
        terms = self.book.state.announced
        return terms is None or self.now > terms.closes or self.book.state.beacon is not None

    @rule()
    def draw_lots(self) -> None:
        try:
            self.book.add(draw(self.book.state, self.now, BEACON))
        except BadTerms:
            terms = self.book.state.announced
            assert terms is None or self.now <= terms.closes or self.book.state.beacon is not None

    @rule(node=NODE, wrong=st.sampled_from([0, 0, 0, 1]))
    def unseal(self, node: str, wrong: int) -> None:
        before = dict(self.book.state.asks)
        try:
            ask = self.hidden.get(node, 1_000) + wrong
            self.book.add(open_ask(self.book.state, self.now, node, self.book.state.epoch + 1, ask, SALT))
            assert not wrong
            assert node in self.hidden
            assert 0 < ask <= 5 * before.get(node, ask) // 4 or node not in before
        except (BadAsk, BadTerms):
            assert self.book.state.asks == before

    @rule(present=st.sets(NODE))
    def open(self, present: set[str]) -> None:
        try:
            self.book.add(open_epoch(self.book.state, self.now, present))
        except BadTerms:
            terms = self.book.state.announced
            assert self.book.state.open is not None or terms is None or self.book.state.beacon is None

    @rule(
        asks=st.lists(st.integers(1_000, 3_000), min_size=6, max_size=6),
        rates=st.lists(st.integers(1, 10**5), min_size=6, max_size=6),
        present=st.sets(NODE),
        budget=st.sampled_from([0, 50, 5_000, 10**6, 10**9]),
        cap=st.sampled_from([400, 1000]),
    )
    def open_with_asks(self, asks: list[int], rates: list[int], present: set[str], budget: int, cap: int) -> None:
        """Go through all steps of an opening in their order, so that most histories have epochs with prices."""
        state = self.book.state
        if state.open is not None or state.announced is not None:
            return
        for node, rate in zip(NODES, rates, strict=True):
            self.measure(node, rate)
        self.fix_terms(need=50_000, reserve=10**5, budget=budget, cap=cap, run_off=QUARTER)
        for node, ask in zip(NODES, asks, strict=True):
            self.seal(node, ask)
        self.now += 11
        self.draw_lots()
        for node in NODES:
            self.unseal(node, 0)
        self.open(present)
        assert state.open is not None

    @rule(node=NODE, weight=st.integers(0, 10**5), took=st.integers(-3, QUARTER) | st.none())
    def end_lease(self, node: str, weight: int, took: int | None) -> None:
        self.now += 1
        received = None if took is None else self.now + took
        self.book.lease(node, self.now, received, weight, life=QUARTER)

    @rule(node=NODE, count=st.integers(10, 40), weight=st.integers(1, 10**4))
    def work(self, node: str, count: int, weight: int) -> None:
        for _ in range(count):
            self.book.lease(node, self.now, self.now + 1_000, weight, life=QUARTER)
            self.now += 1_000

    @precondition(lambda self: self.book.state.open is not None)
    @rule()
    def close(self) -> None:
        book, open_ = self.book, self.book.state.open
        assert open_ is not None
        before = book.balances.copy()
        book.add(close_epoch(book.state, self.now))
        (closed,) = [one for one in book.facts("epoch.closed", EpochClosed) if one.epoch == open_.terms.epoch]
        pay = sum(row.pay for row in closed.nodes)
        assert pay <= open_.terms.budget + open_.forfeits
        assert book.balances[ESCROW] == 0
        assert book.balances[FUND] - before[FUND] >= open_.terms.budget - pay - len(closed.nodes)
        for row in closed.nodes:
            self.earned[row.node] += row.pay
        book.add(vest(book.state, self.now))
        book.add(release(book.state, self.now))

    @rule(node=NODE, amount=st.integers(1, 10**6))
    def reverse(self, node: str, amount: int) -> None:
        payable = self.book.balances[f"node:{node}:payable"]
        new = forfeit(self.book.state, self.now, node, amount, "a check", self.now.to_bytes(16, "big"))
        if new.key not in self.book.keys:
            self.book.add(new)
        assert self.book.balances[f"node:{node}:payable"] == payable

    @rule(old=NODE, new=NODE)
    def replace_key(self, old: str, new: str) -> None:
        if old == new:
            return
        key = f"key:{new}:{len(self.book.entries) + 1}"
        self.book.add(NewEntry(self.now, KEY_ROTATED_KIND, key, KeyRotated(node=old, successor=new)))

    @rule(node=NODE)
    def dispute(self, node: str) -> None:
        wait = self.book.state.waits.get(node)
        try:
            new = dispute(self.book.state, self.now, node)
            assert wait is not None
            if new.key not in self.book.keys:  # of a wait before, at this very time
                self.book.add(new)
        except BadTerms:
            assert wait is None or wait.disputed or self.now >= wait.due

    @rule(waits=st.sampled_from([0, 0, BALANCE_WAIT_MS]))
    def move_balances(self, waits: int) -> None:
        """Move what is due; disputed balances stay, and others for the whole of their wait."""
        self.now += waits
        for node in due(self.book.state, self.now):
            wait, new = self.book.state.waits[node], move_balance(self.book.state, self.now, node)
            assert new is not None
            assert self.now >= wait.due
            assert not wait.disputed
            if new.key not in self.book.keys:
                self.book.add(new)
                self.earned[wait.successor] += self.earned[node]
                self.book.accepted[wait.successor] += self.book.accepted[node]
                assert not any(self.book.balances[f"node:{node}:{name}"] for name in ACCOUNTS)

    @invariant()
    def money_is_conserved(self) -> None:
        balances = self.book.balances
        assert sum(balances.values()) == 0
        assert all(amount >= 0 for account, amount in balances.items() if account != FUND)
        assert balances[FORFEIT] == self.book.state.forfeits
        if self.book.state.open is None:
            assert balances[ESCROW] == 0

    @invariant()
    def a_node_has_what_it_earned_and_nothing_without_work(self) -> None:
        for node in NODES:
            mine = sum(self.book.balances[f"node:{node}:{name}"] for name in ACCOUNTS)
            assert mine <= self.earned[node]
            assert mine == 0 or self.book.accepted[node] > 0
            tranches = self.book.state.tranches.get(node, [])
            assert self.book.balances[f"node:{node}:unvested"] == sum(one.unvested for one in tranches)
            assert self.book.balances[f"node:{node}:accrued"] == sum(one.accrued for one in tranches)
            assert self.book.balances[f"node:{node}:payable"] == self.book.state.payable.get(node, 0)

    def teardown(self) -> None:
        again = replay_market(RUN, self.book.entries)
        assert vars(again) == vars(self.book.state)


@pytest.mark.slow
def test_any_history_keeps_the_invariants() -> None:
    run_state_machine_as_test(
        History,
        settings=settings(
            max_examples=20, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.slow
def test_many_histories_keep_the_invariants() -> None:
    run_state_machine_as_test(
        History,
        settings=settings(
            max_examples=300, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
