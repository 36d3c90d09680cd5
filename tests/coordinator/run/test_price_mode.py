"""The price mode of a run is signed; settings that contradict it or each other are refused with a sentence."""

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.config import CoordinatorConfig, parse
from coordinator.market_config import nano
from coordinator.run.price_mode import check_price_mode, currency_of
from runtime.settings import SettingsFault

MONEY = {"enabled": True, "budget": "2.5", "reserve": "0.01"}


def config(payout: dict[str, Any] | None = None, **market: Any) -> CoordinatorConfig:
    return parse({"market": market, "payout": payout or {}}, source="a test")


def test_a_run_pays_in_points_or_by_a_market_in_its_currency() -> None:
    assert currency_of(config()) == ""
    assert currency_of(config({"currency": "EUR"}, **MONEY)) == "EUR"


def test_amounts_are_exact() -> None:
    assert (nano("2.5"), nano("0.000000001"), nano("999999999")) == (2_500_000_000, 1, 999_999_999 * 10**9)


def test_a_rail_of_money_needs_a_market() -> None:
    with pytest.raises(SettingsFault, match=r"payout\.rail is csv, but a run without a market pays in points"):
        currency_of(config({"rail": "csv"}))


@pytest.mark.parametrize(
    ("market", "said"),
    [
        ({**MONEY, "budget": "0"}, "market.budget is 0"),
        ({**MONEY, "reserve": "0"}, "market.reserve is 0"),
        ({**MONEY, "reserve": "1000001"}, "market.reserve is 1000001"),
        ({**MONEY, "asks_seconds": 600}, "market.asks_seconds is 600"),
        ({**MONEY, "budget": "-1"}, "budget"),
        ({**MONEY, "budget": 2.5}, "budget"),
        ({**MONEY, "budget": "NaN"}, "budget"),
        ({**MONEY, "budget": "0.0000000001"}, "budget"),
        ({**MONEY, "prices": "auction"}, "prices"),
    ],
)
def test_terms_that_make_no_market_are_refused(market: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsFault, match=said):
        config(**market)


def test_settings_that_differ_from_the_signed_run_are_refused() -> None:
    points: Any = SimpleNamespace(price_mode="points", currency="")
    dollars: Any = SimpleNamespace(price_mode="market", currency="USD")
    check_price_mode(config(), points)
    check_price_mode(config(**MONEY), dollars)
    with pytest.raises(SettingsFault, match="signed to pay in points"):
        check_price_mode(config(**MONEY), points)
    with pytest.raises(SettingsFault, match="signed to pay by a market"):
        check_price_mode(config(), dollars)
    with pytest.raises(SettingsFault, match="signed to pay in USD"):
        check_price_mode(config({"currency": "CHF"}, **MONEY), dollars)
