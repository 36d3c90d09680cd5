"""Groups as nodes submit them: engine processes on machines whose arithmetic differs, and the scorer's comparison."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.verification.mixed_machines import MixedMachine
from echo2.coordinator.verification.token_evidence import TokenArray, compare_group
from echo2.engines.engine import Dtype, Job, Sample
from echo2.engines.process.messages import pack_samples
from echo2.engines.process.process import EngineProcess
from echo2.engines.temperature import PLAIN_TEMPERATURE
from echo2.runtime.checkout import checkout_command

ALTERED: Final = "benchmarks.trust.altered_host"
PLAIN: Final = "ECHO2_TRUST_PLAIN"
SHIFT: Final = "ECHO2_TRUST_SHIFT"
"""The engine's process that variables change, and the variables."""
LIMIT: Final = 64
"""Sampled tokens per rollout."""
TRAIN: Final = 9_000
"""Prompts of the task that a job names; its tokens are `Prompts`' own."""
PLAIN_LAYERS: Final = MixedMachine(env={PLAIN: "1"})
"""Without the packed copies of the weights that engines/transformers/packed_linear.py makes for float32."""


class Prompts(NamedTuple):
    """The prompts of a model, taken again and again, its end-of-sequence id, the run's temperature in thousandths, and
    whether the scorer may use TF32."""

    prompts: Sequence[list[int]]
    eos: int
    temperature: int = PLAIN_TEMPERATURE
    tf32: bool = False

    def job(self, index: int, rows: int, seeds: str = "") -> Job:
        """Make a group's job. `seeds`: text that the seeds depend on."""
        drawn = [f"{seeds}{index}/{row}".encode().ljust(16, b".")[:16] for row in range(rows)]
        return Job(
            prompt=self.prompts[index % len(self.prompts)], seeds=drawn, limit=LIMIT, eos=self.eos, task="reverse",
            task_version=1, split="train", index=index % TRAIN, temperature=self.temperature, tf32=self.tf32,
        )  # fmt: skip


class Generated(NamedTuple):
    """A group as a node submits it."""

    job: Job
    samples: list[Sample]


class Engines(NamedTuple):
    """Settings that all engine processes of the benchmark share. `tokens`: least tokens per machine. `engine` and
    `device` are those of the nodes."""

    model: Path
    prompts: Prompts
    tokens: int
    engine: str = "transformers"
    device: str = "cpu"

    @asynccontextmanager
    async def start_time_of(
        self, machine: MixedMachine, dtype: Dtype, weights: Path, env: Mapping[str, str] | None = None
    ) -> AsyncIterator[EngineProcess]:
        """Yield an engine with its weights loaded. `env`: of benchmarks/trust/altered_host.py."""
        altered = {**machine.env, **(env or {})}
        changed = any(name.startswith("ECHO2_TRUST") for name in altered)
        command = checkout_command(ALTERED) if changed else None
        async with EngineProcess(threads=machine.threads, env=altered, command=command) as engine:
            await engine.probe(self.device, dtype, engine=self.engine)
            await engine.load(self.model, weights)
            yield engine

    async def generate(self, machine: MixedMachine, dtype: Dtype, weights: Path, first: int) -> list[Generated]:
        """Let a machine generate groups of at least `tokens` tokens in all, with prompts from number `first` on."""
        groups: list[Generated] = []
        async with self.start_time_of(machine, dtype, weights) as engine:
            while count(groups) < self.tokens:
                job = self.prompts.job(first + len(groups), machine.rows)
                groups.append(Generated(job, await _group(engine, job, machine.alone)))
        return groups


async def _group(engine: EngineProcess, job: Job, alone: bool) -> list[Sample]:
    if not alone:
        return await engine.generate(job)
    return [
        sample for (sample,) in await engine.generate_all([part(job, slice(n, n + 1)) for n in range(len(job.seeds))])
    ]


def part(job: Job, rows: slice) -> Job:
    """Return the job of some of the samples."""
    return msgspec.structs.replace(job, seeds=job.seeds[rows])


def count(groups: Sequence[Generated]) -> int:
    """Count the tokens of groups."""
    return sum(len(sample.tokens) for group in groups for sample in group.samples)


def reward(sample: Sample) -> float:
    """Return what stands in for a task's reward: the mean of the token ids."""
    return sum(sample.tokens) / len(sample.tokens)


def scorer_env(rounding: str | None) -> dict[str, str]:
    """Return the variables of a scorer that emulates TF32 by a rounding; None: it does not."""
    return {"ECHO2_ROUNDING": rounding} if rounding else {}


def in_float32(groups: Sequence[Generated]) -> list[Generated]:
    """Return groups that are scored in float32."""
    return [Generated(msgspec.structs.replace(job, tf32=False), samples) for job, samples in groups]


async def compare(scorer: EngineProcess, groups: Sequence[Generated]) -> list[TokenArray]:
    """Compare each group with the scorer's pass."""
    compared = []
    for job, samples in groups:
        scores = await scorer.score(job, pack_samples(samples))
        compared.append(compare_group(samples, scores, [reward(sample) for sample in samples], job.ends))
    return compared
