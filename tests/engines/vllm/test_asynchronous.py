"""Asynchronous scheduling with the real vLLM, on a CPU: the tokens are the rule's own, though the host has not seen the
last one when it schedules the next. vLLM turns it off on CPUs; it is turned on here, with stand-ins for a GPU's
streams."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from benchmarks.plays import direct
from echo2.engines.transformers.engine import TransformersEngine
from echo2.engines.vllm import resident_engine, tempered_rows
from echo2.engines.vllm.engine import VllmEngine, create
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from tests.support import tiny_model, vllm_models
from tests.support.tiny_model import OnDisk, job

pytestmark = vllm_models.REAL


class Stream:
    """Stands in for a stream or an event of a GPU: on a CPU everything is done at once."""

    device = torch.device("cpu")

    def __init__(self, *_: Any, **__: Any) -> None:
        return None

    def wait_stream(self, other: object) -> None:
        return None

    def record(self, *_: object) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    return vllm_models.make(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine() -> Iterator[VllmEngine]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("Stream", "Event", "stream"):
            patch.setattr(torch.cuda, name, Stream)
        patch.setattr(torch.cuda, "current_stream", Stream)
        plain = resident_engine.configuration

        def ahead(*arguments: Any) -> Any:
            config = plain(*arguments)
            config.scheduler_config.async_scheduling = True
            return config

        patch.setattr(resident_engine, "configuration", ahead)
        engine = create("cpu", "float32")
        yield engine
        engine.close()


def core_of(engine: VllmEngine) -> Any:
    return engine._resident[1]._engine.engine_core.engine_core


def test_steps_are_ahead_and_the_tokens_are_those_of_the_transformers_engine(engine: VllmEngine, small: OnDisk) -> None:
    signs = list[int]()
    engine.on_progress = lambda: signs.append(1)
    engine.load(small.folder, small.snapshot)
    assert len(signs) > 3  # the reading of the weights alone gives fewer
    core = core_of(engine)
    assert core.batch_queue_size == 2
    assert not core.model_executor.driver_worker.worker.model_runner.input_batch.logitsprocs_need_output_token_ids
    jobs = [job(index, samples=4, limit=40, task=task) for index in range(3) for task in ("add", "reverse")]
    scorer = TransformersEngine()
    scorer.load(small.folder, small.snapshot)
    ours, theirs = direct.generate_all(engine, jobs), direct.generate_all(scorer, jobs)
    assert [[one.tokens for one in group] for group in ours] == [[one.tokens for one in group] for group in theirs]


@pytest.mark.parametrize("temperature", [1000, 800])
def test_a_version_waits_for_the_steps_under_way_and_the_next_tokens_are_its_own(
    temperature: int, engine: VllmEngine, small: OnDisk, tmp_path: Path
) -> None:
    folder = tmp_path / "rolling"
    Rolling.create(folder, Snapshot(small.snapshot))
    engine.load(small.folder, folder)
    asked = msgspec.structs.replace(job(1, samples=4, limit=60), temperature=temperature)
    engine.begin(1, asked)
    for _ in range(5):
        engine.step()
    assert core_of(engine).batch_queue
    engine.cancel(1)
    new, payload = tiny_model.next_version(small)
    engine.step_by(payload, new.root, 1)
    assert not core_of(engine).batch_queue
    scorer = TransformersEngine()
    scorer.load(new.folder, new.snapshot)
    ours, theirs = direct.generate(engine, asked), direct.generate(scorer, asked)
    assert [one.tokens for one in ours] == [one.tokens for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert tempered_rows._kept == {}


def test_each_step_is_dispatched_before_the_last_one_is_read(engine: VllmEngine, small: OnDisk) -> None:
    engine.load(small.folder, small.snapshot)
    core, events = core_of(engine), list[str]()
    dispatch, read = core.model_executor.execute_model, core.scheduler.update_from_output
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "model_executor", SimpleNamespace(
            execute_model=lambda *a, **k: (events.append("dispatch"), dispatch(*a, **k))[1],
            sample_tokens=core.model_executor.sample_tokens,
        ))  # fmt: skip
        patch.setattr(core.scheduler, "update_from_output", lambda *a: (events.append("read"), read(*a))[1])
        direct.generate(engine, job(0, samples=2, limit=12))
    assert events[:6] == ["dispatch", "dispatch", "read", "dispatch", "read", "dispatch"]
