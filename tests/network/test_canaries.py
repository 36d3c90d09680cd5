"""Leases whose answer is known, in a whole network: an honest newcomer's first group agrees, and is paid later."""

from pathlib import Path

import pytest

from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.swarm import accepted, make_swarm, whole, working


@pytest.mark.slow
@on_fake_clock
async def test_a_newcomers_first_group_agrees_with_an_answer_and_is_paid_after_ten_further_ones(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, steps=400, leases={"canaries": 0.005})
    alice, bob = swarm.node("alice"), swarm.node("bob")
    async with swarm.coordinating() as coordinator, working(alice):
        await until(lambda: accepted(alice) >= 40, 600)
        given = coordinator.view_builder.build().canaries.given
        async with working(bob):
            await until(lambda: accepted(bob) >= 30, 900)
        state = coordinator.view_builder.build()
        assert state.canaries.given > given
        assert state.canaries.agreed > 0
        assert state.canaries.refused == state.canaries.scored == 0
        balances = coordinator.group_service.ledger.balances()
        assert {account: amount for account, amount in balances.items() if account.endswith(":unvested")}
        whole(swarm)
