"""The record of the groups that the learner drew."""

from pathlib import Path

import pytest

from echo2.coordinator.metrics.group_stages import stages
from echo2.coordinator.verdicts.draw_record import PER_STEP, REMEMBERED_STEPS, read_draws, record_draw
from echo2.coordinator.verdicts.replay_buffer import DrawnGroup
from echo2.p2p.identity import peer_id
from echo2.protocol.broadcast_messages import Acknowledgement
from tests.support.group_world import ALICE, HELLO, T0, World, group


def drawn(world: World, count: int, **times: int) -> list[DrawnGroup]:
    """So many groups, accepted and in the order of a batch. `times`: what their nodes state."""
    leases = [world.lease() for _ in range(count)]
    for lease in leases:
        world.submit(group(lease, **times))
    world.decide_all()
    return [DrawnGroup(lease.id, 0) for lease in leases]


def nowhere(era: int, version: int, node: str) -> None:
    return None


def test_a_draw_records_the_times_of_its_groups(world: World) -> None:
    service = world.group_service
    service.registry.register(ALICE, HELLO, None, world.now)
    service.broadcasts.on_announcement(1, 0, world.now)
    world.now += 300
    service.acknowledge(ALICE, Acknowledgement(era=1, version=0, heard=100, complete=50, applied=20), world.now)
    world.now += 700
    for lease in [world.lease(), world.lease()]:
        world.submit(group(lease, waited=3, took=8))
    world.now += 1_000
    world.decide_all()
    world.now += 2_000
    assert service.draw(world.now) is not None
    first, second = read_draws(service.database)
    assert (first.step, first.published, first.loaded, first.leased) == (1, T0, T0 + 280, T0 + 1_000)
    assert (first.waited, first.took, first.drawn) == (3, 8, world.now)
    assert {first.received, second.received} == {T0 + 1_010, T0 + 1_020}
    assert first.judged == second.judged == T0 + 2_020
    assert [part.name for part in stages([first, second]).parts] == [
        "held", "leased", "begun", "generated", "received", "judged", "drawn",
    ]  # fmt: skip


def test_a_node_that_states_nothing_and_was_not_here_leaves_its_stages_out(world: World) -> None:
    record_draw(world.group_service.database, drawn(world, 1), 1, 1, world.now, nowhere)
    (one,) = read_draws(world.group_service.database)
    assert (one.loaded, one.waited, one.took) == (None, None, None)


def test_the_node_is_named_by_its_peer_id(world: World) -> None:
    asked = []
    record_draw(world.group_service.database, drawn(world, 1), 1, 1, world.now, lambda *names: asked.append(names))
    assert asked == [(1, 0, peer_id(ALICE))]


@pytest.fixture
def large(tmp_path: Path) -> World:
    """A run of large batches."""
    return World(tmp_path, batch_groups=100)


def test_of_a_large_batch_groups_are_recorded_evenly(large: World) -> None:
    batch = drawn(large, 2 * PER_STEP + 1)
    record_draw(large.group_service.database, batch, 1, 1, large.now, nowhere)
    recorded = {row[0] for row in large.group_service.database.all("SELECT lease FROM draws")}
    assert recorded == {one.id for one in batch[::3]}
    assert len(recorded) <= PER_STEP


def test_the_last_steps_are_kept_and_a_step_made_again_replaces_what_it_drew(large: World) -> None:
    database, batch = large.group_service.database, drawn(large, REMEMBERED_STEPS + 5)
    for step, one in enumerate(batch, 1):
        record_draw(database, [one], 1, step, large.now + step, nowhere)
    assert [one.step for one in read_draws(database)] == list(range(6, REMEMBERED_STEPS + 6))
    record_draw(database, [batch[0]], 1, REMEMBERED_STEPS + 3, large.now, nowhere)
    assert [one.step for one in read_draws(database)] == list(range(6, REMEMBERED_STEPS + 4))
    assert database.value("SELECT lease FROM draws WHERE step = ?", (REMEMBERED_STEPS + 3,)) == batch[0].id
