"""The supervisor: starts a process at the first call, and again after a crash, later each time."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from echo2.engines.process.supervisor import MOST_DOUBLINGS, Patience, Restarts, SupervisedEngine, Supervisor
from echo2.runtime.backoff import Backoff
from echo2.runtime.child import Child, ChildDied, ChildError
from tests.support.bigram import random_table, write_table
from tests.support.fake_coordinator import InProcessEngine
from tests.support.paths import ROOT

ARGV = [sys.executable, str(ROOT / "tests/support/echo_child.py")]


class Text(msgspec.Struct):
    text: str


def test_pauses_double_up_to_the_longest_and_begin_anew_after_work_or_a_long_life() -> None:
    restarts = Restarts(Backoff(0.25, 1.0), healthy=60.0)
    assert [restarts.pause(0.1) for _ in range(5)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert (restarts.pause(60.1), restarts.failures) == (0.0, 0)
    assert restarts.pause(59.9) == 0.25
    restarts.on_work()
    assert restarts.pause(0.1) == 0.25


def test_pauses_are_spread_as_the_seed_says() -> None:
    def pauses(seed: int) -> list[float]:
        restarts = Restarts(Backoff(1.0, 1e9, jitter=0.5), seed=seed)
        return [restarts.pause(0.0) / 2.0**n for n in range(20)]

    assert pauses(1) == pauses(1) != pauses(2)
    assert all(0.5 <= pause <= 1.0 for pause in pauses(1))
    assert max(pauses(1)) - min(pauses(1)) > 0.25


class World:
    """A supervisor of echo children. `now`: its clock. `told`: of deaths, (return code, pause)."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[tuple[int, float]] = []
        self.started = 0
        self.heard: list[str] = []
        self.supervisor = Supervisor(
            self._child, Restarts(Backoff(0.01, 0.04), healthy=60.0), clock=lambda: self.now,
            on_death=lambda death, pause: self.told.append((death.returncode, pause)),
            on_event=lambda method, body: self.heard.append(method),
        )  # fmt: skip

    def _child(self) -> Child:
        self.started += 1
        return Child(ARGV, name="echo")

    async def say(self, text: str) -> str:
        answer = await self.supervisor.use(lambda child: child.call("echo", Text(text), Text))
        return answer.text

    async def begin(self, count: int) -> list["asyncio.Task[Text]"]:
        """Make so many calls that are never answered; return them once the child has them all."""
        sent = 0

        async def wait(child: Child) -> Text:
            nonlocal sent
            sent += 1
            return await child.call("wait", Text("/there is no such file"), Text)

        calls = [asyncio.create_task(self.supervisor.use(wait)) for _ in range(count)]
        while sent < count:  # noqa: ASYNC110 (each call is sent in the turn of the loop in which it is counted)
            await asyncio.sleep(0)
        return calls

    def kill(self) -> None:
        assert self.supervisor.pid is not None
        os.kill(self.supervisor.pid, signal.SIGKILL)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.supervisor.stop()


async def test_a_process_is_started_when_it_is_first_called_and_once_for_all_callers(world: World) -> None:
    assert world.supervisor.pid is None
    assert await asyncio.gather(*(world.say(word) for word in "abc")) == ["a", "b", "c"]
    assert world.started == 1


@pytest.mark.slow
async def test_a_crash_costs_the_call_under_way_and_the_next_finds_another_process(world: World) -> None:
    await world.say("before")
    for pause in (0.01, 0.02, 0.04, 0.04):
        world.kill()
        with pytest.raises(ChildDied):
            await world.say("during")
        assert world.told[-1] == (-signal.SIGKILL, pause)
        assert await world.say("after") == "after"
    assert (world.started, world.supervisor.deaths) == (5, 4)
    world.now += 61.0
    world.kill()
    with pytest.raises(ChildDied):
        await world.say("during")
    assert world.told[-1] == (-signal.SIGKILL, 0.0)


async def test_many_calls_that_one_crash_ends_count_it_once(world: World) -> None:
    await world.say("before")
    waiting = await world.begin(2)
    world.kill()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in ended] == [ChildDied, ChildDied]
    assert (world.supervisor.deaths, len(world.told)) == (1, 1)


@pytest.mark.parametrize("end", [lambda one: one.stop(), lambda one: one.renew()], ids=["stop", "renew"])
async def test_an_end_that_was_asked_for_is_no_crash(world: World, end: Callable[[Supervisor[Child]], object]) -> None:
    await world.say("before")
    (under_way,) = await world.begin(1)
    await end(world.supervisor)  # type: ignore[misc]
    with pytest.raises(ChildDied):
        await under_way
    assert (world.supervisor.pid, world.supervisor.deaths, world.told) == (None, 0, [])
    assert await world.say("after") == "after"


async def test_notifications_of_every_life_are_heard(world: World) -> None:
    for _ in range(2):
        await world.supervisor.use(lambda child: child.call("tell", Text("one two"), Text))
        await world.supervisor.renew()
    assert world.heard == ["word"] * 4


async def test_an_engine_is_probed_in_every_life_and_what_it_had_loaded_goes_with_it(tmp_path: Path) -> None:
    process, snapshot = InProcessEngine(seconds=0.0), write_table(tmp_path / "table.safetensors", random_table(1))
    engine = SupervisedEngine(lambda: process, Restarts(Backoff(0.0, 0.0)), device="cpu")
    assert (engine.probed, engine.loaded) == (None, None)
    loaded = await engine.load(tmp_path, snapshot.path)
    assert engine.loaded == loaded
    assert engine.probed is not None
    process.engine = None
    with pytest.raises(ChildDied):
        await engine.load(tmp_path, snapshot.path)
    assert engine.loaded is None
    assert await engine.load(tmp_path, snapshot.path) == loaded
    assert process.log == ["start float32", "load", "start float32", "load"]


async def test_an_engine_whose_end_no_call_has_met_has_nothing_loaded(tmp_path: Path) -> None:
    """On c8a5c611 a group that goes to it counts that death as its own."""

    class Ending(InProcessEngine):
        gone = False

        @property
        def has_ended(self) -> bool:
            return self.gone

    process, snapshot = Ending(), write_table(tmp_path / "table.safetensors", random_table(1))
    engine = SupervisedEngine(lambda: process, Restarts(Backoff(0.0, 0.0)))
    assert await engine.load(tmp_path, snapshot.path) == engine.loaded
    process.gone = True
    assert engine.loaded is None


async def test_a_move_that_fails_leaves_nothing_loaded_until_a_load_shows_what_is(tmp_path: Path) -> None:
    process, snapshot = InProcessEngine(), write_table(tmp_path / "table.safetensors", random_table(1))
    engine = SupervisedEngine(lambda: process, Restarts(Backoff(0.0, 0.0)))
    loaded = await engine.load(tmp_path, snapshot.path)
    (tmp_path / "damaged").write_bytes(b"no snapshot")
    with pytest.raises(ChildError, match="BadSnapshot"):
        await engine.load(tmp_path, tmp_path / "damaged")
    assert (engine.loaded, engine.deaths) == (None, 0)
    assert await engine.load(tmp_path, snapshot.path) == loaded == engine.loaded


# --- silence (rule 3)


def test_each_end_for_silence_doubles_the_patience_up_to_a_bound() -> None:
    patience = Patience(600.0)
    limits = []
    for _ in range(MOST_DOUBLINGS + 2):
        limits.append(patience.seconds)
        patience.on_end()
    assert limits == [600.0, 1200.0, 2400.0, 4800.0, 9600.0, 9600.0]
    assert Patience().seconds == float("inf")


@pytest.mark.slow
async def test_a_process_that_owes_an_answer_and_is_silent_is_killed_and_one_that_owes_none_is_not() -> None:
    told = list[str]()
    patience = Patience(0.5)
    supervisor = Supervisor(
        lambda: Child(ARGV, name="echo"), Restarts(Backoff(0.01, 0.04)),
        on_death=lambda death, pause: told.append(str(death)), patience=patience,
    )  # fmt: skip
    try:
        answer = await supervisor.use(lambda child: child.call("echo", Text("a"), Text))
        first = supervisor.pid
        await asyncio.sleep(1.0)
        assert (answer.text, supervisor.pid, told) == ("a", first, []), "it is idle, and may be silent"
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(ChildDied, match=r"no sign for 0\.5 s and was ended as hung"):
            await supervisor.use(lambda child: child.call("echo", Text("b"), Text))
        assert len(told) == 1
        assert patience.seconds == 1.0
        answer = await supervisor.use(lambda child: child.call("echo", Text("c"), Text))
        assert answer.text == "c"
        assert supervisor.pid != first
    finally:
        await supervisor.stop()
