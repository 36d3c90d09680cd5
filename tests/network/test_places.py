"""The connection places that the network keeps for parties whose work was accepted."""

from pathlib import Path

from echo2.p2p.limits.origin import Origin
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.swarm import accepted, make_swarm, working


@on_fake_clock
async def test_places_are_kept_for_the_parties_of_nodes_whose_work_was_accepted(tmp_path: Path) -> None:
    """Commit 439044d knows no parties and keeps no places: it has no code that this test could exercise."""
    swarm = make_swarm(tmp_path)
    worker = swarm.node("worker")
    async with swarm.coordinating():
        parties = swarm.coordinator.parties
        swarm.network.origins[worker.peer_id] = Origin(worker.peer_id, "8.8.8.0/24")
        assert parties.known == frozenset(), "nobody has worked"
        async with working(worker):
            await until(lambda: accepted(worker) >= 3, 1_000)
            await until(lambda: parties.known == frozenset({"8.8.8.0/24"}), 1_000)
