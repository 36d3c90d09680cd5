"""The price mode of a run is signed; settings that contradict it or each other are refused with a sentence."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from echo2.coordinator.run import setup
from echo2.coordinator.run.price_mode import cap_remark, check_price_mode, currency_of
from echo2.coordinator.settings.config import CoordinatorConfig, parse
from echo2.coordinator.settings.market_config import nano
from echo2.runtime.settings import SettingsFault

MONEY = {"enabled": True, "budget": "2.5", "reserve": "0.01"}


CSV = {"rail": "csv"}


def config(payout: dict[str, Any] | None = None, **market: Any) -> CoordinatorConfig:
    return parse({"market": market, "payout": payout or {}}, source="a test")


def test_a_run_pays_in_points_or_by_a_market_in_its_currency() -> None:
    assert currency_of(config()) == ""
    assert currency_of(config({"currency": "EUR", **CSV}, **MONEY)) == "EUR"


def test_amounts_are_exact() -> None:
    assert (nano("2.5"), nano("0.000000001"), nano("999999999")) == (2_500_000_000, 1, 999_999_999 * 10**9)


def test_a_rail_of_money_needs_a_market() -> None:
    with pytest.raises(SettingsFault, match=r"payout\.rail is csv, but a run without a market pays in points"):
        currency_of(config({"rail": "csv"}))


def test_a_market_needs_a_rail_that_sends_money() -> None:
    with pytest.raises(SettingsFault, match=r"payout\.rail is points, which sends none: set payout\.rail to csv"):
        currency_of(config(**MONEY))
    dollars: Any = SimpleNamespace(price_mode="market", currency="USD")
    with pytest.raises(SettingsFault, match=r"payout\.rail is points"):
        check_price_mode(config(**MONEY), dollars)


IBAN = "DE89370400440532013000"
HTTPS = {"rail": "https", "url": "https://x.example/v1", "credentials": "/run/token"}
BANK = {"rail": "bank", "debtor_name": "The Run", "debtor_iban": IBAN}


@pytest.mark.parametrize(
    ("payout", "said"),
    [
        ({"rail": "https"}, r"needs payout\.url, .*; and payout\.credentials, "),
        ({**HTTPS, "credentials": ""}, r"needs payout\.credentials, the path of a file of mode 0600"),
        ({**HTTPS, "url": "http://x.example"}, r"payout\.url 'http://x\.example' should be as https://"),
        ({"rail": "command"}, r"needs payout\.command, the absolute path"),
        ({"rail": "command", "command": "pay.sh"}, r"payout\.command 'pay\.sh' is no absolute path"),
        ({"rail": "bank"}, r"needs payout\.debtor_name, .*; and payout\.debtor_iban, "),
        ({**BANK, "debtor_iban": "DE00370400440532013000"}, r"payout\.debtor_iban .* is no IBAN"),
        ({**BANK, "debtor_bic": "x"}, r"payout\.debtor_bic 'x' is no BIC"),
    ],
)
def test_a_rail_without_what_it_needs_is_refused_before_a_run_is_made_or_started(
    payout: dict[str, Any], said: str
) -> None:
    dollars: Any = SimpleNamespace(price_mode="market", currency="USD")
    with pytest.raises(SettingsFault, match=said):
        currency_of(config(payout, **MONEY))
    with pytest.raises(SettingsFault, match=said):
        check_price_mode(config(payout, **MONEY), dollars)


def test_nothing_is_made_of_a_run_that_could_never_pay(tmp_path: Path) -> None:
    with pytest.raises(SettingsFault, match=r"payout\.rail is points"):
        setup.init(tmp_path / "run", "tiny", config(**MONEY), now=0, report=pytest.fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("payout", [CSV, HTTPS, BANK, {"rail": "command", "command": "/opt/pay"}])
def test_a_rail_with_what_it_needs_is_taken(payout: dict[str, Any]) -> None:
    assert currency_of(config(payout, **MONEY)) == "USD"


@pytest.mark.parametrize("payout", [{"minimum": 20_000}, {"node_limit": 200_000}, {"day_limit": 1}])
def test_limits_by_which_some_payments_are_never_made_are_refused(payout: dict[str, Any]) -> None:
    with pytest.raises(SettingsFault, match="each can be at most the next one"):
        config(payout)


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
    check_price_mode(config(CSV, **MONEY), dollars)
    with pytest.raises(SettingsFault, match="signed to pay in points"):
        check_price_mode(config(**MONEY), points)
    with pytest.raises(SettingsFault, match="signed to pay by a market"):
        check_price_mode(config(), dollars)
    with pytest.raises(SettingsFault, match="signed to pay in USD"):
        check_price_mode(config({"currency": "CHF"}, **MONEY), dollars)


@pytest.mark.parametrize(
    ("cap", "says"), [(400, "at most 40 % of the need, and those of 3 owners"), (500, "of 2 owners")]
)
def test_the_cap_of_an_owner_says_what_it_does_to_a_run_of_few(cap: int, says: str) -> None:
    paid: Any = SimpleNamespace(price_mode="market")
    points: Any = SimpleNamespace(price_mode="points")
    assert says in cap_remark(config(CSV, **MONEY, owner_cap=cap), paid)
    assert cap_remark(config(CSV, **MONEY, owner_cap=1000), paid) == ""
    assert cap_remark(config(), points) == ""
