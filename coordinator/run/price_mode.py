"""The price mode of a run: points, or a market in a currency. Signed with the RunSpec, for the run's life. Pure."""

from typing import Final

from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.protocol.authority import RunSpec
from echo2.runtime.settings import SettingsFault

POINTS: Final = "points"
MARKET: Final = "market"
PER_MILLE: Final = 1000


def currency_of(config: CoordinatorConfig) -> str:
    """Return the currency in which a new run pays; empty: it pays in points. Raises `SettingsFault`."""
    if config.market.enabled:
        check_rail(config)
        return config.payout.currency
    if config.payout.rail != "points":
        raise SettingsFault(
            f"payout.rail is {config.payout.rail}, but a run without a market pays in points, which no rail sends: set "
            "market.enabled, with market.budget and market.reserve, or payout.rail to points"
        )
    return ""


def check_price_mode(config: CoordinatorConfig, spec: RunSpec) -> None:
    """Check the settings against the RunSpec. Raises `SettingsFault`."""
    signed = spec.price_mode == MARKET
    if config.market.enabled != signed:
        raise SettingsFault(
            f"market.enabled is {str(config.market.enabled).lower()}, but this run was signed to pay "
            f"{'by a market' if signed else 'in points'}, which binds nodes: set it back, or make another run with "
            "`echo2-coord init`"
        )
    if signed and config.payout.currency != spec.currency:
        raise SettingsFault(
            f"payout.currency is {config.payout.currency}, but this run was signed to pay in {spec.currency}, "
            f"which binds nodes: set it back, or make another run with `echo2-coord init`"
        )
    if signed:
        check_rail(config)


def cap_remark(config: CoordinatorConfig, spec: RunSpec) -> str:
    """Return what the cap on an owner's share does to a run with few owners, as a sentence; empty: it does nothing."""
    cap = config.market.owner_cap
    if spec.price_mode != MARKET or cap == PER_MILLE:
        return ""
    one, owners = cap / 10, -(-PER_MILLE // cap)
    return (
        f"market.owner_cap is {cap}: nodes of one owner (one payout account, or one network address) supply at most "
        f"{one:g} % of the need, and those of {owners} owners or more can supply all of it; in a run of fewer owners "
        "the rest is not bought, and market.owner_cap = 1000 lifts that"
    )


def check_rail(config: CoordinatorConfig) -> None:
    """Check that a run that pays money has a rail for it, with the settings that it needs. Raises `SettingsFault`."""
    if config.payout.rail == "points":
        raise SettingsFault(
            "market.enabled pays money, but payout.rail is points, which sends none: set payout.rail to csv (files "
            "that you hand on; it needs nothing else), bank, command or https (docs/money.md)"
        )
    from echo2.coordinator.rails import registry  # a run in points loads no rail

    registry.check(config.payout)
