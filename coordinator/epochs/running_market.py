"""Compose the market of a run: the ledger's state, the clock of epochs, the gate of leases, and the answers to nodes.

nodes ─ ask requests ─┐
leases ─ lease gate ──┼─ market service ── ledger
tick ─ epoch clock ───┘
"""

import contextlib
import hashlib
from collections.abc import Callable, Collection
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.epochs.ask_requests import AskRequests
from echo2.coordinator.epochs.epoch_clock import EpochClock, EpochInputs
from echo2.coordinator.epochs.epoch_figures import EpochFigures
from echo2.coordinator.epochs.epoch_need import EpochNeed
from echo2.coordinator.epochs.free_places import FreePlaces
from echo2.coordinator.epochs.late_refusals import LateRefusals
from echo2.coordinator.epochs.lease_gate import LeaseGate
from echo2.coordinator.epochs.market_service import MarketService
from echo2.coordinator.epochs.market_terms import MarketTerms
from echo2.coordinator.epochs.owner_groups import group_by_owner, nameable
from echo2.coordinator.epochs.presence import Presence
from echo2.coordinator.epochs.replaced_keys import ReplacedKeys
from echo2.coordinator.leases.rollout_context import Entropy
from echo2.coordinator.leases.timely_grants import TimelyGrants
from echo2.coordinator.market.epoch_terms import PER_MILLE
from echo2.coordinator.metrics.market_views import PaymentView
from echo2.coordinator.payouts.payee_requests import PayeeRequests
from echo2.coordinator.payouts.stated_accounts import StatedAccounts
from echo2.coordinator.settings.payout_config import PayoutSection
from echo2.coordinator.submissions.request_handler import RequestHandler
from echo2.coordinator.submissions.run_records import RunRecords
from echo2.ledger.ledger_entries import Tampered
from echo2.ledger.payout_facts import UNITS_PER_HUNDREDTH
from echo2.p2p.identity import public_key
from echo2.p2p.limits.origin import Origin
from echo2.protocol.market import MarketRequest, MarketResponse
from echo2.protocol.methods import MARKET, PAYEE

LEAST_WINDOW, MOST_WINDOW = 20_000, 240_000
"""Milliseconds after which a node that sends nothing has left: four times as long as one that waits until it asks."""


class PayoutPlace(NamedTuple):
    """The way in which pay leaves a run. `folder`: `payouts/` of the run folder."""

    settings: PayoutSection
    folder: Path


def payment_view(settings: PayoutSection) -> PaymentView:
    """Return what node owners and visitors are told of payments."""
    return PaymentView(
        rail=settings.rail, minimum=settings.minimum * UNITS_PER_HUNDREDTH,
        most=settings.node_limit * UNITS_PER_HUNDREDTH, payee_fee=settings.payee_fee * UNITS_PER_HUNDREDTH,
    )  # fmt: skip


class RunningMarket:
    """The market of one run, over its records. `gate`: its side of leases and receipts."""

    def __init__(
        self,
        run: bytes,
        terms: MarketTerms,
        records: RunRecords,
        heads: LedgerHeads,
        rollouts: Callable[[], float | None],
        entropy: Entropy,
        payouts: PayoutPlace,
    ) -> None:
        """`rollouts`: see `EpochNeed`. `entropy`: random bytes for the tags of owners."""
        database, ledger = records.database, records.accounting.ledger
        self._database, self._heads, self._entropy = database, heads, entropy
        self._sightings = records.registry.sightings
        self.service = MarketService(database, ledger, run)
        self.presence = Presence(min(MOST_WINDOW, max(LEAST_WINDOW, 4 * terms.epoch)), self._last_contact)
        need = EpochNeed(database, rollouts, terms.least_need)
        inputs = EpochInputs(need.now, self._beacon, self._owners, self._engine, self._busy)
        free = FreePlaces()
        timely = TimelyGrants(None if terms.untrainable == PER_MILLE else Fraction(terms.untrainable, PER_MILLE))
        self.clock = EpochClock(self.service, terms, self.presence, inputs, free, timely.turn_over)
        self.gate = LeaseGate(self.service, terms, self.presence, self.clock, timely)
        self.asks = AskRequests(self.service, terms, self.presence, self.clock, self.gate, free)
        self.late_refusals = LateRefusals(self.service)
        self.figures = EpochFigures(self.service.state, terms.currency, payment_view(payouts.settings))
        self.service.watchers.append(self.figures.take)
        self._accounts = StatedAccounts(payouts.folder)
        self.replaced_keys = ReplacedKeys(self.service, self.clock, terms.currency)
        registry, accounts = records.registry, records.accounting.accounts
        self.payees = PayeeRequests(
            payouts.settings, self._accounts, ledger,
            lambda node: registry.is_admitted(node) or accounts.account(node).accepted > 0,  # also by the key before
            entropy, self.replaced_keys.moving,
        )  # fmt: skip

    def tick(self, now: int, *, finished: bool = False) -> bool:
        """Do what is due. Call every second or so, and again at once while it returns True. `finished`: the run has
        finished, and no verdict is to come."""
        if self.clock.tick(now, finished=finished):
            return True
        self.late_refusals.tick(self.clock.at(now))
        self.replaced_keys.tick(self.clock.at(now))
        return False

    def serve(self, control: RequestHandler) -> None:
        """Answer the methods of the market."""
        control.also_answers(PAYEE, lambda asked, request: self.payees.answer(asked.node, request, asked.now))
        control.also_answers(MARKET, lambda asked, request: self.answer(asked.node, request, asked.now, asked.origin))

    def answer(self, node: bytes, request: MarketRequest, now: int, origin: Origin) -> MarketResponse:
        return self.asks.answer(node, request, now, origin)

    def _beacon(self, at: int) -> bytes:
        """Return the hash of a LedgerHead over all entries; where none may be signed, of the log and the last entry."""
        with contextlib.suppress(Tampered):  # the heads say that themselves, and the run goes on
            self._heads.sign(at)
        newest, tip = self._heads.newest(), self.service.ledger.tip()
        if newest is None or newest.head.size != tip.entries:
            return hashlib.sha256(self._heads.logs.run + tip.hash).digest()
        return hashlib.sha256(newest.sealed).digest()

    def _owners(self, nodes: Collection[str], now: int) -> dict[str, bytes]:
        nodes = nameable(nodes, self.service.kind)
        accounts = {node: one.account for node, one in self._accounts.in_force(now).items()}
        parties = {node: self.presence.party(node) for node in nodes}
        return group_by_owner(nodes, accounts, parties, self._entropy(32))

    def _last_contact(self, node: str) -> int | None:
        sighting = self._sightings.find(public_key(node))
        return None if sighting is None else sighting.seen

    def _busy(self, node: str) -> bool:
        query = "SELECT 1 FROM lent WHERE node = ? LIMIT 1"
        return self._database.one(query, (public_key(node),)) is not None

    def _engine(self, node: str) -> str:
        query = "SELECT engine FROM nodes WHERE key = ?"
        return str(self._database.value(query, (public_key(node),)) or "")
