"""A bound on the bytes of rollouts, lowered while a whole run works, by the command's own path."""

from pathlib import Path

import pytest

from echo2.coordinator.verdicts.token_storage import stored_bytes
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.ledger_sums import check_sums
from tests.support.swarm import make_swarm, step, working

STORED = "SELECT count(*) FROM submissions WHERE payload IS NOT NULL"


@pytest.mark.slow
@on_fake_clock
async def test_a_bound_lowered_in_mid_run_keeps_what_the_learner_needs_and_holds_after_a_restart(
    tmp_path: Path,
) -> None:
    swarm = make_swarm(tmp_path, steps=30)
    async with swarm.coordinating() as coordinator, working(swarm.node("alice")):
        database = coordinator.group_service.database
        await until(lambda: step(coordinator) >= 12, 600)
        before, size = database.value(STORED), stored_bytes(database)
        assert before >= 24
        (said,) = await coordinator.settings.change(["store.rollout_bytes=1"], [])
        assert said == "store.rollout_bytes = 1, it was 2000000000: it counts at once"
        await until(lambda: step(coordinator) >= 20, 600)
        assert stored_bytes(database) < size / 2
        assert 0 < database.value(STORED) < before / 2, "those of versions that are leased stay"
    async with swarm.coordinating() as coordinator, working(swarm.node("alice")):
        await until(lambda: step(coordinator) >= 26, 600)
        database = coordinator.group_service.database
        assert database.value(STORED) < before / 2
        check_sums(database)
        assert coordinator.group_service.ledger.verify().entries > 50
