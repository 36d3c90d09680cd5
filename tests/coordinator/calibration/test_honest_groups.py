"""Honest groups for a Calibration, by a bigram policy in place of engine processes."""

import asyncio
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from echo2.coordinator.calibration import honest_groups
from echo2.coordinator.calibration.honest_groups import (
    NICE_PRIORITY,
    HonestTokens,
    MeasuredVersion,
    measure,
)
from echo2.coordinator.run import setup
from echo2.coordinator.run.setup import Run
from echo2.coordinator.verification.mixed_machines import MixedMachine
from echo2.coordinator.verification.token_evidence import DIFFERS
from echo2.engines.engine import Job, Sample, SampleScore
from echo2.engines.process.messages import PackedSample, Probed
from echo2.engines.process.process import EngineProcess
from echo2.engines.registry import ClassParts
from echo2.runtime.errors import LocalFault
from echo2.weights.snapshot import Snapshot
from tests.support.bigram import BigramEngine, random_table, write_table
from tests.support.run_folders import NOW
from tests.support.swarm import VOCABULARY, model_folder

WANTED = ClassParts("bigram", "bfloat16", "cpu")


class Process(EngineProcess):
    """An engine process without a process. `begun`: all of them, with what they were asked."""

    begun: ClassVar[list["Process"]] = []

    def __init__(self, *, name: str, threads: int, env: Mapping[str, str] | None, engine: str) -> None:
        super().__init__(name=name, threads=threads, env=env, engine=engine)
        self.engine, self.named, self.threads = BigramEngine(), name, threads
        self.jobs, self.prompts, self.temperatures = list[int](), list[int](), set[int]()
        self.tf32 = set[bool]()
        Process.begun.append(self)

    async def __aenter__(self) -> "Process":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    @property
    def pid(self) -> int:
        return 1_000 + len(Process.begun)

    async def probe(self, device: str = "auto", dtype: Any = "float32", *, engine: str = "auto") -> Probed:
        self.asked = (engine, dtype, device)
        self.probed = Probed(kind=device, name="", why="", engine_class="/".join(self.asked), builds=["a table"])
        return self.probed

    async def load(self, model: Path, weights: Path) -> Any:
        return self.engine.load(model, weights)

    async def generate(self, job: Job) -> list[Sample]:
        self.jobs.append(len(job.seeds))
        self.temperatures.add(job.temperature)
        self.prompts.append(job.index)
        self.engine.begin(1, job)
        while True:
            for ended in self.engine.step():
                assert isinstance(ended.outcome, list)
                return ended.outcome

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]:
        self.tf32.add(job.tf32)
        self.jobs.append(len(job.seeds))
        self.temperatures.add(job.temperature)
        return self.engine.score(job, [one.sample() for one in samples])


@pytest.fixture
def niced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    asked: list[tuple[int, int]] = []
    Process.begun = []
    monkeypatch.setattr(honest_groups, "EngineProcess", Process)
    monkeypatch.setattr(os, "setpriority", lambda which, pid, nice: asked.append((pid, nice)))
    return asked


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made(tmp_path)


def made(tmp_path: Path, precision: str = "auto", **settings: Any) -> Run:
    model = model_folder(tmp_path / "model")
    flags = {
        "run": {"task": "reverse", "limit": 6, "engines": ("bigram", "transformers"), **settings},
        "scorer": {"precision": precision},
    }
    return setup.init(tmp_path / "run", str(model), setup.settings_for(str(model), flags, env={}), now=NOW)


def weights(folder: Path, seed: int = 0) -> MeasuredVersion:
    written = write_table(folder / "measured", random_table(seed, VOCABULARY))
    return MeasuredVersion(1, 0, written.root, written.path)


def measured(run: Run, of: MeasuredVersion, machines: dict[str, MixedMachine], tokens: int) -> HonestTokens:
    return asyncio.run(measure(run, of, WANTED, machines, tokens))


def test_each_machine_makes_its_tokens_and_the_scorer_computes_in_float32(
    run: Run, niced: list[tuple[int, int]], tmp_path: Path
) -> None:
    machines = {"few": MixedMachine(rows=4), "many": MixedMachine(rows=40, threads=2)}
    honest = measured(run, weights(tmp_path), machines, 150)
    assert honest.builds == ["a table"]
    assert all(150 <= len(tokens) < 150 + 40 * 4 for tokens in honest.machines.values())
    assert all(not (tokens["flags"] & DIFFERS).any() for tokens in honest.machines.values())
    scorer, few, many = Process.begun
    assert (scorer.asked, few.asked) == (("transformers", "float32", "cpu"), ("bigram", "bfloat16", "cpu"))
    assert (few.threads, many.threads) == (1, 2)
    assert {sum(many.jobs[start : start + 32]) for start in range(0, len(many.jobs), 32)} == {40}
    assert set(few.jobs) == {1}
    assert set(many.jobs) == {1, 2}
    assert [nice for _, nice in niced] == [NICE_PRIORITY] * 3


@pytest.mark.parametrize(
    ("dtype", "precision", "tf32"),
    [("bfloat16", "auto", True), ("float16", "auto", True), ("bfloat16", "float32", False), ("float32", "auto", False)],
)
def test_the_scorer_of_a_calibration_is_as_precise_as_the_runs(
    niced: list[tuple[int, int]], tmp_path: Path, dtype: Any, precision: str, tf32: bool
) -> None:
    wanted = ClassParts("bigram", dtype, "cpu")
    asyncio.run(measure(made(tmp_path, precision), weights(tmp_path), wanted, {"one": MixedMachine(rows=4)}, 60))
    assert Process.begun[0].tf32 == {tf32}


def test_prompts_alone_are_jobs_of_one_sample_with_the_same_tokens(
    run: Run, niced: list[tuple[int, int]], tmp_path: Path
) -> None:
    together = measured(run, weights(tmp_path), {"one": MixedMachine(rows=4)}, 60)
    alone = measured(run, weights(tmp_path), {"one": MixedMachine(rows=4, alone=True)}, 60)
    assert set(Process.begun[-1].jobs) == {1}
    assert np.array_equal(together.machines["one"], alone.machines["one"])


@pytest.mark.parametrize("machines", [1, 4, 9])
def test_the_tokens_are_of_64_prompts_or_more_however_long_a_rollout_is(
    run: Run, niced: list[tuple[int, int]], tmp_path: Path, machines: int
) -> None:
    """Four prompts of 20,000 tokens, as a limit of 8,192 once made them, refused an honest machine."""
    mixed = {str(number): MixedMachine(rows=rows) for number, rows in enumerate([8, 64, 128, 16, 16, 16, 16, 16, 16])}
    honest = measured(run, weights(tmp_path), dict(list(mixed.items())[:machines]), 72)
    asked = [prompt for process in Process.begun[1:] for prompt in process.prompts]
    assert len(set(asked)) >= honest_groups.PROMPTS_LEAST
    most = max(1, 72 // math.ceil(64 / machines))  # of one prompt
    for tokens, process in zip(honest.machines.values(), Process.begun[1:], strict=True):
        assert 72 <= len(tokens) <= most * len(set(process.prompts))


def test_they_are_made_and_scored_at_the_runs_temperature(niced: list[tuple[int, int]], tmp_path: Path) -> None:
    honest = measured(made(tmp_path, temperature=0.8), weights(tmp_path), {"one": MixedMachine(rows=4)}, 64)
    assert [process.temperatures for process in Process.begun] == [{800}, {800}]
    assert not (honest.machines["one"]["flags"] & DIFFERS).any()


def test_samples_are_scored_in_parts(run: Run, niced: list[tuple[int, int]], tmp_path: Path) -> None:
    measured(run, weights(tmp_path), {"one": MixedMachine(rows=64 * 20)}, 64)
    assert set(Process.begun[0].jobs) == {honest_groups.SCORED_ROWS, 4}


def test_other_weights_than_those_named_are_never_measured(
    run: Run, niced: list[tuple[int, int]], tmp_path: Path
) -> None:
    named = weights(tmp_path)
    other = write_table(tmp_path / "other", random_table(9, VOCABULARY))
    with pytest.raises(LocalFault, match="changed while its class was calibrated"):
        measured(run, named._replace(path=other.path), {"one": MixedMachine()}, 60)
    assert Snapshot(other.path).root != named.root


def test_no_process_of_a_calibration_sees_a_key(run: Run, niced: list[tuple[int, int]], tmp_path: Path) -> None:
    measured(run, weights(tmp_path), {"one": MixedMachine(rows=4, env={"ECHO2_ROUNDING": "split-sums"})}, 60)
    assert [one._env["ECHO2_HIDDEN_FOLDER"] for one in Process.begun] == [str(run.folder.keys.resolve())] * 2
    assert [one._env["ECHO2_KEY_PASSPHRASE"] for one in Process.begun] == ["", ""]
    assert [one._env.get("ECHO2_ROUNDING") for one in Process.begun] == [None, "split-sums"]
