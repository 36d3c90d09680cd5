"""Passes under the version before in a running coordinator: the shipped daemons, an in-memory network, a fake clock,
and a scorer that steps back and forth."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from echo2.coordinator.database.database import Database
from echo2.coordinator.submissions import group_service
from echo2.coordinator.verdicts.lease_outcomes import PairedOutcome
from echo2.coordinator.verification.token_evidence import BINS, ONE, STATISTICS
from echo2.coordinator.verification.verdict_replay import replay_verdicts
from echo2.engines.engine import Loaded
from echo2.weights.snapshot import Snapshot
from tests.support.bigram import BigramEngine
from tests.support.calibrated_swarm import CLASS, node_of_the_class, write_calibration
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import InProcessEngine, until
from tests.support.swarm import Swarm, accepted, make_swarm, whole, working

NO_BOUNDS = {name: [ONE] * BINS for name in STATISTICS}
"""Tables by which nothing is evidence."""


class OneBehind(BigramEngine):
    """Takes each version, and generates with the one before."""

    _earlier: NDArray[np.float32] | None = None

    def _hold(self, snapshot: Snapshot) -> Loaded:
        before, loaded = self._table, super()._hold(snapshot)
        self._earlier = self._table if before is None else before
        return loaded

    def _logits(self, last: int) -> NDArray[np.float32]:
        return self._earlier[last]


class StaleProcess(InProcessEngine):
    async def start(self) -> None:
        await super().start()
        self.engine = OneBehind()


def passed_twice(swarm: Swarm) -> list[PairedOutcome]:
    entries = swarm.coordinator.group_service.ledger.entries()
    ends = [msgspec.msgpack.decode(entry.facts) for entry in entries if entry.kind == "lease.accepted"]
    return [msgspec.convert(end, PairedOutcome) for end in ends if "newer" in end]


@on_fake_clock
async def test_an_honest_node_is_passed_under_the_version_before_and_goes_on_being_credited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_service, "ONE_IN", 1)
    swarm = make_swarm(tmp_path)
    write_calibration(swarm, 0, 1)
    async with swarm.coordinating() as coordinator:
        node = node_of_the_class(swarm)
        async with working(node):
            await until(lambda: len({end.version for end in passed_twice(swarm)}) >= 4, 600)
            assert accepted(node) >= 4
            whole(swarm)
        ends = passed_twice(swarm)
        assert 0 not in {end.version for end in ends}  # it has no version before
        assert {end.older for end in ends} == {0}  # this engine's arithmetic is the scorer's
        assert sum(end.newer for end in ends) > 0
        service = coordinator.group_service
        assert service.database.value("SELECT count(*) FROM verdicts WHERE verdict = 'refused'") == 0
        await service.durable()
        with Database.read(swarm.run.folder.database) as database:
            replayed = replay_verdicts(database, service.classes.tables)
        assert replayed.paired >= len(ends)
        assert replayed.faults == []


@pytest.mark.slow
@on_fake_clock
async def test_a_node_that_generates_with_the_version_before_is_refused_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_service, "ONE_IN", 1)
    swarm = make_swarm(tmp_path, group_size=16)
    write_calibration(swarm, 0, 1, tables=NO_BOUNDS)
    async with swarm.coordinating() as coordinator:
        database = coordinator.group_service.database
        async with working(swarm.node("mallory", engine=StaleProcess(gpu=CLASS))):
            refused = "SELECT count(*) FROM verdicts WHERE code = 'version-lie'"
            await until(lambda: database.value(refused), 3_000)
        ends = passed_twice(swarm)
        assert sum(end.older for end in ends) > 2 * sum(end.newer for end in ends)
        assert {code for (code,) in database.all("SELECT DISTINCT code FROM verdicts")} == {"ok", "version-lie"}
        await coordinator.group_service.durable()
        with Database.read(swarm.run.folder.database) as file:
            assert replay_verdicts(file, coordinator.group_service.classes.tables).faults == []
