"""Two daemons with one key, against the product's coordinator: one works, both owners are told, nothing is lost."""

import shutil
from pathlib import Path

import pytest

from echo2.coordinator.nodes.key_fence import HOLDER_LIVE_MS
from echo2.p2p.identity import generate_key
from tests.support.clock import run_fake
from tests.support.fake_coordinator import until
from tests.support.swarm import accepted, make_swarm, working


@pytest.mark.slow
def test_a_copied_home_waits_while_the_first_works_and_takes_over_when_it_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        swarm, key = make_swarm(tmp_path, steps=4000), generate_key()
        async with swarm.coordinating():
            async with working(first := swarm.node("first", key=key)):
                await until(lambda: accepted(first) >= 1)
            shutil.copytree(tmp_path / "first", tmp_path / "copy")
            async with working(first := swarm.node("first", key=key)):
                await until(lambda: accepted(first) >= 3)
                async with working(copy := swarm.node("copy", key=key, at="elsewhere")):
                    await until(lambda: copy.daemon.rollouts.refusals)
                    await until(lambda: first.daemon.context.instance.rival)
                    before = accepted(first)
                    await until(lambda: accepted(first) >= before + 3)
                    told = (await copy.daemon.commands.why({}))["blocked"]
                    assert told.startswith("no lease: Another daemon with this node's key is connected from elsewhere")
                    assert "keys rotate" in told
                    assert copy.daemon.rollouts.done == 0
                    status = await first.daemon.commands.status({})
                    assert "asked for work from elsewhere, and was refused" in status["other_daemon"]
            async with working(copy := swarm.node("copy", key=key, at="elsewhere")):
                await until(lambda: copy.daemon.rollouts.done >= 2, HOLDER_LIVE_MS / 1000 + 200)
                assert (await copy.daemon.commands.status({}))["other_daemon"] == ""

    run_fake(main)


def test_a_daemon_that_crashed_works_again_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        swarm, key = make_swarm(tmp_path, steps=4000), generate_key()
        async with swarm.coordinating():
            async with working(first := swarm.node("home", key=key)):
                await until(lambda: accepted(first) >= 2)
            for start in range(3):
                async with working(again := swarm.node("home", key=key)):
                    seen = accepted(again) + 2
                    await until(lambda again=again, seen=seen: accepted(again) >= seen, 30.0)
                    assert "fenced" not in {one.code for one in again.daemon.rollouts.refusals}, start

    run_fake(main)
