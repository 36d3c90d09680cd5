"""Wrong amounts among a market's settings are refused with an example of a right one."""

import pytest

from echo2.coordinator.settings.market_config import MarketSection
from echo2.protocol.sealed_asks import BadAsk, parse_ask


@pytest.mark.parametrize(("key", "example"), [("reserve", "0.0125"), ("budget", "2.50")])
def test_an_amount_has_an_example_that_is_one(key: str, example: str) -> None:
    assert MarketSection.model_fields[key].examples == [example]
    MarketSection.model_validate({"enabled": True, "reserve": "1", "budget": "1", key: example})


@pytest.mark.parametrize("text", ["0/h", "0.0000009/h", "100001/h"])
def test_an_ask_beyond_the_limits_is_refused_in_units_of_the_currency(text: str) -> None:
    with pytest.raises(BadAsk, match=r"from 0\.000001/h to 100000/h"):
        parse_ask(text, "EUR")
