"""Any history of a ledger keeps the invariants of docs/money.md, also through crashes: money is conserved, every
acknowledged entry stays, heads only grow, and a replay has the same state."""

import copy
import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.market.entries import EpochAnnounced, EpochClosed
from echo2.coordinator.market.market_replay import ReplayedMarket
from echo2.ledger.ledger_entries import FUND, Entry, sha256
from echo2.ledger.ledger_replay import LedgerReplay
from echo2.p2p.envelope import seal
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.swarm import merkle
from echo2.p2p.swarm.merkle_log import verify_consistency
from echo2.protocol.authority import RoleKeys, Root
from echo2.protocol.ledger_heads import log_name, signed_note
from tests.support.generated_ledger import GeneratedLedger, memory

RUN, KEY = b"r" * 32, generate_key()
KEYS = RoleKeys(keys=[public_bytes(KEY)], threshold=1)
CHAIN = [Root(run=RUN, serial=1, roles={"ledger": KEYS}, expires=1, issued=0)]
STEPS = (
    "group", "group", "refusal", "expiry", "keys", "quarantine", "together", "set_costs", "canary", "payment",
    "measured_nodes", "epoch_step", "epoch_step", "forfeit",
)  # fmt: skip


class Crash(Exception):
    """The process ends in the midst of a transaction."""


class LedgerHistory(RuleBasedStateMachine):
    """Steps of a coordinator with a market, each in one transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.database = memory()
        self.history = GeneratedLedger(1, self.database, RUN, KEY, market=True)
        self.heads = LedgerHeads(
            self.database, Ledger(self.database), RUN,
            lambda kind, payload: seal(kind, RUN, payload, KEY),
            lambda head, text: signed_note(text, log_name(RUN), public_bytes(KEY), KEY.sign), every=1,
        )  # fmt: skip
        self.acknowledged: list[Entry] = []
        self.worked = set[str]()
        """Keys with accepted work."""

    @rule(step=st.sampled_from(STEPS), seed=st.integers(0, 2**32))
    def goes_on(self, step: str, seed: int) -> None:
        before = self.history.ledger.tip().entries
        self.step(step, seed)
        new = list(self.history.ledger.entries(after=before))
        self.acknowledged += new
        self.worked |= {msgspec.msgpack.decode(one.facts)["node"] for one in new if one.kind == "lease.accepted"}

    @rule(step=st.sampled_from(STEPS), seed=st.integers(0, 2**32))
    def crashes(self, step: str, seed: int) -> None:
        before, tip = self.remembered(), self.history.ledger.tip()
        with pytest.raises(Crash):
            self.step(step, seed, crash=True)
        vars(self.history).update(before)
        assert self.history.ledger.tip() == tip

    def step(self, step: str, seed: int, *, crash: bool = False) -> None:
        self.history.dice = random.Random(seed)
        self.history.now += seed % 50_000
        with self.database.transaction():
            getattr(self.history, step)()
            if crash:
                raise Crash

    def remembered(self) -> dict[str, Any]:
        """Return what a coordinator knows beside its database, as it would read it again after a crash."""
        mine = {name: value for name, value in vars(self.history).items() if name not in ("ledger", "key", "market")}
        market = ReplayedMarket(RUN)
        for entry in self.history.ledger.entries():
            market.take(entry)
        return copy.deepcopy(mine) | {"market": market}

    @rule()
    def signs_a_head(self) -> None:
        self.heads.sign(self.history.now)

    @invariant()
    def money_is_conserved(self) -> None:
        balances = self.history.ledger.balances()
        assert sum(balances.values()) == 0
        assert all(amount >= 0 for account, amount in balances.items() if account != FUND)

    @invariant()
    def a_key_without_accepted_work_has_nothing(self) -> None:
        for account, amount in self.history.ledger.balances().items():
            assert not account.startswith("node:") or account.split(":")[1] in self.worked or not amount

    def teardown(self) -> None:
        ledger = self.history.ledger
        ledger.verify()
        self.every_acknowledged_entry_is_in_the_log(ledger)
        self.heads_are_consistent(ledger)
        self.each_rollout_counts_once_and_each_epoch_stays_within_its_budget(ledger)
        self.a_replay_has_the_state(ledger)
        self.database.close()

    def every_acknowledged_entry_is_in_the_log(self, ledger: Ledger) -> None:
        assert list(ledger.entries()) == self.acknowledged

    def heads_are_consistent(self, ledger: Ledger) -> None:
        before = None
        stored = list(self.heads.all())
        for one, grown in zip(stored, self.heads.heads_after(0), strict=False):
            head = one.head
            if before is not None:
                earlier = (before.size, before.root)
                assert verify_consistency(*earlier, head.size, head.root, grown.consistency, sha256)
            before = head
        if before is not None:
            for number in (1, before.size):
                proof = self.heads.proof(number, before.size)
                assert merkle.verify(before.root, proof.canonical, number - 1, before.size, proof.path, sha256)

    def each_rollout_counts_once_and_each_epoch_stays_within_its_budget(self, ledger: Ledger) -> None:
        ended, budget, released, paid = set(), 0, 0, 0
        for entry in ledger.entries():
            assert sum(amount for _, amount in entry.postings) == 0
            if entry.kind.startswith("lease.") and entry.kind != "lease.reversed":
                lease = msgspec.msgpack.decode(entry.facts)["lease"]
                assert lease not in ended
                ended.add(lease)
            if entry.kind == "epoch.announced":
                budget = msgspec.msgpack.decode(entry.facts, type=EpochAnnounced).budget
            if entry.kind == "epoch.opened":
                opened = budget + msgspec.msgpack.decode(entry.facts)["forfeits"]
            if entry.kind == "epoch.closed":
                spent = sum(row.pay for row in msgspec.msgpack.decode(entry.facts, type=EpochClosed).nodes)
                rounded = sum(amount for account, amount in entry.postings if account == "rounding")
                assert spent + rounded <= opened
            released += sum(amount for account, amount in entry.postings if account.endswith(":payable") and amount > 0)
            paid += sum(amount for account, amount in entry.postings if account.startswith("paid:"))
            assert paid <= released

    def a_replay_has_the_state(self, ledger: Ledger) -> None:
        replay = LedgerReplay(CHAIN, ReplayedMarket(RUN))
        for entry in ledger.entries():
            replay.take(entry)
        state, market = replay.state(), self.history.market
        assert market is not None
        assert state.balances == {account: amount for account, amount in ledger.balances().items() if amount}
        assert state.market == market.state()
        assert (state.entries, state.tip) == (ledger.tip().entries, ledger.tip().hash.hex())


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        LedgerHistory,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.slow
def test_any_history_of_a_ledger_keeps_the_invariants() -> None:
    run(6, 30)


@pytest.mark.slow
def test_many_histories_of_a_ledger_keep_the_invariants() -> None:
    run(150, 60)
