import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from engines.direct import generate, generate_all
from engines.messages import packed
from engines.process import EngineProcess
from engines.transformers.engine import TransformersEngine
from runtime.child import ChildDied, ChildError, python_path
from tests.support import tiny_model
from tests.support.paths import ROOT
from tests.support.tiny_model import job
from weights.journaled import Rolling
from weights.snapshot import Snapshot


async def test_an_engine_in_a_child_does_all_that_an_engine_does(tmp_path: Path) -> None:
    old = tiny_model.make(tmp_path / "model")
    here = TransformersEngine()
    here.load(old.folder, old.snapshot)
    asked = job(2, limit=12)
    async with EngineProcess() as engine:
        with pytest.raises(ChildError, match="first call must be probe"):
            await engine.generate(asked)
        with pytest.raises(ChildError, match="is no device") as refused:
            await engine.probe("toaster")
        assert refused.value.kind == "NoDevice"
        probed = await engine.probe("cpu")
        assert (probed.kind, probed.engine_class) == ("cpu", "transformers/float32/cpu")
        loaded = await engine.load(old.folder, old.snapshot)
        assert loaded.root == old.root
        samples = await engine.generate(asked)
        assert [sample.tokens for sample in samples] == [sample.tokens for sample in generate(here, asked)]
        assert {margin for score in await engine.score(asked, packed(samples)) for margin in score.margins} == {0.0}
        many = await engine.generate_all([asked, msgspec.structs.replace(job(3, samples=1), greedy=True)])
        assert [[sample.tokens for sample in group] for group in many] == [
            [sample.tokens for sample in group]
            for group in generate_all(here, [asked, msgspec.structs.replace(job(3, samples=1), greedy=True)])
        ]
        new, payload = tiny_model.next_version(old)
        folder = tmp_path / "rolling"
        Rolling.create(folder, Snapshot(old.snapshot))
        assert (await engine.load(old.folder, folder)).root == old.root
        assert (await engine.step_by(payload, new.root, 1)).root == new.root
        with pytest.raises(ChildError) as wrong:
            await engine.step_by(payload, new.root, 1)
        assert wrong.value.kind == "WrongBase"
        assert (await engine.step_to(old.root)).root == old.root
        assert (await engine.step_to(new.root)).root == new.root
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(ChildDied):
            await engine.generate(asked)


async def test_groups_asked_for_at_once_are_scored_together_and_an_error_is_that_of_its_group(tmp_path: Path) -> None:
    model = tiny_model.make(tmp_path / "model")
    here = TransformersEngine()
    here.load(model.folder, model.snapshot)
    jobs = [job(index, samples=index + 1, limit=12) for index in range(6)]
    samples = generate_all(here, jobs)
    spoilt = [msgspec.structs.replace(samples[2][0], tokens=[10**6], turns=[1]), *samples[2][1:]]
    async with EngineProcess() as engine:
        await engine.probe("cpu")
        await engine.load(model.folder, model.snapshot)
        calls = [engine.score(*pair) for pair in zip(jobs, map(packed, samples), strict=True)]
        bad, generated, *scored = await asyncio.gather(
            engine.score(jobs[2], packed(spoilt)), engine.generate(jobs[0]), *calls, return_exceptions=True
        )
        assert isinstance(bad, ChildError)
        assert "vocabulary" in bad.message
        assert not isinstance(generated, BaseException)
        assert [one.tokens for one in generated] == [one.tokens for one in samples[0]]
        for asked, given, scores in zip(jobs, samples, scored, strict=True):
            assert not isinstance(scores, BaseException)
            for one, other in zip(scores, here.score(asked, given), strict=True):
                assert list(one.margins) == list(other.margins) == [0.0] * len(other.margins)
                assert list(one.logprobs) == pytest.approx(list(other.logprobs), abs=1e-5)


async def test_a_score_whose_caller_is_cancelled_leaves_the_others(tmp_path: Path) -> None:
    model = tiny_model.make(tmp_path / "model")
    here = TransformersEngine()
    here.load(model.folder, model.snapshot)
    asked = job(1, samples=4, limit=12)
    samples = generate(here, asked)
    async with EngineProcess() as engine:
        await engine.probe("cpu")
        await engine.load(model.folder, model.snapshot)
        calls = [asyncio.ensure_future(engine.score(asked, packed(samples))) for _ in range(4)]
        await asyncio.sleep(0)
        calls[1].cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [False, True, False, False]
        assert (await engine.load(model.folder, model.snapshot)).root == model.root


def test_a_child_finds_the_packages_wherever_the_daemon_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(ROOT)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert python_path({"A": "b"}) == {"A": "b", "PYTHONPATH": f"{root}{os.pathsep}/elsewhere"}
    monkeypatch.delenv("PYTHONPATH")
    assert python_path() == {"PYTHONPATH": root}


def test_a_parent_of_engines_never_imports_torch() -> None:
    import subprocess

    program = "import sys, engines.versioned, engines.host, engines.registry; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, **python_path()})


async def test_groups_are_generated_together_and_a_step_to_another_version_waits_for_them(tmp_path: Path) -> None:
    old = tiny_model.make(tmp_path / "model")
    new, payload = tiny_model.next_version(old)
    folder = tmp_path / "rolling"
    Rolling.create(folder, Snapshot(old.snapshot))
    here = {name: TransformersEngine() for name in ("old", "new")}
    here["old"].load(old.folder, old.snapshot)
    here["new"].load(new.folder, new.snapshot)
    before, after = [job(index, limit=40) for index in range(6)], job(9, limit=40)
    async with EngineProcess() as engine:
        await engine.probe("cpu")
        await engine.load(old.folder, folder)
        groups = [asyncio.create_task(engine.generate(one)) for one in before]
        dropped = asyncio.create_task(engine.generate(job(8, limit=400)))
        await asyncio.sleep(0)
        step = asyncio.create_task(engine.step_by(payload, new.root, 1))
        await asyncio.sleep(0)
        later = asyncio.create_task(engine.generate(after))
        assert engine.rows.waiting == 7 * 8
        dropped.cancel()
        assert (await step).root == new.root
        assert all(group.done() for group in groups)
        for group, one in zip(groups, before, strict=True):
            assert [sample.tokens for sample in await group] == [x.tokens for x in generate(here["old"], one)]
        assert [sample.tokens for sample in await later] == [x.tokens for x in generate(here["new"], after)]
        assert (engine.rows.running, engine.rows.waiting) == (0, 0)
        assert engine.rows.limit > 0


async def test_a_kill_in_the_middle_of_several_groups_fails_them_all_and_they_are_generated_again(
    tmp_path: Path,
) -> None:
    tiny = tiny_model.make(tmp_path / "model")
    jobs = [job(index, limit=200) for index in range(4)]
    here = TransformersEngine()
    here.load(tiny.folder, tiny.snapshot)
    for kill in (True, False):
        async with EngineProcess() as engine:
            await engine.probe("cpu")
            await engine.load(tiny.folder, tiny.snapshot)
            groups = [asyncio.create_task(engine.generate(one)) for one in jobs]
            if kill:
                began = asyncio.Event()
                engine.on_rows = lambda rows, began=began: began.set() if rows.running else None
                await began.wait()
                os.kill(engine.pid, signal.SIGKILL)
            ends = await asyncio.gather(*groups, return_exceptions=True)
        assert [isinstance(end, ChildDied) for end in ends] == [kill] * 4
    for end, expected in zip(ends, generate_all(here, jobs), strict=True):
        assert not isinstance(end, BaseException)
        assert [sample.tokens for sample in end] == [sample.tokens for sample in expected]
