"""Opened and served episodes under attack: environments that open nothing, or too much, and keys that leave episodes
open."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.database.database import Database
from echo2.coordinator.environments.played_group import MOST_GIVEN
from echo2.coordinator.environments.task_host import TurnAnswer
from echo2.coordinator.submissions.step_loop import ENDED_LEASE_POLL_SECONDS, StepLoop
from echo2.p2p.wire_types import decode
from echo2.protocol.authority import TaskReference
from echo2.protocol.leases import Lease, Submission
from echo2.protocol.requests import Refusal
from echo2.protocol.steps import StepRequest, StepResponse
from echo2.protocol.task_kinds import OPENED_KIND
from echo2.tasks.task import Split, Tokenizer
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.group_world import EOS, SPEC, TEXT, World, name
from tests.support.hosted_task import Dealt, DealtEpisode, ServedTask
from tests.support.swarm import Swarm, finished, make_swarm, whole, working

TASK = TaskReference(name="guess", version=1, kind=OPENED_KIND)
KEYS = 40


def riddles(folder: Path, host: ServedTask) -> Swarm:
    return make_swarm(folder, host=host, task="riddles", ends=3.0, kind="served", limit=24, steps=30)


def rows(database: Database, table: str) -> int:
    return int(database.value(f"SELECT count(*) FROM {table}"))


def turns(database: Database) -> list[list[list[int]]]:
    """Return the turns of each rollout of each group that was received."""
    payloads = database.all("SELECT payload FROM submissions")
    return [[one.turns for one in decode(payload, Submission).rollouts] for (payload,) in payloads]


@on_fake_clock
@pytest.mark.slow
async def test_an_environment_that_opens_no_episode_pauses_the_run_and_harms_no_node(tmp_path: Path) -> None:
    host = ServedTask(TEXT, Dealt(2), kind=OPENED_KIND, failing=1)
    swarm = riddles(tmp_path, host)
    async with swarm.coordinating() as coordinator:
        async with working(swarm.node("alice"), swarm.node("bob")):
            await until(lambda: coordinator.learning.training.watch.pause, 3600)
        pause = coordinator.learning.training.watch.pause
        assert "division by zero" in pause.why
        state = coordinator.view_builder.build()
        database = coordinator.group_service.database
        assert (state.step, state.refused, state.expired, rows(database, "strikes")) == (0, {}, 0, 0)
        assert all(one == [0] for group in turns(database) for one in group)
        assert rows(database, "verdicts WHERE weight > 0") == 0


class Crowded(Dealt):
    """Every 50th episode is opened with more tokens than a rollout may be given."""

    def episode(self, split: Split, index: int, text: Tokenizer) -> DealtEpisode:
        number = next(self._dealt)
        opening = [3] * (MOST_GIVEN + 1) if number % 50 == 40 else [10 + number % 10, 3]
        return DealtEpisode(list(self.BEGINNING), self.turns, opening)


@on_fake_clock
@pytest.mark.slow
async def test_an_opening_for_which_the_model_has_no_room_fails_its_sample_and_harms_no_node(tmp_path: Path) -> None:
    swarm = riddles(tmp_path, ServedTask(TEXT, Crowded(2), kind=OPENED_KIND))
    async with swarm.coordinating() as coordinator:
        async with working(swarm.node("alice")):
            await until(lambda: finished(coordinator), 900)
            whole(swarm)
        state = coordinator.view_builder.build()
        database = coordinator.group_service.database
        assert (state.refused, state.expired, rows(database, "strikes")) == ({}, 0, 0)
        assert set(state.trouble.episodes) == {"its answer leaves no room in the model's context"}
        sizes = [{len(one) for one in group} for group in turns(database)]
        assert any(one > {1} for one in sizes), "some sample of the same group was played to its end"


class DealtBehindAny(Dealt):
    """Its episodes are opened behind any prompt, as the prompts of this world are of another task."""

    def episode(self, split: Split, index: int, text: Tokenizer) -> DealtEpisode:
        return OpenedBehindAny(list(self.BEGINNING), self.turns, [10 + next(self._dealt) % 10, 3])


class OpenedBehindAny(DealtEpisode):
    def open(self, prompt: Sequence[int]) -> Sequence[int]:
        return self._opening


@on_fake_clock
async def test_free_keys_that_open_episodes_and_vanish_leave_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, spec=msgspec.structs.replace(SPEC, tasks=[TASK]), batch_groups=KEYS)
    steps, host = world.group_service.steps, ServedTask(TEXT, DealtBehindAny(2), name="guess", kind=OPENED_KIND)
    loop = StepLoop(host, steps, world.group_service.episodes.of("guess"), workers=1, clock=lambda: world.now / 1000)
    running = asyncio.create_task(loop.run())

    async def sent(key: bytes, lease: Lease, **changes: object) -> StepResponse | Refusal:
        request = msgspec.structs.replace(StepRequest(lease=lease.id, sample=0, turn_number=0, tokens=[]), **changes)
        answer = steps.step(key, request, world.now)
        if (event := steps.answer_event(lease.id, request.sample)) is not None:
            await event.wait()
            answer = steps.step(key, request, world.now)
        return answer

    def code(answer: StepResponse | Refusal) -> str:
        return answer.code if isinstance(answer, Refusal) else "answered"

    held = list[tuple[bytes, Lease]]()
    for number in range(KEYS):
        key = name("free key", number, 32)
        lease = world.lease(key)
        assert code(await sent(key, lease)) == "answered"
        assert code(await sent(key, lease, sample=1)) == "one-episode"
        assert code(await sent(key, lease, tokens=[5, EOS])) == "other-bytes"
        assert code(await sent(key, lease, turn_number=4, tokens=[5, EOS])) == "step"
        assert code(await sent(name("free key", number - 1, 32), lease)) == "not-owner"
        held.append((key, lease))
    assert host.open == KEYS
    world.now = max(lease.expires for _, lease in held) + 60_000
    while world.group_service.tick(world.now):
        pass
    await asyncio.sleep(2 * ENDED_LEASE_POLL_SECONDS)
    assert (host.open, loop._open, steps._asked, steps._spent, len(steps._queues["guess"].queue)) == (0, {}, {}, {}, 0)
    assert steps.table.open_episodes(held[0][0]) == set()
    assert rows(world.group_service.database, "steps") == 0
    assert [code(await sent(key, lease, turn_number=2, tokens=[5, EOS])) for key, lease in held] == ["late"] * KEYS
    assert rows(world.group_service.database, "strikes") == 0
    running.cancel()
    world.close()


async def test_an_opening_that_comes_behind_the_end_of_its_lease_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, spec=msgspec.structs.replace(SPEC, tasks=[TASK]))
    steps, key = world.group_service.steps, name("free key", 0, 32)
    lease = world.lease(key)
    request = StepRequest(lease=lease.id, sample=0, turn_number=0, tokens=[])
    assert isinstance(steps.step(key, request, world.now), Refusal)
    asked = await steps.take("guess", lambda: world.now / 1000)
    world.now += 86_400_000
    while world.group_service.tick(world.now):
        pass
    steps.on_answer(asked, TurnAnswer([7, 8]), 1.0, world.now)
    assert (steps.answer_event(lease.id, 0), steps._spent) == (None, {})
    assert rows(world.group_service.database, "steps") == 0
    world.close()
