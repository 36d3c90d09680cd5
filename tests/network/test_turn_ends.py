"""A run whose model names several end tokens: nodes end turns at each, and nodes of an older program are refused."""

from pathlib import Path

import pytest

from echo2.coordinator.daemon import Coordinator
from echo2.node import connectivity
from echo2.p2p.wire_types import decode
from echo2.protocol import numbers
from echo2.protocol.leases import Submission
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.swarm import finished, make_swarm, whole, working

OTHERS = (20, 21, 40)


def last_tokens(coordinator: Coordinator) -> set[int]:
    rows = coordinator.group_service.database.all("SELECT payload FROM submissions WHERE payload IS NOT NULL")
    return {rollout.tokens[-1] for (payload,) in rows for rollout in decode(payload, Submission).rollouts}


@on_fake_clock
@pytest.mark.slow
async def test_turns_end_at_each_of_them_and_the_answers_that_were_cut_are_counted(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, steps=12, other_ends=OTHERS)
    spec = swarm.run.runspec
    assert (spec.ends, spec.protocols) == ((1, *OTHERS), (2, 2))
    async with swarm.coordinating() as coordinator:
        node = swarm.node("alice")
        async with working(node):
            await until(lambda: finished(coordinator), 600)
            whole(swarm)
        state, ended = coordinator.view_builder.build(), last_tokens(coordinator)
    assert (state.refused, state.undecided) == ({}, 0)
    assert ended & set(OTHERS)
    assert all(step.cut_answers is not None and 0 < step.cut_answers < 1 for step in state.steps[-3:])


@on_fake_clock
async def test_a_node_of_the_first_number_gets_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connectivity, "SPOKEN_NUMBERS", (numbers.OLDEST_NUMBER, numbers.OLDEST_NUMBER))
    swarm = make_swarm(tmp_path, steps=2, other_ends=OTHERS)
    async with swarm.coordinating() as coordinator:
        node = swarm.node("older")
        with pytest.RaisesGroup(
            pytest.RaisesExc(Exception, match="update echo2 to protocol 2"),
            flatten_subgroups=True,
            allow_unwrapped=True,
        ):
            async with working(node):
                await until(lambda: finished(coordinator), 60)
        assert coordinator.group_service.database.value("SELECT count(*) FROM leases") == 0
