"""Machines whose arithmetic differs, on one CPU: engine processes under other threads, rows and instruction sets."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from coordinator.verification.token_evidence import TokenArray, compare_group
from engines.engine import Dtype, Job, Sample
from engines.messages import packed
from engines.process import EngineProcess
from tasks.tokenizer import EOS

LIMIT: Final = 64
"""Sampled tokens per rollout."""
PROMPT: Final = 24


class Machine(NamedTuple):
    """`rows`: samples per group, which share a decode step. `env`: of its process."""

    rows: int = 8
    threads: int = 1
    env: Mapping[str, str] = {}


MACHINES: Final[Mapping[str, Machine]] = {
    "8 rows": Machine(),
    "32 rows": Machine(rows=32),
    "128 rows": Machine(rows=128),
    "2 threads": Machine(threads=2),
    "PyTorch without AVX": Machine(env={"ATEN_CPU_CAPABILITY": "default"}),
    "PyTorch with AVX2": Machine(env={"ATEN_CPU_CAPABILITY": "avx2"}),
    "oneDNN with SSE 4.1": Machine(env={"ONEDNN_MAX_CPU_ISA": "SSE41"}),
    "oneDNN with AVX2": Machine(env={"ONEDNN_MAX_CPU_ISA": "AVX2"}),
}


class Generated(NamedTuple):
    """A group as a node submits it."""

    job: Job
    samples: list[Sample]


def make_job(index: int, rows: int, seeds: str = "") -> Job:
    """Make a group's job: a prompt of tokens that depend on `index`. `seeds`: text that the seeds depend on."""
    prompt = [5 + (index * 7 + place * place * 13) % 50 for place in range(PROMPT)]
    drawn = [f"{seeds}{index}/{row}".encode().ljust(16, b".")[:16] for row in range(rows)]
    return Job(
        prompt=prompt, seeds=drawn, limit=LIMIT, eos=EOS, task="reverse", task_version=1, split="train", index=index
    )


@contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    """Add to this process's environment, which a child inherits, for as long as the block runs."""
    before = dict(os.environ)
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


async def generate(
    machine: Machine, dtype: Dtype, model: Path, weights: Path, tokens: int, first: int
) -> list[Generated]:
    """Let a machine generate groups of at least `tokens` tokens in all, with prompts from number `first` on."""
    with _environment(machine.env):
        engine = EngineProcess(threads=machine.threads)
        await engine.start()
    try:
        await engine.probe("cpu", dtype)
        await engine.load(model, weights)
        groups: list[Generated] = []
        while sum(len(sample.tokens) for group in groups for sample in group.samples) < tokens:
            job = make_job(first + len(groups), machine.rows)
            groups.append(Generated(job, await engine.generate(job)))
        return groups
    finally:
        await engine.stop()


async def compare(scorer: EngineProcess, groups: list[Generated]) -> list[TokenArray]:
    """Compare each group with the scorer's pass. The reward stands in for a task's: the mean of the token ids."""
    compared = []
    for job, samples in groups:
        scores = await scorer.score(job, packed(samples))
        rewards = [sum(sample.tokens) / len(sample.tokens) for sample in samples]
        compared.append(compare_group(samples, scores, rewards, job.eos))
    return compared
