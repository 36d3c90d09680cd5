"""Groups that are generated again, in a whole network: two honest nodes agree, and nobody is refused."""

from pathlib import Path

import msgspec
import pytest

from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.swarm import accepted, make_swarm, whole, working


@pytest.mark.slow
@on_fake_clock
async def test_two_proven_nodes_generate_each_others_groups_again_and_the_second_is_stated_as_re_run(
    tmp_path: Path,
) -> None:
    swarm = make_swarm(tmp_path, steps=400, leases={"audits": 0.05})
    alice, bob = swarm.node("alice"), swarm.node("bob")
    async with swarm.coordinating() as coordinator, working(alice), working(bob):
        await until(lambda: accepted(alice) >= 60 and accepted(bob) >= 60, 900)
        await until(lambda: coordinator.view_builder.build().audits.agreed > 2, 900)
        audits = coordinator.view_builder.build().audits
        assert (audits.differed, audits.doubted) == (0, 0)
        assert 0 < audits.share < 0.2
        facts = coordinator.group_service.database.all("SELECT facts FROM entries WHERE kind = 'lease.accepted'")
        stated = [msgspec.msgpack.decode(packed)["audited"] for (packed,) in facts]
        assert stated.count("rerun") >= audits.agreed > 2
        assert set(stated) == {"exact", "rerun"}
        whole(swarm)
