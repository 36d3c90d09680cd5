"""The public state of a run, built from run.sqlite and the live objects of a coordinator."""

from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.metrics.market_views import NodePay
from echo2.protocol.requests import Hello
from tests.support.clock import run_fake
from tests.support.fake_coordinator import until
from tests.support.swarm import make_swarm, working

HELLO = Hello(protocols=(1, 1), software="echo2 1", name="a", engine="e", device="d", tasks=[], record=b"")
KEY = bytes(range(32))


async def test_the_state_shows_the_run_and_its_registered_nodes(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating() as coordinator:
        builder = coordinator.view_builder
        coordinator.group_service.registry.register(KEY, HELLO, None, 1_000_000_000_000)
        await until(lambda: coordinator.history.evaluations)  # nothing else changes the state
        state = await builder.current_state()
        assert state.run == builder.run.id.hex()
        assert (state.nodes_known, [(node.name, node.rank, node.accepted) for node in state.nodes]) == (
            1,
            [("a", "new", 0)],
        )
        assert (state.received, state.accepted, state.undecided) == (0, 0, 0)
        assert msgspec.structs.replace(builder.build(), now=state.now) == state
        assert builder.nodes(None, 10).rows == state.nodes
        assert (state.capacity.gamma, state.capacity.newcomers, state.capacity.reserves) == (1.1, 0.1, [])


async def test_connections_from_public_addresses_are_counted(tmp_path: Path) -> None:
    async with make_swarm(tmp_path).coordinating() as coordinator:
        for address in ("10.0.0.7", "8.8.8.8", "2606:4700::1"):
            coordinator.parties.accept(address)
        await until(lambda: coordinator.view_builder.links.outside)
        assert (await coordinator.view_builder.current_state()).links.outside == 2


async def test_a_run_that_pays_money_shows_its_market_and_one_in_points_shows_none(tmp_path: Path) -> None:
    for name, market in {"points": {}, "money": {"enabled": True, "budget": "2.50", "reserve": "0.01"}}.items():
        swarm = make_swarm(tmp_path / name, market=market)
        async with swarm.coordinating() as coordinator:
            builder = coordinator.view_builder
            coordinator.group_service.registry.register(KEY, HELLO, None, 1_000_000_000_000)
            if coordinator.market is not None:
                coordinator.market.tick(coordinator.now())
            state = await builder.current_state()
            assert builder.nodes(None, 10).rows == state.nodes
            (node,) = state.nodes
            if name == "points":
                assert (state.market, node.pay) == (None, None)
            else:
                assert node.pay == NodePay()
                assert state.market is not None
                assert (state.market.running, state.market.spent) == (None, 0)
                assert state.market.entry == state.ledger.entries > 0
                assert state.market.closes is not None


@pytest.mark.slow
def test_a_run_with_steps_says_what_reserves_of_supply_give(tmp_path: Path) -> None:
    async def main() -> None:
        swarm = make_swarm(tmp_path)
        async with swarm.coordinating() as coordinator, working(swarm.node("alice"), swarm.node("bob")):
            await until(lambda: coordinator.view_builder.build().capacity.need is not None, 600)
            capacity = coordinator.view_builder.build().capacity
            assert [row.reserve for row in capacity.reserves] == [1.1, 1.5, 2.0]
            assert capacity.need is not None
            assert capacity.reserves[0].need == pytest.approx(capacity.need)
            assert capacity.reserves[1].need == pytest.approx(1.5 / 1.1 * capacity.need)
            assert capacity.reserves[0].age is None
            assert all(0 < row.age <= 4 for row in capacity.reserves[1:])  # type: ignore[operator]

    run_fake(main)
