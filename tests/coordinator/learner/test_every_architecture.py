"""Every architecture that `init` takes trains two steps, and its groups are accepted; docs/models.md says which."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.plays import direct
from echo2.coordinator.learner import model_check
from echo2.coordinator.learner.batches.batch_groups import TrainBatch, TrainGroup, TrainSample
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.model import BadModelFolder
from echo2.coordinator.verification.verification import judge
from echo2.engines.engine import Job, Sample, SampleScore
from echo2.engines.transformers import model_config
from echo2.engines.transformers.engine import TransformersEngine
from echo2.protocol.leases import Rollout, Segment
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from tests.support import architectures
from tests.support.architectures import ACCEPTED, FORMATS, REFUSED
from tests.support.tiny_learner import Main, ask
from tests.support.tiny_model import job

STEPS, GROUPS, SAMPLES, LIMIT = 2, 2, 4, 24
QUICK = ("gemma2",)


def loaded(folder: Path, snapshot: str, name: str) -> TransformersEngine:
    """Return an engine with a copy of a version of its own, which it steps in place."""
    engine = TransformersEngine()
    Rolling.create(folder / name, Snapshot(Path(snapshot)))
    engine.load(folder, folder / name)
    return engine


def accepted(asked: Job, samples: list[Sample], scores: list[SampleScore]) -> bool:
    """Tell whether the coordinator would accept a group by the scorer's pass."""
    rollouts = [
        Rollout(
            tokens=one.tokens, turns=one.turns, logprobs=struct.pack(f"<{len(one.logprobs)}f", *one.logprobs),
            segments=[Segment(version=0, root=bytes(32), first=0)],
        )
        for one in samples
    ]  # fmt: skip
    assert len(samples) == len(asked.seeds)
    return judge(rollouts, scores).accepted


def lesson(number: int, asked: Job, samples: list[Sample], scores: list[SampleScore]) -> TrainGroup:
    """Return a group of which the learner learns: every other rollout is rewarded."""
    trained = [
        TrainSample(
            tokens=np.array(one.tokens, np.int32), turns=one.turns, behaviour=np.array(score.logprobs, np.float32),
            reward=float(place % 2), success=bool(place % 2),
        )
        for place, (one, score) in enumerate(zip(samples, scores, strict=True))
    ]  # fmt: skip
    prompt = np.array(asked.prompt, np.int32)
    return TrainGroup(id=number.to_bytes(16, "big"), version=number // 10, prompt=prompt, samples=trained)


@pytest.mark.parametrize("kind", ACCEPTED)
@pytest.mark.slow_but(*QUICK)
def test_each_architecture_that_init_takes_trains_two_steps_and_its_groups_are_accepted(
    kind: str, tmp_path: Path, repository: Path
) -> None:
    row = architectures.kind_row(tmp_path / "model", kind)
    assert row in (repository / "docs/models.md").read_text(), "make it again: python -m tests.support.architectures"
    main = Main(tmp_path / "learner", tmp_path / "model", Hyper(warmup_steps=0, learning_rate=1e-3), keep=4)
    session = main.open()
    engines = node, scorer = [
        loaded(tmp_path / "model", main.published[0].snapshot, name) for name in ("node", "scorer")
    ]
    asked = [job(index, samples=SAMPLES, limit=LIMIT) for index in range(GROUPS)]
    for step in range(1, STEPS + 2):
        groups = list[TrainGroup]()
        for number, (one, samples) in enumerate(zip(asked, direct.generate_all(node, asked), strict=True)):
            scores = scorer.score(one, samples)
            assert accepted(one, samples, scores), f"version {step - 1}"
            groups.append(lesson(10 * (step - 1) + number, one, samples, scores))
        if step > STEPS:
            break
        stepped = session.step(ask(TrainBatch(step=step, groups=groups)))
        assert stepped.metrics["skipped_updates"] == 0
        assert 0 < stepped.metrics["grad_norm"] < 1e4
        assert abs(stepped.metrics["kl"]) < 1e-6 or step > 1  # the policy is the behaviour
        export = stepped.export
        assert export is not None
        main.publish(export)
        (edge,) = [edge for edge in export.edges if edge.base == step - 1]
        for engine in engines:
            engine.step_by(Path(edge.payload), export.root, 0)


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.slow_but("mamba2", "lfm2", "qwen3_next")
def test_an_architecture_that_cannot_take_part_is_refused_in_a_sentence_of_the_table(
    kind: str, tmp_path: Path, repository: Path
) -> None:
    row = architectures.kind_row(tmp_path / "model", kind)
    assert "| refused: " in row
    assert row in (repository / "docs/models.md").read_text()


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_taken_or_refused_as_the_table_says(name: str, tmp_path: Path, repository: Path) -> None:
    assert architectures.format_row(tmp_path / "model", name) in (repository / "docs/models.md").read_text()


def test_a_model_beyond_the_memory_is_refused_unless_ranks_divide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = architectures.make(tmp_path / "model", "llama")
    nbytes = model_config.count_weight_bytes(model_config.read(folder), torch.float32)
    monkeypatch.setattr(model_check, "available_memory", lambda: nbytes - 1)
    with pytest.raises(
        BadModelFolder, match=r"GiB of memory in float32, .* or take a larger machine or a smaller model"
    ):
        model_check.check_model(folder)
    assert model_check.check_model(folder, divided=True) == []
