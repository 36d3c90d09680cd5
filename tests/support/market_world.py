"""A run that pays by a market, on a fake clock: a group world with the market of the product over it."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.epochs.market_terms import MarketTerms
from echo2.coordinator.epochs.running_market import PayoutPlace, RunningMarket
from echo2.coordinator.leases.paid_work import PaidWork
from echo2.coordinator.market.epochs import payable
from echo2.coordinator.market.market_replay import ReplayedMarket
from echo2.coordinator.market.market_state import MarketState
from echo2.coordinator.settings.payout_config import PayoutSection
from echo2.coordinator.submissions.run_records import RunRecords
from echo2.ledger.ledger_entries import Entry
from echo2.p2p.identity import peer_id
from echo2.p2p.limits.origin import Origin
from echo2.protocol.market import MarketRequest, MarketResponse
from echo2.protocol.sealed_asks import commitment
from tests.support.group_world import RUN, SPEC, World, sealed_by_role

NANO = 10**9
SALT = b"s" * 16
EPOCH, ASKS = 60_000, 10_000
TERMS = MarketTerms(
    currency="USD", epoch=EPOCH, asks=ASKS, reserve=NANO // 100, budget=10 * NANO, least_need=100_000,
    newcomers=50, cap=1000, run_off=EPOCH,
)  # fmt: skip


class MarketWorld(World):
    """A world whose coordinator runs a market. `terms`: of its epochs. `rollouts`: per second to provision."""

    def __init__(self, folder: Path, terms: MarketTerms = TERMS, **more: Any) -> None:
        self.terms, self.rollouts = terms, None
        spec = msgspec.structs.replace(SPEC, price_mode="market", currency="USD")
        super().__init__(folder, spec=spec, **more)

    def _paid_work(self, records: RunRecords) -> PaidWork:
        heads = LedgerHeads(
            records.database, records.accounting.ledger, RUN, sealed_by_role, lambda head, text: text, every=3_600_000
        )
        place = PayoutPlace(PayoutSection(rail="csv"), self.path.parent / "payouts")
        self.market = RunningMarket(
            RUN, self.terms, records, heads, lambda: self.rollouts, lambda size: b"k" * size, place
        )
        return self.market.gate

    def tick(self, *, finished: bool = False) -> None:
        """Do the periodic work of one second."""
        self.group_service.tick(self.now)
        while self.market.tick(self.now, finished=finished):
            pass

    def asks(self, node: bytes, **fields: Any) -> MarketResponse:
        """Send a request of the method `market`."""
        return self.market.answer(node, MarketRequest(**fields), self.now, Origin(peer_id(node), peer_id(node)))

    def open_with(self, asks: dict[bytes, int]) -> None:
        """Run the asks of the next epoch, units of the ledger per hour, and let it open. One that stands is not sealed
        again."""
        told = {node: self.asks(node).ask for node in asks}
        while (coming := self.asks(next(iter(asks))).coming) is None:
            self.now += 1_000
            self.tick()
        changed = {node: ask for node, ask in asks.items() if told[node] != ask}
        for node, ask in changed.items():
            sealed = commitment(RUN, peer_id(node), coming.epoch, ask, SALT)
            assert not (refused := self.asks(node, epoch=coming.epoch, sealed=sealed).refused), refused
        self.now = coming.closes + 1
        for node, ask in changed.items():
            answer = self.asks(node, epoch=coming.epoch, ask=ask, salt=SALT)
            assert (answer.refused, answer.ask) == ("", ask)
        self.pass_to(coming.opens, coming.epoch)

    def pass_to(self, at: int, epoch: int) -> None:
        """Let time pass until an epoch is open."""
        self.now = max(self.now, at)
        self.tick()
        running = self.market.service.state.open
        assert running is not None
        assert running.terms.epoch == epoch

    def entries(self, kind: str = "") -> list[Entry]:
        return [one for one in self.group_service.ledger.entries() if one.kind.startswith(kind)]

    def pay(self, node: bytes) -> int:
        """Return all that a node has: accrued, unvested and payable."""
        peer, ledger = peer_id(node), self.group_service.ledger
        return sum(map(ledger.balance, (f"node:{peer}:accrued", f"node:{peer}:unvested", payable(peer))))

    def replayed(self) -> MarketState:
        """Return the state that the ledger alone leads to."""
        self.group_service.ledger.verify()
        replay = ReplayedMarket(RUN)
        for entry in self.group_service.ledger.entries():
            replay.check(entry)
            replay.take(entry)
        return replay.market


def told(state: MarketState) -> dict[str, Any]:
    """Return all that a state knows, to compare states by."""
    return {name: value for name, value in vars(state).items()}


def key_of(number: int) -> bytes:
    """Return a made-up node."""
    return hashlib.sha256(b"node %d" % number).digest()
