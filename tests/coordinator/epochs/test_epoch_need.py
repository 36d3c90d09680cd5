"""The need of an epoch, and the tags of owners."""

from pathlib import Path

import msgspec

from echo2.coordinator.epochs.epoch_need import EpochNeed, provisioned_rate
from echo2.coordinator.epochs.owner_groups import group_by_owner, nameable
from echo2.coordinator.epochs.presence import Kind
from echo2.coordinator.market.epoch_terms import MOST_NEED
from tests.support.group_world import ALICE
from tests.support.market_world import NANO, MarketWorld


def test_the_need_is_the_least_one_until_a_rollout_was_weighed(tmp_path: Path) -> None:
    world = MarketWorld(tmp_path)
    need = EpochNeed(world.group_service.database, lambda: 2.0, 5_000)
    assert need.now() == 5_000
    world.open_with({ALICE: NANO // 10})
    world.accepted()
    weight, rollouts = world.group_service.database.all("SELECT sum(weight), sum(rollouts) FROM sums WHERE node = x''")[
        0
    ]
    assert need.now() == 2 * 3600 * weight // rollouts


def test_a_restart_buys_what_was_needed_before_it(tmp_path: Path) -> None:
    world = MarketWorld(tmp_path)
    database = world.group_service.database
    world.open_with({ALICE: NANO // 10})
    world.accepted()
    assert EpochNeed(database, lambda: None, 5_000).now() == 5_000
    needed = EpochNeed(database, lambda: 2.5, 5_000).now()
    assert needed > 5_000
    world.reopen()
    database = world.group_service.database
    assert EpochNeed(database, lambda: None, 5_000).now() == needed
    assert EpochNeed(database, lambda: 1e300, 5_000).now() == MOST_NEED
    assert EpochNeed(database, lambda: 2.5, 5_000).now() == needed


def test_where_no_supply_is_enough_as_much_is_bought_as_the_learner_draws(tmp_path: Path) -> None:
    world = MarketWorld(tmp_path)
    known = msgspec.structs.replace(world.capacity(None), need=None, gamma=1.5, rollouts_per_step=8.0)
    assert provisioned_rate(known) is None
    assert provisioned_rate(msgspec.structs.replace(known, step_seconds=2.0)) == 6.0
    assert provisioned_rate(msgspec.structs.replace(known, step_seconds=2.0, need=3.0)) == 3.0


def test_nodes_of_one_account_or_party_share_a_tag_that_changes_with_the_key() -> None:
    nodes = ["a", "b", "c", "d"]
    accounts, parties = {"a": "bank", "b": "bank"}, {"b": "192.0.2.0/24", "c": "192.0.2.0/24", "d": "198.51.100.0/24"}
    tags = group_by_owner(nodes, accounts, parties, b"k" * 32)
    assert set(tags) == {"a", "b", "c"}
    assert len(set(tags.values())) == 1
    assert set(group_by_owner(nodes, accounts, parties, b"other key").values()).isdisjoint(tags.values())


def test_thousands_of_free_keys_of_one_party_fill_no_entry() -> None:
    kinds = {f"free{number:05}": Kind.STRANGER for number in range(9_000)} | {"asks": Kind.NEWCOMER}
    workers = {f"worker{number}": Kind.WORKER for number in range(300)}
    kinds |= workers
    named = nameable(list(kinds), kinds.__getitem__)
    assert workers.keys() < set(named)
    assert "asks" in named
    assert len(named) == 300 + 256
    tags = group_by_owner(named, {}, dict.fromkeys(kinds, "192.0.2.0/24"), b"k" * 32)
    assert len(tags) == len(named)
