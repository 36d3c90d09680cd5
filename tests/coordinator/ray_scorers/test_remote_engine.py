"""A scorer on another host as the coordinator sees it, by a driver without Ray."""

from pathlib import Path

import pytest

from echo2.coordinator.ray_scorers import remote_engine
from echo2.coordinator.ray_scorers.remote_engine import RayCluster, RemoteEngine
from echo2.engines.process.supervisor import Restarts
from echo2.runtime.backoff import Backoff
from echo2.runtime.child import ChildDied
from tests.support import crossing_driver
from tests.support.paths import ROOT


async def test_the_loss_of_one_scorer_is_not_that_of_the_driver_and_so_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost engine's other call is withdrawn while its answer is on its way."""
    monkeypatch.setattr(remote_engine, "DRIVER", crossing_driver.__name__)
    cluster = RayCluster("127.0.0.1:1", tmp_path, {"PYTHONPATH": str(ROOT)}, Restarts(Backoff(0.01, 0.01)))
    engines = [RemoteEngine(cluster, f"scorer {number}", "ab", number, "cpu") for number in (1, 2)]
    try:
        for engine in engines:
            await engine.start()
        lost, other = engines
        await other.call("duty", None, type(None))
        with pytest.raises(ChildDied, match="Ray: its host is gone"):
            await lost.call("score", None, type(None))
        assert await lost.exited == 1
        await other.call("duty", None, type(None))
        assert (cluster.deaths, other.has_ended) == (0, False)
    finally:
        for engine in engines:
            await engine.stop()
        await cluster.stop()
