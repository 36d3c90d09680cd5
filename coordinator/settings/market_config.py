"""The settings of a market: what a run pays for accepted work, and in which rhythm. docs/money.md explains them.

Amounts are decimal numbers of `payout.currency` as text, exact to 0.000000001; shares are whole thousandths.
"""

from fractions import Fraction
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from echo2.coordinator.settings.config_section import Section

NANO: Final = 10**9
MOST_PRICE: Final = 10**6
"""Units of the currency per RE."""

Money = Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,9})?$")]
"""Units of the currency, as text."""


def nano(amount: str) -> int:
    """Return an amount of text in units of the ledger, 10^-9 of the currency."""
    return int(Fraction(amount) * NANO)


class MarketSection(Section):
    """A market: the run pays money, by asks and measured work. Without it a run pays in points."""

    enabled: Annotated[
        bool, Field(description="Whether accepted work is paid in payout.currency, at prices of a market. Signed.")
    ] = False
    reserve: Annotated[
        Money,
        Field(
            examples=["0.0125"],
            description="Highest price per RE (reference rollout), in payout.currency, as in 0.0125.",
        ),
    ] = "0"
    budget: Annotated[
        Money, Field(examples=["2.50"], description="Most that one epoch pays out, in payout.currency, as in 2.50.")
    ] = "0"
    epoch_seconds: Annotated[
        int, Field(ge=2, le=604_800, description="Length of an epoch, after which nodes are chosen and paid anew.")
    ] = 900
    asks_seconds: Annotated[
        int,
        Field(
            ge=1, le=86_400,
            description="Before an epoch asks can be sealed for so long, and then opened for as long again.",
        ),
    ] = 30  # fmt: skip
    least_need: Annotated[
        int,
        Field(ge=1, le=10**9, description="RE per hour that are bought while the need is not measured, and at least."),
    ] = 100
    newcomers: Annotated[
        int, Field(ge=0, le=1000, description="Thousandths of the need that nodes not measured yet may get.")
    ] = 50
    owner_cap: Annotated[
        int,
        Field(ge=1, le=1000, description="Thousandths of the need that one owner's nodes count up to. 1000: no cap."),
    ] = 400
    run_off_seconds: Annotated[
        int,
        Field(
            ge=0, le=86_400,
            description="For how long a node that is no longer active is paid for groups that it still has.",
        ),
    ] = 900  # fmt: skip
    untrainable: Annotated[
        int,
        Field(
            ge=0, le=1000,
            description="Thousandths of an epoch's work that may come too late to be trained on; above that, a lease "
            "is given only where it comes back in time with a chance of 1/2, and ends by then. 1000: no limit.",
        ),
    ] = 100  # fmt: skip

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if not self.enabled:
            return self
        if not nano(self.budget):
            raise ValueError(
                'market.budget is 0: a market needs the amount that an epoch may pay, as in budget = "2.50"'
            )
        if not 0 < nano(self.reserve) <= MOST_PRICE * NANO:
            raise ValueError(
                f"market.reserve is {self.reserve}: a market needs its highest price per RE, above 0 and at "
                f"most {MOST_PRICE}"
            )
        if 2 * self.asks_seconds > self.epoch_seconds:
            raise ValueError(
                f"market.asks_seconds is {self.asks_seconds}: sealing and opening take twice that, which is "
                f"longer than an epoch of {self.epoch_seconds} s"
            )
        return self
