"""The operator's terms of all epochs, from the settings."""

from typing import NamedTuple, Self

from echo2.coordinator.market.entries import EpochAnnounced
from echo2.coordinator.market.epoch_terms import PER_MILLE
from echo2.coordinator.settings.market_config import MarketSection, nano


class MarketTerms(NamedTuple):
    """Times in ms, money in units of the ledger, rates in milli-RE per hour, shares per mille."""

    currency: str
    epoch: int
    asks: int
    reserve: int
    budget: int
    least_need: int
    newcomers: int
    cap: int
    run_off: int
    untrainable: int = PER_MILLE

    @classmethod
    def of(cls, section: MarketSection, currency: str) -> Self:
        return cls(
            currency, 1000 * section.epoch_seconds, 1000 * section.asks_seconds,
            nano(section.reserve), nano(section.budget), 1000 * section.least_need, section.newcomers,
            section.owner_cap, 1000 * section.run_off_seconds, section.untrainable,
        )  # fmt: skip

    def epoch_terms(self, epoch: int, closes: int, need: int) -> EpochAnnounced:
        """Return the terms of one epoch. `closes`: time until which its asks are sealed."""
        return EpochAnnounced(
            epoch=epoch, closes=closes, milliseconds=self.epoch, need=need, reserve=self.reserve,
            budget=self.budget, newcomers=self.newcomers, cap=self.cap, run_off=self.run_off,
        )  # fmt: skip

    def opens(self, terms: EpochAnnounced) -> int:
        """Return when an announced epoch opens by plan: asks are opened for as long as they were sealed."""
        return terms.closes + self.asks
