"""A run at temperature 0.8 in one process: nodes that sample at it carry the run, one that samples at 1 is refused."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from echo2.coordinator.learner.messages import Open, Opened
from echo2.node import connectivity
from echo2.protocol import numbers
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import InProcessEngine, until
from tests.support.swarm import BigramLearner, finished, make_swarm, whole, working

T = TypeVar("T")


class Opening(BigramLearner):
    """A learner that records how it was opened."""

    order: Open | None = None

    async def open(self, order: Open) -> Opened:
        self.order = order
        return await super().open(order)


class PlainEngine(InProcessEngine):
    """An engine that samples at temperature 1, whatever the run says."""

    async def call(self, method: str, body: Any, *more: Any, **bounds: Any) -> Any:
        if method == "generate":
            job = msgspec.structs.replace(body.job, temperature=1000)
            body = msgspec.structs.replace(body, job=job)
        return await super().call(method, body, *more, **bounds)


@on_fake_clock
async def test_a_run_learns_from_the_groups_of_its_temperature(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, steps=6, temperature=0.8)
    swarm.learner = learner = Opening(tmp_path / "opening")
    spec = swarm.run.runspec
    assert (spec.sampling, spec.temperature, spec.protocols) == ("gumbel-splitmix64/2", 800, (3, 3))
    async with swarm.coordinating() as coordinator:
        async with working(swarm.node("alice"), swarm.node("bob")):
            await until(lambda: finished(coordinator), 600)
            whole(swarm)
        state = coordinator.view_builder.build()
    assert (state.step, state.refused, state.undecided) == (6, {}, 0)
    assert sum(state.staleness) == 6 * 2, "each step learned from accepted groups"
    assert learner.order.hyper.temperature == 800


@on_fake_clock
async def test_a_node_that_samples_at_another_temperature_is_refused_from_its_first_group_on(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, steps=6, temperature=0.8)
    async with swarm.coordinating() as coordinator:
        async with working(swarm.node("plain", engine=PlainEngine())):
            await until(lambda: sum(coordinator.view_builder.build().refused.values()) >= 3, 600)
        state = coordinator.view_builder.build()
    assert set(state.refused) <= {"seeded-choice", "drift", "not-generated"}
    assert (state.accepted, state.step) == (0, 0)


@on_fake_clock
async def test_a_node_of_the_second_number_gets_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its build would not read the temperature, and sample at 1."""
    monkeypatch.setattr(connectivity, "SPOKEN_NUMBERS", (numbers.OLDEST_NUMBER, numbers.SEVERAL_ENDS))
    swarm = make_swarm(tmp_path, steps=2, temperature=0.8)
    async with swarm.coordinating() as coordinator:
        node = swarm.node("older")
        with pytest.RaisesGroup(
            pytest.RaisesExc(Exception, match="update echo2 to protocol 3"),
            flatten_subgroups=True,
            allow_unwrapped=True,
        ):
            async with working(node):
                await until(lambda: finished(coordinator), 60)
        assert coordinator.group_service.database.value("SELECT count(*) FROM leases") == 0
