"""Engines in child processes. A start costs 4 s of processor time: one process serves all tests here but those of a
kill."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import pytest_asyncio

from benchmarks.plays.direct import generate, generate_all
from echo2.engines.engine import SampledTurn
from echo2.engines.process.messages import pack_samples
from echo2.engines.process.process import EngineProcess
from echo2.engines.transformers.engine import TransformersEngine
from echo2.runtime import network_trials
from echo2.runtime.child import ChildDied, ChildError
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from tests.support import tiny_model
from tests.support.fake_coordinator import until
from tests.support.paths import ROOT
from tests.support.served import TaskAnswers, served
from tests.support.tiny_model import TEXT, OnDisk, job

hosted = pytest.mark.asyncio(loop_scope="module")
"""Marks a test of the shared process, which belongs to the event loop of this module."""


class Versions(NamedTuple):
    """Two versions of a model with the payload between them, and an engine here that computes each."""

    old: OnDisk
    new: OnDisk
    payload: Path
    with_old: TransformersEngine
    with_new: TransformersEngine


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    old = tiny_model.make(tmp_path_factory.mktemp("model"))
    new, payload = tiny_model.next_version(old)
    with_old, with_new = TransformersEngine(), TransformersEngine()
    with_old.load(old.folder, old.snapshot)
    with_new.load(new.folder, new.snapshot)
    return Versions(old, new, payload, with_old, with_new)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared(versions: Versions) -> AsyncIterator[EngineProcess]:
    async with EngineProcess() as engine:
        await engine.probe("cpu")
        yield engine


@pytest_asyncio.fixture(loop_scope="module")
async def engine(shared: EngineProcess, versions: Versions) -> EngineProcess:
    """Return the shared process with the old version loaded."""
    loaded = await shared.load(versions.old.folder, versions.old.snapshot)
    assert loaded.root == versions.old.root
    return shared


@hosted
async def test_an_engine_in_a_child_does_all_that_an_engine_does(
    engine: EngineProcess, versions: Versions, tmp_path: Path
) -> None:
    old, new, payload, here, _ = versions
    asked, greedy = job(2, limit=12), msgspec.structs.replace(job(3, samples=1), greedy=True)
    samples = await engine.generate(asked)
    assert [sample.tokens for sample in samples] == [sample.tokens for sample in generate(here, asked)]
    assert {margin for score in await engine.score(asked, pack_samples(samples)) for margin in score.margins} == {0.0}
    many = await engine.generate_all([asked, greedy])
    assert [[sample.tokens for sample in group] for group in many] == [
        [sample.tokens for sample in group] for group in generate_all(here, [asked, greedy])
    ]
    folder = tmp_path / "rolling"
    Rolling.create(folder, Snapshot(old.snapshot))
    assert (await engine.load(old.folder, folder)).root == old.root
    assert (await engine.step_by(payload, new.root, 1)).root == new.root
    with pytest.raises(ChildError) as wrong:
        await engine.step_by(payload, new.root, 1)
    assert wrong.value.kind == "WrongBase"
    assert (await engine.step_to(old.root)).root == old.root
    assert (await engine.step_to(new.root)).root == new.root


@hosted
async def test_a_served_group_is_played_across_the_pipe_beside_others(
    engine: EngineProcess, versions: Versions
) -> None:
    guess, plain = job(3, 4, task="guess", limit=24), job(5, 4, limit=8)
    answers, turns = TaskAnswers(guess, TEXT), list[SampledTurn]()
    others_ended = asyncio.Event()

    async def late(sampled_turn: SampledTurn) -> Sequence[int] | None:
        turns.append(sampled_turn)
        await others_ended.wait()  # the process waits without a step
        if len(turns) == 4:
            await until(lambda: not engine.owes_answer)  # the environment alone is waited for
        return answers(sampled_turn)

    async def others() -> None:
        (ours, alone) = await engine.generate(plain), generate(versions.with_old, plain)
        assert [sample.tokens for sample in ours] == [sample.tokens for sample in alone]
        others_ended.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(others())
        samples = await engine.generate_served(served(guess), late)
    assert [sample.tokens for sample in samples] == [sample.tokens for sample in generate(versions.with_old, guess)]
    assert {sampled_turn.sample for sampled_turn in turns} == {0, 1, 2, 3}
    assert not engine.owes_answer


@hosted
async def test_an_environment_that_fails_ends_its_group_and_leaves_the_process_free(
    engine: EngineProcess, versions: Versions
) -> None:
    async def failing(sampled_turn: SampledTurn) -> Sequence[int] | None:
        raise LookupError("the lease is gone")

    with pytest.raises(LookupError, match="the lease is gone"):
        await engine.generate_served(served(job(3, 4, limit=24)), failing)
    assert (await engine.load(versions.old.folder, versions.old.snapshot)).root == versions.old.root
    with pytest.raises(ChildError, match="outside the vocabulary"):
        await engine.generate_served(served(job(3, 1, limit=24)), _nonsense)


async def _nonsense(sampled_turn: SampledTurn) -> Sequence[int] | None:
    return [10**6]


@hosted
async def test_groups_asked_for_at_once_are_scored_together_and_an_error_is_that_of_its_group(
    engine: EngineProcess, versions: Versions
) -> None:
    here = versions.with_old
    jobs = [job(index, samples=index + 1, limit=12) for index in range(6)]
    samples = generate_all(here, jobs)
    spoilt = [msgspec.structs.replace(samples[2][0], tokens=[10**6], turns=[1]), *samples[2][1:]]
    calls = [engine.score(*pair) for pair in zip(jobs, map(pack_samples, samples), strict=True)]
    bad, generated, *scored = await asyncio.gather(
        engine.score(jobs[2], pack_samples(spoilt)), engine.generate(jobs[0]), *calls, return_exceptions=True
    )
    assert "vocabulary" in bad.message
    assert not isinstance(generated, BaseException)
    assert [one.tokens for one in generated] == [one.tokens for one in samples[0]]
    for asked, given, scores in zip(jobs, samples, scored, strict=True):
        assert not isinstance(scores, BaseException)
        for one, other in zip(scores, here.score(asked, given), strict=True):
            assert list(one.margins) == list(other.margins) == [0.0] * len(other.margins)
            assert list(one.logprobs) == pytest.approx(list(other.logprobs), abs=1e-5)


@hosted
async def test_a_score_whose_caller_is_cancelled_leaves_the_others(engine: EngineProcess, versions: Versions) -> None:
    asked = job(1, samples=4, limit=12)
    samples = generate(versions.with_old, asked)
    calls = [asyncio.ensure_future(engine.score(asked, pack_samples(samples))) for _ in range(4)]
    await asyncio.sleep(0)
    calls[1].cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [False, True, False, False]
    assert (await engine.load(versions.old.folder, versions.old.snapshot)).root == versions.old.root


@hosted
@pytest.mark.slow
async def test_groups_are_generated_together_and_a_step_to_another_version_waits_for_them(
    engine: EngineProcess, versions: Versions, tmp_path: Path
) -> None:
    folder = tmp_path / "rolling"
    Rolling.create(folder, Snapshot(versions.old.snapshot))
    await engine.load(versions.old.folder, folder)
    before, after = [job(index, limit=40) for index in range(6)], job(9, limit=40)
    groups = [asyncio.create_task(engine.generate(one)) for one in before]
    dropped = asyncio.create_task(engine.generate(job(8, limit=400)))
    await asyncio.sleep(0)
    step = asyncio.create_task(engine.step_by(versions.payload, versions.new.root, 1))
    await asyncio.sleep(0)
    later = asyncio.create_task(engine.generate(after))
    assert engine.rows.waiting == 7 * 8
    dropped.cancel()
    assert (await step).root == versions.new.root
    assert all(group.done() for group in groups)
    for group, one in zip(groups, before, strict=True):
        assert [sample.tokens for sample in await group] == [x.tokens for x in generate(versions.with_old, one)]
    assert [sample.tokens for sample in await later] == [x.tokens for x in generate(versions.with_new, after)]
    assert (engine.rows.running, engine.rows.waiting) == (0, 0)
    assert engine.rows.limit > 0


@hosted
@pytest.mark.slow
async def test_a_process_works_once_it_is_probed_and_what_a_kill_cost_another_generates_again(
    engine: EngineProcess, versions: Versions
) -> None:
    old, jobs = versions.old, [job(index, limit=200) for index in range(4)]
    async with EngineProcess() as victim:
        with pytest.raises(ChildError, match="first call must be probe"):
            await victim.generate(jobs[0])
        with pytest.raises(ChildError, match="is no device") as refused:
            await victim.probe("toaster")
        assert refused.value.kind == "NoDevice"
        probed = await victim.probe("cpu")
        assert (probed.kind, probed.engine_class) == ("cpu", "transformers/float32/cpu")
        await victim.load(old.folder, old.snapshot)
        groups = [asyncio.create_task(victim.generate(one)) for one in jobs]
        began = asyncio.Event()
        victim.on_rows = lambda rows: began.set() if rows.running else None
        await began.wait()
        os.kill(victim.pid, signal.SIGKILL)
        ends = await asyncio.gather(*groups, return_exceptions=True)
        assert [type(end) for end in ends] == [ChildDied] * 4
        with pytest.raises(ChildDied):
            await victim.generate(jobs[0])
    again = await engine.generate_all(jobs)
    assert [[sample.tokens for sample in group] for group in again] == [
        [sample.tokens for sample in group] for group in generate_all(versions.with_old, jobs)
    ]


@hosted
async def test_an_engine_is_in_a_network_of_its_own_where_the_system_gives_one(engine: EngineProcess) -> None:
    trial = next(one for one in network_trials.trials(["vllm"]))
    assert (os.readlink(f"/proc/{engine.pid}/ns/net") == os.readlink("/proc/self/ns/net")) == bool(trial.remedy)


SERVED = """
import socket, sys
from echo2.engines.process.host import confinement
confined = confinement("http://127.0.0.1:" + sys.argv[1])
print(confined("vllm"))
print(confined("server"))
for port in sys.argv[1:]:
    try:
        print(socket.create_connection(("127.0.0.1", int(port)), 5).close())
    except OSError as error:
        print(type(error).__name__)
"""


def test_the_engine_of_a_running_server_reaches_that_server_and_no_other_port() -> None:
    if any(one.remedy for one in network_trials.trials(["server"])):
        pytest.skip("the kernel has no rules of ports")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [str(one.getsockname()[1]) for one in (server, other)]
        command = [sys.executable, "-c", SERVED, *ports]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.splitlines() == [
        "the setting server keeps it in the system's network", "", "None", "PermissionError",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_parent_of_engines_never_imports_torch() -> None:
    modules = "echo2.engines.process.versioned, echo2.engines.process.host, echo2.engines.registry"
    program = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
