"""Caps in force in a node that runs: the rates of its network, and the bytes of a month."""

import json

from echo2.node.limits.caps_watch import MONTH_FILE, STORE_SECONDS, WATCH_SECONDS
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.small_run import SmallRun


@on_fake_clock
async def test_a_word_of_the_owner_changes_the_caps_at_once(small_run: SmallRun) -> None:
    limited = list[tuple[float | None, float | None]]()
    async with small_run.working(uplink=8.0, slow_uplink=1.0) as node:
        exchange = node.daemon.network.exchange
        limit = exchange.limit

        async def note(uplink: float | None, downlink: float | None) -> None:
            limited.append((uplink, downlink))
            await limit(uplink, downlink)

        exchange.limit = note  # type: ignore[method-assign]
        assert (await node.daemon.commands.status({}))["slow"] is False
        assert (await node.daemon.commands.slow({"slow": True}))["caps"]["uplink"] == 1.0
        assert (await node.daemon.commands.status({}))["slow"] is True
        await node.daemon.commands.slow({"slow": None})
        assert limited == [(125_000, None), (1_000_000, None)]


@on_fake_clock
async def test_a_month_whose_download_is_used_up_fetches_no_version_and_says_so(small_run: SmallRun) -> None:
    async with small_run.working(month_down=1e-7) as node:
        await until(lambda: node.daemon.engine.current)
        await until(lambda: node.daemon.run_state.no_fetching, 2 * WATCH_SECONDS)
        await small_run.coordinator.publish(1)
        await until(lambda: node.daemon.follower.heads.newest.version == 1)
        assert node.daemon.engine.current.version == 0
        stored = node.daemon.context.folder / MONTH_FILE
        down = node.daemon.caps_watch.caps.month.down
        await until(lambda: json.loads(stored.read_bytes())["down"] == down >= 100, 2 * STORE_SECONDS)
