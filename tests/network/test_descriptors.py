"""The number of open files of a run: it does not grow with the number of versions."""

import os
from pathlib import Path

import pytest

from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.swarm import make_swarm, working

VERSIONS = 40


@pytest.mark.slow
@on_fake_clock
async def test_coordinator_and_node_hold_no_file_per_version(tmp_path: Path) -> None:
    """At commit 439044d coordinator and node keep one open file per payload."""
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating() as coordinator, working(swarm.node("node")):
        await until(lambda: coordinator.publisher.latest is not None, 600)
        before = len(os.listdir("/dev/fd"))
        await until(lambda: coordinator.publisher.latest.version >= VERSIONS, 6000)
        assert len(os.listdir("/dev/fd")) - before <= 100
