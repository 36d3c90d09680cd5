"""An epoch is turned over in steps: what comes between two of them counts once, and a crash there changes nothing."""

from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.epochs import turn_over
from echo2.coordinator.market.entries import EpochClosed
from echo2.p2p.identity import peer_id
from tests.support.group_world import ALICE, group
from tests.support.market_world import EPOCH, NANO, MarketWorld, told

ASK = {ALICE: NANO // 10}
GROUPS = 12
"""More than a probation has."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MarketWorld:
    monkeypatch.setattr(turn_over, "STEP_SLICE_SECONDS", 0.0)  # a step at a time
    return MarketWorld(tmp_path, batch_groups=99)


def at_the_end(world: MarketWorld) -> None:
    """Let two epochs run to their ends, with groups of Alice in each, and the asks of the third one close."""
    for _ in range(2):
        world.open_with(ASK)
        for _ in range(GROUPS):
            world.accepted()
        world.now += EPOCH
    while (coming := world.asks(ALICE).coming) is None:
        world.now += 1_000
        world.tick()
    world.now = max(coming.closes + 1, coming.opens, world.now)


def one_slice(world: MarketWorld) -> bool:
    return world.market.tick(world.now)


def kinds(world: MarketWorld) -> list[str]:
    return [one.kind for one in world.entries()]


def sliced_until(world: MarketWorld, kind: str) -> None:
    """Make slices until the newest entry has a kind."""
    assert one_slice(world)
    while kinds(world)[-1] != kind:
        assert one_slice(world)


def work_of(world: MarketWorld, epoch: int) -> int:
    facts = [msgspec.msgpack.decode(one.facts, type=EpochClosed) for one in world.entries("epoch.closed")]
    return sum(row.work for fact in facts if fact.epoch == epoch for row in fact.nodes if row.node == peer_id(ALICE))


def test_no_slice_writes_more_than_one_entry_of_a_turn_over(world: MarketWorld) -> None:
    at_the_end(world)
    before, seen = len(kinds(world)), list[int]()
    while one_slice(world):
        seen.append(len(kinds(world)) - before)
    assert max(after - one for one, after in zip([0, *seen], seen, strict=False)) == 1
    assert [one for one in kinds(world)[before:] if one.split(".")[0] in ("epoch", "vested", "released")] == [
        "epoch.drawn", "epoch.closed", "epoch.opened", "vested", "released",
    ]  # fmt: skip


def test_a_request_for_a_lease_hurries_no_step_of_a_run_that_has_finished(world: MarketWorld) -> None:
    """No epoch opens any more: a stranger who asks would have all that is left made in one piece."""
    at_the_end(world)
    while kinds(world)[-1] != "epoch.closed":
        assert world.market.tick(world.now, finished=True)
    assert world.refusal().code == "not-active"
    assert kinds(world)[-1] == "epoch.closed"
    while world.market.tick(world.now, finished=True):
        pass
    assert kinds(world)[-2:] == ["vested", "released"]


def test_a_group_that_is_accepted_before_the_close_counts_in_the_epoch_that_ends(world: MarketWorld) -> None:
    at_the_end(world)
    lease = world.lease()
    assert one_slice(world)
    assert kinds(world).count("epoch.closed") == 1
    world.submit(group(lease))
    (receipt,) = world.decide_all()
    assert receipt.epoch == 2
    sliced_until(world, "epoch.closed")
    assert work_of(world, 2) == (GROUPS + 1) * receipt.weight


def test_a_group_that_is_accepted_behind_the_close_opens_the_next_epoch_first(world: MarketWorld) -> None:
    at_the_end(world)
    lease = world.lease()
    world.submit(group(lease))
    sliced_until(world, "epoch.closed")
    (receipt,) = world.decide_all()
    assert (receipt.verdict, receipt.epoch) == ("accepted", 3)
    assert kinds(world)[-1] == "lease.accepted"
    assert kinds(world).count("epoch.opened") == 3
    world.now += EPOCH
    world.open_with(ASK)
    assert work_of(world, 3) == receipt.weight
    assert told(world.replayed()) == told(world.market.service.state)


def test_a_lease_that_is_asked_for_behind_the_close_is_one_of_the_next_epoch(world: MarketWorld) -> None:
    at_the_end(world)
    sliced_until(world, "epoch.closed")
    world.lease()
    running = world.market.service.state.open
    assert running.terms.epoch == 3


@pytest.mark.slow
def test_a_crash_after_any_slice_loses_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_over, "STEP_SLICE_SECONDS", 0.0)
    slices, ended = 0, False
    while not ended:
        folder = tmp_path / str(slices)
        folder.mkdir()
        world = MarketWorld(folder, batch_groups=99)
        at_the_end(world)
        ended = not all(one_slice(world) for _ in range(slices))
        before = [one.hash for one in world.entries()]
        world.reopen()
        world.tick()
        world.tick()
        assert [one.hash for one in world.entries()][: len(before)] == before
        for kind in ("epoch.closed", "epoch.opened"):
            epochs = [msgspec.msgpack.decode(one.facts)["epoch"] for one in world.entries(kind)]
            assert epochs == list(range(1, len(epochs) + 1))
        assert kinds(world).count("epoch.opened") == 3
        assert "released" in kinds(world)
        assert told(world.replayed()) == told(world.market.service.state)
        slices += 1
    assert slices > 4


def test_a_snapshot_that_was_not_finished_leaves_the_one_before(world: MarketWorld) -> None:
    at_the_end(world)
    world.tick()
    begun = [world.market.service.snapshots.newest(world.market.service.state.run)]
    assert begun[0] is not None
    world.now += 700_000
    world.open_with(ASK)
    fresh = world.market.service.snapshots.newest(world.market.service.state.run)
    assert fresh[1] > begun[0][1]
    state, entry = fresh
    steps = iter(world.market.service.snapshots.storing(state, entry, world.now + 10**7))
    next(steps)  # the first part of another one
    again = world.market.service.snapshots.newest(state.run)
    assert (again[1], told(again[0])) == (entry, told(state))
