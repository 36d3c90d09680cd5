"""A head of the ledger that is dated ahead of the coordinator's clock is taken, and the owner is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from echo2.node.rollouts.ledger_exchange import MOST_HEAD_AHEAD_MS
from tests.support.followed_ledger import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.work("first", 3)
    world.follow()
    yield world
    world.close()


def warnings(world: World) -> list[str]:
    with capture_logs() as logs:
        world.follow()
    return [one["event"] for one in logs if one["log_level"] == "warning"]


def test_a_head_of_the_future_is_told_once_and_heads_behind_it_are_taken(world: World) -> None:
    world.now += 3 * 3_600_000
    world.work("second", 2)
    world.now -= 3 * 3_600_000
    assert warnings(world) == [
        "LedgerHead 2 is dated 3 h ahead of the coordinator's clock: ask the run's operator which of its clocks was set"
    ]
    world.work("third", 1)
    assert warnings(world) == []
    assert "LedgerHead 3" in world.exchange.ahead
    assert len(list(world.store.heads())) == 3
    assert world.store.count_proved() == 6

    world.now += 3 * 3_600_000
    assert warnings(world) == []
    assert world.exchange.ahead == ""


def test_clocks_that_differ_by_less_are_not_told(world: World) -> None:
    world.now += MOST_HEAD_AHEAD_MS - 1
    world.work("second", 2)
    world.now -= MOST_HEAD_AHEAD_MS - 1
    world.follow()
    assert world.exchange.ahead == ""
