"""The line at the uplink, for what goes by no chunk stream."""

import anyio

from p2p.limits.bandwidth import FairQueue, bandwidth
from p2p.swarm.upload import UplinkSlot
from tests.support.clock import run_fake


def test_turns_wait_for_the_limit_and_one_that_is_given_up_lets_the_next_go() -> None:
    async def main() -> None:
        turns, went = FairQueue(bandwidth(100.0)), list[tuple[str, float]]()
        began = anyio.current_time()

        async def come(who: str, scope: anyio.CancelScope) -> None:
            with scope:
                await UplinkSlot(turns).acquire(who, 100)
                went.append((who, round(anyio.current_time() - began, 2)))

        scopes = {who: anyio.CancelScope() for who in "abcd"}
        async with anyio.create_task_group() as tasks:
            for who, scope in scopes.items():
                tasks.start_soon(come, who, scope)
                await anyio.sleep(0.01)
            await anyio.sleep(0.3)
            scopes["b"].cancel()
        assert went == [("a", 0.0), ("c", 0.75), ("d", 1.75)]

    run_fake(main)


def test_without_a_limit_nobody_waits() -> None:
    async def main() -> None:
        began, turns = anyio.current_time(), FairQueue(bandwidth(None))
        for _ in range(10):
            await UplinkSlot(turns).acquire("a", 1 << 30)
        assert anyio.current_time() == began

    run_fake(main)
