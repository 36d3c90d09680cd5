"""A whole run in one process: the shipped coordinator and nodes, an in-memory network, a fake clock."""

from pathlib import Path

from echo2.coordinator.daemon import Coordinator
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.swarm import finished, make_swarm, working


@on_fake_clock
async def test_nodes_carry_a_run_to_its_last_step_and_then_stop(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, steps=12)
    async with swarm.coordinating() as coordinator:
        nodes = [swarm.node(name) for name in ("alice", "bob", "carol")]
        async with working(*nodes):
            await until(lambda: finished(coordinator), 600)
            await until(lambda: all(node.daemon.run_state.finishing for node in nodes), 60)
        state = coordinator.view_builder.build()
    assert state.step == state.version == 12
    assert state.refused == {}
    assert state.received == state.accepted == sum(row.accepted for row in state.nodes)
    assert state.undecided == state.running == 0
    assert sum(state.staleness) == 12 * 2
    assert sum(row.weight for row in state.nodes) == sum(row.points for row in state.nodes) > 0


@on_fake_clock
async def test_a_group_that_breaks_the_scorer_twice_is_refused_by_the_operators_fault_and_stops_no_other(
    tmp_path: Path,
) -> None:
    swarm = make_swarm(tmp_path, steps=4)
    async with swarm.coordinating() as coordinator:
        swarm.scorer.poisoned = {lease_index(coordinator, 1)}
        node = swarm.node("alice")
        async with working(node):
            await until(lambda: finished(coordinator), 600)
        state = coordinator.view_builder.build()
    assert state.refused == {"not-scorable": 1}
    assert swarm.scorer.renewed == 1
    assert state.undecided == 0


def lease_index(coordinator: Coordinator, position: int) -> int:
    """Return the index of the prompt that the run's lease at this position gets."""
    return coordinator.group_service.leases.positions.prompts.at(position).index
