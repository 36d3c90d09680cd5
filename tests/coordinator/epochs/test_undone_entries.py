"""The market's state has read the ledger as it stands: a verdict that is undone leaves nothing there."""

import sqlite3
from pathlib import Path

import pytest

from echo2.coordinator.verification.verification import judge
from tests.support.group_world import ALICE, BOB, group, honest_scores
from tests.support.market_world import NANO, MarketWorld, key_of, told

CAROL = key_of(3)
ASKS = {ALICE: NANO // 10, BOB: NANO // 10, CAROL: NANO // 10}


def test_a_verdict_that_is_undone_beside_others_is_no_work_in_the_open_epoch(tmp_path: Path) -> None:
    """The receipt of the second of three groups cannot be written. Its entry was there before, and goes with it."""
    world = MarketWorld(tmp_path)
    world.open_with(ASKS)
    for node in ASKS:
        world.submit(group(world.lease(node)), node)
    waiting = world.group_service.list_undecided()
    judged = [(one, judge(one.submission.rollouts, honest_scores(one.submission))) for one in waiting]
    bad = next(one.lease for one, _ in judged if one.lease.node == BOB)
    database = world.group_service.database
    database.do(
        f"CREATE TEMP TRIGGER fails BEFORE INSERT ON verdicts WHEN NEW.lease = x'{bad.id.hex()}' "
        "BEGIN SELECT RAISE(ABORT, 'it fails'); END"
    )
    with pytest.raises(sqlite3.IntegrityError, match="it fails"):
        world.group_service.decide_all(judged, world.now)
    database.do("DROP TRIGGER fails")
    assert len(world.entries("lease.accepted")) == 2
    world.market.service.read()
    assert told(world.replayed()) == told(world.market.service.state)
    world.open_with(ASKS)
    assert [world.pay(node) > 0 for node in ASKS] == [True, False, True]
    assert told(world.replayed()) == told(world.market.service.state)
