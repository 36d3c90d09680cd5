"""Make the market of a run that pays money. A run in points loads neither the market nor a way to pay."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.leases.rollout_context import Entropy
from echo2.coordinator.run import price_mode
from echo2.coordinator.run.setup import Run
from echo2.coordinator.submissions.run_records import RunRecords

if TYPE_CHECKING:
    from echo2.coordinator.epochs.running_market import RunningMarket


def market_of(
    run: Run,
    records: RunRecords,
    heads: LedgerHeads,
    rollouts: Callable[[], float | None],
    entropy: Entropy,
) -> "RunningMarket | None":
    """Return the market of a run; None: it pays in points."""
    if run.runspec.price_mode != price_mode.MARKET:
        return None
    from echo2.coordinator.epochs.market_terms import MarketTerms
    from echo2.coordinator.epochs.running_market import PayoutPlace, RunningMarket
    from echo2.coordinator.payouts.plan_files import FOLDER

    place = PayoutPlace(run.config.payout, run.folder.path / FOLDER)
    terms = MarketTerms.of(run.config.market, run.runspec.currency)
    return RunningMarket(run.id, terms, records, heads, rollouts, entropy, place)
