"""A run whose task has several turns and whose code no volunteer has: the operator's environment answers each turn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.environments.played_group import MOST_GIVEN
from echo2.p2p.identity import generate_key
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease, Rollout, Submission
from echo2.protocol.task_kinds import OPENED_KIND
from echo2.tasks.task import Split, Tokenizer
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import InProcessEngine, until
from tests.support.group_world import TEXT
from tests.support.hosted_task import Dealt, EchoEpisode, Echoes, ServedTask
from tests.support.swarm import Swarm, finished, make_swarm, whole, working


def riddles(folder: Path, host: ServedTask, **run: Any) -> Swarm:
    return make_swarm(folder, host=host, task="riddles", ends=3.0, **{"kind": "served", "limit": 24} | run)


def rows(coordinator: Coordinator, table: str) -> int:
    return int(coordinator.group_service.database.value(f"SELECT count(*) FROM {table}"))


def turns(coordinator: Coordinator) -> list[int]:
    """Return the number of turns of each rollout received."""
    payloads = coordinator.group_service.database.all("SELECT payload FROM submissions")
    return [len(rollout.turns) for (payload,) in payloads for rollout in decode(payload, Submission).rollouts]


@on_fake_clock
async def test_nodes_without_the_tasks_code_play_its_episodes_to_the_runs_last_step(tmp_path: Path) -> None:
    host = ServedTask(TEXT, Echoes(3))
    swarm = riddles(tmp_path, host, steps=12)
    assert [(task.name, task.version, task.kind) for task in swarm.run.runspec.tasks] == [("riddles", 3, "served")]
    async with swarm.coordinating() as coordinator:
        async with working(*(swarm.node(name) for name in ("alice", "bob", "carol"))):
            await until(lambda: finished(coordinator), 900)
            whole(swarm)
        state = coordinator.view_builder.build()
        assert (state.step, state.refused, state.undecided) == (12, {}, 0)
        assert state.accepted == state.received > 0
        assert host.begun >= 2 * state.accepted
        assert max(turns(coordinator)) == 5
        assert rows(coordinator, "steps") == host.open == 0


def groups(coordinator: Coordinator) -> list[tuple[Lease, list[Rollout]]]:
    """Return each lease whose group was received, with its rollouts."""
    query = "SELECT l.document, s.payload FROM submissions s JOIN leases l ON l.id = s.lease"
    stored = coordinator.group_service.database.all(query)
    return [(decode(document, Lease), decode(payload, Submission).rollouts) for document, payload in stored]


@on_fake_clock
@pytest.mark.slow
async def test_the_prompts_of_a_groups_samples_may_differ(tmp_path: Path) -> None:
    swarm = riddles(tmp_path, ServedTask(TEXT, Dealt(2), kind=OPENED_KIND), steps=12)
    async with swarm.coordinating() as coordinator:
        async with working(*(swarm.node(name) for name in ("alice", "bob"))):
            await until(lambda: finished(coordinator), 900)
            whole(swarm)
        state = coordinator.view_builder.build()
        assert (state.step, state.refused, state.undecided) == (12, {}, 0)
        for lease, rollouts in groups(coordinator):
            assert lease.prompt == list(Dealt.BEGINNING)
            assert all(one.turns[:2] == [0, 2] and one.turns[2] > 0 for one in rollouts)
            assert len({tuple(one.tokens[:2]) for one in rollouts}) == len(rollouts)


@on_fake_clock
@pytest.mark.slow
async def test_an_opened_episode_goes_on_after_its_coordinator_or_its_node_has_ended(tmp_path: Path) -> None:
    host = ServedTask(TEXT, Dealt(2), kind=OPENED_KIND)
    host.stops_at = 1
    swarm = riddles(tmp_path, host, steps=4)
    node = swarm.node("alice")
    async with swarm.coordinating(), working(node):
        host.going.clear()
        await until(lambda: host.turns > 0, 300)
    async with swarm.coordinating() as coordinator:
        host.going.set()
        async with working(swarm.node("alice")):
            await until(lambda: finished(coordinator), 900)
        assert coordinator.view_builder.build().refused == {}
        assert all(one.turns[:2] == [0, 2] for _, rollouts in groups(coordinator) for one in rollouts)


@on_fake_clock
@pytest.mark.slow
async def test_a_rollout_that_the_environment_fails_to_open_is_paid_and_never_learned_from(tmp_path: Path) -> None:
    host = ServedTask(TEXT, Dealt(2), kind=OPENED_KIND, failing=50)
    swarm = riddles(tmp_path, host, steps=30)
    async with swarm.coordinating() as coordinator:
        async with working(swarm.node("alice")):
            await until(lambda: finished(coordinator), 900)
        assert coordinator.view_builder.build().refused == {}
        turns_of = [one.turns for _, rollouts in groups(coordinator) for one in rollouts]
        assert [0] in turns_of
        query = "SELECT receipt IS NOT NULL, trainable FROM verdicts WHERE code = 'task-score'"
        assert set(coordinator.group_service.database.all(query)) == {(1, 0)}


@on_fake_clock
@pytest.mark.slow
async def test_a_coordinator_that_ends_in_mid_episode_answers_what_it_had_written_and_goes_on(tmp_path: Path) -> None:
    host = ServedTask(TEXT, Echoes(4))
    host.stops_at = 1
    swarm = riddles(tmp_path, host, steps=6)
    node = swarm.node("alice")
    async with working(node):
        for _ in range(3):
            async with swarm.coordinating() as coordinator:
                host.going.set()
                answered = host.turns
                await until(lambda answered=answered: host.turns > answered + 2, 300)
                host.going.clear()  # the next turn is written and has no answer when the coordinator ends
                await until(lambda: rows(coordinator, "steps WHERE state = 'asked' AND turn_number > 0"), 300)
        host.going.set()
        async with swarm.coordinating() as coordinator:
            await until(lambda: finished(coordinator), 900)
            whole(swarm)
            assert coordinator.view_builder.build().refused == {}
    assert host.past > 0


@on_fake_clock
@pytest.mark.slow
async def test_a_node_that_ends_in_mid_episode_goes_on_from_its_stored_turns(tmp_path: Path) -> None:
    host = ServedTask(TEXT, Echoes(4))
    swarm = riddles(tmp_path, host, steps=4)
    async with swarm.coordinating() as coordinator:
        key = generate_key()
        first = swarm.node("alice", key=key)
        host.going.clear()
        async with working(first):
            await until(lambda: rows(coordinator, "steps WHERE state = 'asked'"), 300)
        swarm.nodes.remove(first)
        host.going.set()
        async with working(swarm.node("alice", key=key)):
            await until(lambda: finished(coordinator), 900)
            whole(swarm)
        state = coordinator.view_builder.build()
        assert (state.refused, rows(coordinator, "leases WHERE state = 'expired'")) == ({}, 0)


@on_fake_clock
async def test_an_engine_that_dies_in_mid_episode_samples_no_written_turn_again(tmp_path: Path) -> None:
    host = ServedTask(TEXT, Echoes(4))
    swarm = riddles(tmp_path, host, steps=4)
    async with swarm.coordinating() as coordinator:
        engine = InProcessEngine()
        async with working(swarm.node("alice", engine=engine)):
            for _ in range(3):
                host.going.clear()
                await until(lambda: rows(coordinator, "steps WHERE state = 'asked'"), 300)
                engine.die()
                host.going.set()
                answered = host.turns
                await until(lambda answered=answered: host.turns > answered + 2, 300)
            await until(lambda: finished(coordinator), 900)
            whole(swarm)
        assert rows(coordinator, "evidence") == 0
        assert coordinator.view_builder.build().refused == {}


@on_fake_clock
@pytest.mark.slow
async def test_an_episode_that_fails_is_paid_and_never_learned_from(tmp_path: Path) -> None:
    host = ServedTask(TEXT, Echoes(3), failing=50)
    swarm = riddles(tmp_path, host, steps=30)
    async with swarm.coordinating() as coordinator:
        async with working(swarm.node("alice")):
            await until(lambda: finished(coordinator), 900)
            whole(swarm)
        state = coordinator.view_builder.build()
        unscored = rows(coordinator, "verdicts WHERE code = 'task-score'")
        assert (state.refused, state.accepted) == ({}, state.received)
        assert host.begun // 50 >= unscored > 0
        assert (
            coordinator.group_service.episodes.of("riddles").reason
            == "reply raised ZeroDivisionError: division by zero"
        )


class Shouting(Echoes):
    """Its environment answers every 20th episode with more tokens than a rollout may be given."""

    def episode(self, split: Split, index: int, text: Tokenizer) -> EchoEpisode:
        return ShoutingEpisode(super().episode(split, index, text).prompt, self.turns, loud=index % 20 == 0)


class ShoutingEpisode(EchoEpisode):
    def __init__(self, prompt: list[int], turns: int, *, loud: bool) -> None:
        super().__init__(prompt, turns)
        self._loud = loud

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        return [3] * (MOST_GIVEN + 1) if self._loud else super().reply(sampled)


@on_fake_clock
@pytest.mark.slow
async def test_an_answer_for_which_the_model_has_no_room_fails_its_episode_and_harms_no_node(tmp_path: Path) -> None:
    swarm = riddles(tmp_path, ServedTask(TEXT, Shouting(2)), steps=30)
    async with swarm.coordinating() as coordinator:
        async with working(swarm.node("alice")):
            await until(lambda: finished(coordinator), 900)
            whole(swarm)
        state = coordinator.view_builder.build()
        assert (state.refused, state.expired, rows(coordinator, "strikes")) == ({}, 0, 0)
        assert state.unscored > 0
        (reason,) = state.trouble.episodes
        assert reason == "its answer leaves no room in the model's context"


@on_fake_clock
@pytest.mark.slow
async def test_the_time_of_a_slow_environment_is_not_the_nodes(tmp_path: Path) -> None:
    host = ServedTask(TEXT, Echoes(3), seconds=25.0)  # a lease lasts 60 s, and a group has 6 turns
    swarm = riddles(tmp_path, host, environment={"seconds": 60.0}, steps=2, heldout=1)
    async with swarm.coordinating() as coordinator:
        async with working(swarm.node("alice")):
            await until(lambda: finished(coordinator), 5_000)
            whole(swarm)
        state = coordinator.view_builder.build()
        assert (state.refused, rows(coordinator, "leases WHERE state = 'expired'")) == ({}, 0)
