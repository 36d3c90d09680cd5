"""The demo of a market: its settings, and what it says of its nodes at the end."""

from pathlib import Path

import pytest

from echo2.coordinator.demo.demo_settings import ASKS, DemoOptions, sections_of, settings_of
from echo2.coordinator.demo.market_summary import market_lines, played_market
from echo2.coordinator.run.price_mode import currency_of
from echo2.coordinator.run.setup import settings_for
from echo2.p2p.identity import peer_id
from echo2.runtime.errors import LocalFault
from tests.support.group_world import ALICE, BOB, RUN
from tests.support.market_world import EPOCH, NANO, MarketWorld


def test_the_settings_are_those_of_a_market_with_a_node_for_each_ask() -> None:
    settings = settings_of(DemoOptions(market=True))
    assert settings.nodes == len(ASKS)
    config = settings_for(settings.model, sections_of(settings, 0), env={})
    assert currency_of(config) == "USD"
    assert settings_of(DemoOptions()).nodes == 3


def test_a_market_is_played_with_the_tiny_model_alone() -> None:
    with pytest.raises(LocalFault, match="--market and --pay are for the tiny model"):
        settings_of(DemoOptions(market=True, model="smollm2"))


def test_the_end_says_of_each_node_its_epochs_and_its_pay(tmp_path: Path) -> None:
    world = MarketWorld(tmp_path)
    asks = {ALICE: NANO // 10, BOB: 2 * NANO}
    world.open_with(asks)
    world.accepted()
    world.now += EPOCH
    world.open_with(asks)
    lines = market_lines(played_market(RUN, world.entries()), {peer_id(ALICE): "alice"}, "USD")
    assert lines[0].startswith("epochs    2, earned 0.")
    assert lines[1].split() == ["node", "ask", "per", "hour", "active", "standby", "out", "RE", "earned"]
    assert lines[2].split()[:5] == ["alice", "0.10", "2", "0", "0"]
    assert lines[3].split()[1:] == ["2.00", "0", "0", "2", "0.0", "0.00"]
