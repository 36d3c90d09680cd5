"""The engine as a node uses it: one caller at a time, its version reloaded after every crash."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from echo2.engines.engine import Dtype, EngineUnusable, Job
from echo2.engines.process.candidates import Candidate
from echo2.engines.process.versioned import MOST_CRASHES, MOST_OVERFLOWS, Chooser, LoadedVersion, VersionedEngine
from echo2.runtime.child import ChildDied, ChildError
from echo2.weights.snapshot import Snapshot
from tests.support.bigram import random_table, write_table
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import InProcessEngine

JOB = Job(
    prompt=[2, 3], seeds=[bytes(16)], limit=4, eos=1, task="reverse", task_version=1, split="train", index=0
)  # fmt: skip


def engine_of(folder: Path, process: InProcessEngine) -> tuple[VersionedEngine, Snapshot]:
    """Return an engine whose current version is a table, not loaded yet."""
    snapshot = write_table(folder / "table.safetensors", random_table(1))
    engine = VersionedEngine(lambda: process, seed=1)
    engine.model = folder
    engine.current = LoadedVersion(era=1, version=4, root=snapshot.root, weights=snapshot.path)
    return engine, snapshot


@on_fake_clock
async def test_a_crash_loads_the_version_again_and_the_same_job_gives_the_same(tmp_path: Path) -> None:
    process = InProcessEngine()
    engine, _ = engine_of(tmp_path, process)
    async with engine.exclusive():
        first = await engine.generate(JOB)
        process.crashes = 1
        with pytest.raises(ChildDied):
            await engine.generate(JOB)
        began = anyio.current_time()
        await engine.recover()
        assert 0.25 <= anyio.current_time() - began <= 0.5
        assert await engine.generate(JOB) == first
    assert engine.deaths == 1
    assert process.log == ["start float32", "load", "generate", "generate", "start float32", "load", "generate"]


@on_fake_clock
async def test_crashes_in_a_row_end_the_node_and_work_between_them_does_not(tmp_path: Path) -> None:
    process = InProcessEngine()
    engine, _ = engine_of(tmp_path, process)
    for _ in range(2 * MOST_CRASHES):
        async with engine.exclusive():
            await engine.generate(JOB)
            process.crashes = 1
            with pytest.raises(ChildDied):
                await engine.generate(JOB)
    process.crashes = 1 << 30
    tries = 0

    async def again_and_again() -> None:
        nonlocal tries
        while True:
            async with engine.exclusive():
                tries += 1
                with pytest.raises(ChildDied):
                    await engine.generate(JOB)

    with pytest.raises(EngineUnusable, match=f"died {MOST_CRASHES + 1} times in a row: engine ended with -9"):
        await again_and_again()
    assert tries == MOST_CRASHES


@on_fake_clock
async def test_weights_that_are_not_the_current_version_are_told_of_and_not_used(tmp_path: Path) -> None:
    process, told = InProcessEngine(), list[LoadedVersion]()
    engine, snapshot = engine_of(tmp_path, process)
    engine.on_corrupt = told.append
    other = LoadedVersion(era=1, version=5, root=bytes(32), weights=snapshot.path)
    damaged = LoadedVersion(era=1, version=6, root=bytes(32), weights=tmp_path / "damaged")
    damaged.weights.write_bytes(b"no snapshot")
    for version in (other, damaged):
        engine.current = None
        async with engine.exclusive():
            await engine.hold(version)
            assert engine.current is None
    assert told == [other, damaged]
    good = LoadedVersion(era=1, version=4, root=snapshot.root, weights=snapshot.path)
    async with engine.exclusive():
        await engine.hold(good)
        assert engine.current == good
        await engine.generate(JOB)


@on_fake_clock
async def test_an_engine_that_refuses_to_load_for_another_reason_ends_the_node(tmp_path: Path) -> None:
    process = InProcessEngine()
    engine, _ = engine_of(tmp_path, process)
    whole = process.call

    async def full(method, body, type_, *, timeout=None, withdraw=False):  # type: ignore[no-untyped-def]
        if method == "load":
            raise ChildError("EngineError", "out of memory: ask for less")
        return await whole(method, body, type_, timeout=timeout)

    process.call = full  # type: ignore[method-assign]
    with pytest.raises(EngineUnusable, match="cannot load version 4: out of memory: ask for less"):
        async with engine.exclusive():
            pytest.fail("nothing is loaded")


def refusing(process: InProcessEngine, method: str, error: ChildError, times: int) -> None:
    """Let the next calls of a method fail in the engine, after it did its work if it moves the weights."""
    whole, left = process.call, times

    async def call(name, body, type_, *, timeout=None, withdraw=False):  # type: ignore[no-untyped-def]
        nonlocal left
        answer = await whole(name, body, type_, timeout=timeout)
        if name == method and left:
            left -= 1
            raise error
        return answer

    process.call = call  # type: ignore[method-assign]


@on_fake_clock
async def test_a_version_that_the_engine_cannot_hold_ends_the_node_with_its_number(tmp_path: Path) -> None:
    """The folder is stepped before the engine's memory is: the load after it fails for the new version."""
    process = InProcessEngine()
    engine, snapshot = engine_of(tmp_path, process)
    refusal = ChildError("EngineError", "lm_head has the weight 65536.0, which float16 cannot hold")
    next_one = LoadedVersion(era=1, version=5, root=bytes(32), weights=snapshot.path)
    async with engine.exclusive():
        engine.step_by = _raising(refusal)  # type: ignore[method-assign]
        with pytest.raises(ChildError):
            await engine.advance(tmp_path / "payload", next_one)
    process.loaded = None
    refusing(process, "load", refusal, times=1)
    with pytest.raises(EngineUnusable, match=r"cannot load version 5: lm_head has the weight 65536\.0"):
        async with engine.exclusive():
            pytest.fail("nothing is loaded")


def _raising(error: Exception) -> Callable[..., Awaitable[object]]:
    async def raising(*_: object, **__: object) -> object:
        raise error

    return raising


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@on_fake_clock
async def test_groups_that_overflow_in_a_row_end_a_node_in_float16_alone(dtype: Dtype, tmp_path: Path) -> None:
    process = InProcessEngine()
    engine, _ = engine_of(tmp_path, process)
    engine.dtype = dtype
    overflow = ChildError("LogitsNotFinite", "the weights give logits that are not finite")
    async with engine.shared():
        for _ in range(3):  # groups that go well in between count from the beginning
            refusing(process, "generate", overflow, MOST_OVERFLOWS - 1)
            for _ in range(MOST_OVERFLOWS - 1):
                with pytest.raises(ChildError, match="not finite"):
                    await engine.generate(JOB)
            await engine.generate(JOB)
        refusing(process, "generate", overflow, MOST_OVERFLOWS)
        for _ in range(MOST_OVERFLOWS - 1):
            with pytest.raises(ChildError):
                await engine.generate(JOB)
        expected = EngineUnusable if dtype == "float16" else ChildError
        with pytest.raises(expected, match="3 groups in a row failed in float16" if dtype == "float16" else "not"):
            await engine.generate(JOB)


@on_fake_clock
async def test_a_resting_engine_is_gone_and_begins_nothing_until_it_is_woken(tmp_path: Path) -> None:
    process = InProcessEngine(seconds=5.0)
    engine, _ = engine_of(tmp_path, process)
    done: list[float] = []

    async def work() -> None:
        async with engine.exclusive():
            await engine.generate(JOB)
            done.append(anyio.current_time())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await anyio.sleep(1.0)
        tasks.start_soon(work)
        await anyio.lowlevel.checkpoint()
        assert engine.wanted
        began = anyio.current_time()
        await engine.rest(60.0)
        assert anyio.current_time() - began == pytest.approx(4.0)  # the group that ran is done first
        assert (process.engine, len(done)) == (None, 1)
        await anyio.sleep(100.0)
        assert (process.engine, len(done)) == (None, 1)
        engine.wake()
    assert len(done) == 2
    assert engine.deaths == 0


@on_fake_clock
async def test_a_rest_that_cannot_wait_ends_the_group_under_way_and_counts_no_crash(tmp_path: Path) -> None:
    process = InProcessEngine(seconds=50.0)
    engine, _ = engine_of(tmp_path, process)

    async def work() -> None:
        async with engine.exclusive():
            with pytest.raises(ChildDied):
                await engine.generate(JOB)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await anyio.sleep(1.0)
        await engine.rest(2.0)
        assert process.engine is None
    assert (engine.deaths, engine.restarts.failures) == (0, 0)


@on_fake_clock
async def test_an_engine_that_rests_before_its_first_start_is_probed_and_ends_again(tmp_path: Path) -> None:
    process = InProcessEngine()
    engine, _ = engine_of(tmp_path, process)
    await engine.rest(4.0)
    assert (await engine.start()).engine_class == "bigram/float32/cpu"
    assert (await engine.start()).engine_class == "bigram/float32/cpu"
    assert (process.engine, process.log) == (None, ["start float32", "stop"])
    engine.wake()
    async with engine.exclusive():
        assert len(await engine.generate(JOB)) == 1


@on_fake_clock
async def test_groups_share_the_engine_and_one_crash_starts_it_once(tmp_path: Path) -> None:
    process = InProcessEngine(places=3)
    engine, _ = engine_of(tmp_path, process)
    done: list[int] = []

    async def work(number: int) -> None:
        async with engine.shared():
            try:
                await engine.generate(JOB)
            except ChildDied:
                await engine.recover()
                await engine.generate(JOB)
            done.append(number)

    process.crashes = 1
    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(work, number)
    assert len(done) == 3
    assert engine.deaths == 1
    assert process.log.count("load") == 2


@on_fake_clock
async def test_having_the_engine_alone_waits_for_the_groups_begun_and_stops_new_ones(tmp_path: Path) -> None:
    process, log = InProcessEngine(places=3, seconds=5.0), list[str]()
    engine, _ = engine_of(tmp_path, process)

    async def work(name: str) -> None:
        async with engine.shared():
            await engine.generate(JOB)
            log.append(name)

    async def change() -> None:
        async with engine.exclusive():
            log.append("change")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work, "first")
        tasks.start_soon(work, "second")
        await anyio.sleep(1.0)
        tasks.start_soon(change)
        await anyio.lowlevel.checkpoint()
        assert engine.wanted
        tasks.start_soon(work, "later")
    assert log == ["first", "second", "change", "later"]


def chooser_of(answers: list[Candidate | None], seconds: float = 1.0) -> tuple[Chooser, list[Path]]:
    """Return a chooser that takes `seconds` for each answer, and the weights it was called with."""
    called: list[Path] = []

    async def choose(model: Path, weights: Path) -> Candidate | None:
        called.append(weights)
        await anyio.sleep(seconds)
        return answers.pop(0)

    return choose, called


CHOICE = Candidate(engine="llamacpp", dtype="float16", device="cpu", hardware="a CPU")


@on_fake_clock
async def test_the_chooser_is_called_once_when_weights_are_here_and_its_choice_is_loaded(tmp_path: Path) -> None:
    process, told = InProcessEngine(), list[bool]()
    engine, snapshot = engine_of(tmp_path, process)
    current, engine.current = engine.current, None
    engine.chooser, called = chooser_of([CHOICE])
    engine.on_choice = lambda: told.append(engine.chosen)
    async with engine.exclusive():
        assert not called
        engine.current = current
        await engine.recover()
    async with engine.shared():
        await engine.generate(JOB)
    assert (called, told) == ([snapshot.path], [True])
    assert process.log == ["start float32", "stop", "start float16", "load", "generate"]


@on_fake_clock
async def test_a_pause_cancels_the_timing_and_it_is_made_again_after_the_pause(tmp_path: Path) -> None:
    process = InProcessEngine()
    engine, _ = engine_of(tmp_path, process)
    engine.chooser, called = chooser_of([None, None], seconds=50.0)

    async def work() -> None:
        async with engine.shared():
            await engine.generate(JOB)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await anyio.sleep(10)
        assert engine.choosing
        await engine.rest(4.0)
        await anyio.sleep(1)
        assert not engine.choosing
        await anyio.sleep(100)
        assert "load" not in process.log
        engine.wake()
    assert len(called) == 2
    assert not engine.chosen
    assert process.log[-2:] == ["load", "generate"]


@on_fake_clock
async def test_an_end_in_the_midst_of_the_timing_leaves_nothing_running(tmp_path: Path) -> None:
    engine, _ = engine_of(tmp_path, InProcessEngine())
    ended: list[bool] = []

    async def choose(model: Path, weights: Path) -> Candidate | None:
        try:
            await anyio.sleep(100)
        finally:
            ended.append(True)
        return None

    engine.chooser = choose
    with anyio.move_on_after(5):
        async with engine.shared():
            pytest.fail("nothing was chosen")
    await anyio.sleep(0.1)
    assert ended == [True]
    assert not engine.choosing
