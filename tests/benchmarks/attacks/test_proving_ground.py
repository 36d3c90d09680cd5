"""A short campaign against a real coordinator process, with honest nodes at work."""

import pytest

from benchmarks.attacks.campaign import Campaign
from benchmarks.attacks.catalogue import ATTACKS, DRAFT, MARKUP, REBIND
from benchmarks.attacks.proving_ground import ProvingGround
from echo2.coordinator.settings.config import parse

MARKET = [sentence for sentence, attack in ATTACKS.items() if attack.market]
TRIED = ["a token that was not chosen", "a request replayed", DRAFT, MARKUP, REBIND]


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_attacks_are_held_while_honest_nodes_work_and_nothing_is_left_behind() -> None:
    own = parse({"leases": {"per_node": 3}, "web": {"host": "0.0.0.0", "port": 8420}}, source="test")
    with ProvingGround(own) as ground:
        folder = ground.run.folder.path.parent
        assert ground.run.config.leases.per_node == 3, "the operator's own settings"
        assert (ground.run.config.web.host, ground.run.config.web.port) == ("127.0.0.1", 0), "on the loopback alone"
        campaign = Campaign(ground, quick=True)
        campaign.begin()
        rows = {row.attack: row for row in campaign.rows(TRIED)}
    assert campaign.calm > 0
    assert {name: row.outcome for name, row in rows.items()} == dict.fromkeys(TRIED, "held")
    assert rows["a token that was not chosen"].named == 1
    assert rows["a token that was not chosen"].sent > 500
    assert not folder.exists()


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_attacks_by_asks_are_held_in_a_run_whose_honest_nodes_are_paid_by_a_market() -> None:
    with ProvingGround(None, market=True) as ground:
        assert ground.run.runspec.price_mode == "market"
        campaign = Campaign(ground, quick=True)
        campaign.begin()
        rows = list(campaign.rows(MARKET))
    assert len(rows) == 3
    assert [row.attack for row in rows if row.outcome != "held"] == []
