"""Generate honest groups with engines of this machine, and compare them with the scorer, for a Calibration.

Rules
1. Engine processes of the class generate groups of the run's task under one version. A scorer scores them in the
   precision in which the run's scorer would on this device (coordinator/verdicts/group_verifier.py, rule 8). They are
   compared as those of nodes are (coordinator/verification/token_evidence.py).
2. All processes are of this module's own and run at low priority: the scorer and the learner of a running coordinator
   go first, and wait for none of them. As those, they see no key.
3. A process that loaded other weights than those named ends the measurement.
4. The tokens come from `PROMPTS_LEAST` prompts at least, all machines together, as many of each prompt: those of one
   prompt depend on each other, and four prompts of 20,000 tokens say less of a machine than 64 of 500. A machine's rows
   are samples of several prompts, so this takes no longer.
"""

import asyncio
import hashlib
import math
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from echo2.coordinator.environments.played_group import play
from echo2.coordinator.environments.task_host import TaskHost
from echo2.coordinator.run import model_folder
from echo2.coordinator.run.keys import keyless
from echo2.coordinator.run.setup import Run
from echo2.coordinator.run.task_processes import hosted_all
from echo2.coordinator.settings.computing import computing_of
from echo2.coordinator.verification.mixed_machines import MixedMachine
from echo2.coordinator.verification.token_evidence import TokenArray, compare_group
from echo2.engines.engine import Job, Sample, SampleScore
from echo2.engines.process.messages import pack_samples
from echo2.engines.process.process import EngineProcess
from echo2.engines.registry import ClassParts, in_16_bits
from echo2.protocol.task_kinds import ANSWERED_KINDS, SINGLE_KIND
from echo2.runtime.errors import LocalFault

NICE_PRIORITY: Final = 10
"""Priority of the processes, as of `nice`."""
PROMPTS_LEAST: Final = 64
"""Fewest prompts of a Calibration (rule 4)."""
MOST_BATCHES: Final = 4_096
"""Batches of rows per machine before it is given up for want of tokens."""
SCORED_ROWS: Final = 16
"""Samples that are scored in one call."""


class MeasuredVersion(NamedTuple):
    """The weights that a Calibration is made with: a snapshot at `path` with content root `root`."""

    era: int
    version: int
    root: bytes
    path: Path


class HonestTokens(NamedTuple):
    """The compared tokens of each machine, and the builds of the engine that generated them."""

    machines: dict[str, TokenArray]
    builds: list[str]


async def measure(
    run: Run, weights: MeasuredVersion, wanted: ClassParts, machines: Mapping[str, MixedMachine], tokens: int
) -> HonestTokens:
    """Generate and compare at least `tokens` tokens per machine. Raises `ChildDied`, `ChildError`, `Incomparable`, and
    `LocalFault` under rule 3."""
    compared, builds = dict[str, TokenArray](), dict[str, None]()
    exact = ClassParts("transformers", "float32", computing_of(run.config.learner, run.config.scorer).scorer_devices[0])
    share = math.ceil(PROMPTS_LEAST / len(machines))
    tf32 = run.config.scorer.tf32 and in_16_bits(wanted.dtype)
    async with hosted_all(run.tasks, run.config.environment) as hosts, engine_process(run, weights, exact) as scorer:
        for number, (name, machine) in enumerate(machines.items()):
            async with engine_process(run, weights, wanted, machine) as process:
                assert process.probed is not None
                builds |= dict.fromkeys(process.probed.builds)
                first = number * MOST_BATCHES * share
                source = _Source(run, list(hosts), process, machine, first, min(share, machine.rows), tf32)
                compared[name] = await _tokens(source, scorer, tokens, max(1, tokens // share))
    return HonestTokens(compared, list(builds))


@asynccontextmanager
async def engine_process(
    run: Run, weights: MeasuredVersion, wanted: ClassParts, machine: MixedMachine | None = None
) -> AsyncIterator[EngineProcess]:
    """Yield an engine process with the weights loaded (rules 2 and 3). `machine`: None for the scorer."""
    name, threads = ("calibration", machine.threads) if machine else ("calibration scorer", 1)
    env = {**(machine.env if machine else {}), **keyless(run.folder)}
    async with EngineProcess(name=name, threads=threads, env=env, engine=wanted.engine) as process:
        os.setpriority(os.PRIO_PROCESS, process.pid, NICE_PRIORITY)
        await process.probe(wanted.device, wanted.dtype, engine=wanted.engine)
        loaded = await process.load(run.folder.model, weights.path)
        if loaded.root != weights.root:
            raise LocalFault(f"{weights.path} changed while its class was calibrated: calibrate again")
        yield process


class _Source(NamedTuple):
    """One machine's groups of the run's tasks, which take turns. `first`: number of its first prompt. `at_once`:
    prompts that share its rows. `tf32`: whether they may be scored in TF32."""

    run: Run
    hosts: list[TaskHost]
    process: EngineProcess
    machine: MixedMachine
    first: int
    at_once: int
    tf32: bool

    async def batch(self, number: int) -> list["_Group"]:
        """Generate a group of each prompt of the batch of this number."""
        prompts = range(self.first + number * self.at_once, self.first + (number + 1) * self.at_once)
        hosted = [(host := self.hosts[prompt % len(self.hosts)], await self._job(host, prompt)) for prompt in prompts]
        answered = [await self._play(host, job) for host, job in hosted if host.facts.kind in ANSWERED_KINDS]
        return answered + await self._generate([job for host, job in hosted if host.facts.kind not in ANSWERED_KINDS])

    async def _play(self, host: TaskHost, job: Job) -> "_Group":
        room = model_folder.room_of(self.run.folder.model, self.run.runspec.limit)
        played = await play(self.process, host, job, "train", room)
        return _drop_unopened(_Group(job, played.samples))

    async def _generate(self, jobs: list[Job]) -> list["_Group"]:
        if not self.machine.alone:
            return [_Group(*one) for one in zip(jobs, await self.process.generate_all(jobs), strict=True)]
        parts = [_part(job, slice(row, row + 1)) for job in jobs for row in range(len(job.seeds))]
        samples = iter([sample for (sample,) in await self.process.generate_all(parts)])
        return [_Group(job, [next(samples) for _ in job.seeds]) for job in jobs]

    async def _job(self, host: TaskHost, number: int) -> Job:
        runspec, task = self.run.runspec, host.facts
        index = number // len(self.hosts) % task.train
        named = f"calibration/{number}".encode()
        rows = range(number % self.at_once, self.machine.rows, self.at_once)
        seeds = [hashlib.blake2b(named + b"/%d" % row, digest_size=16).digest() for row in rows]
        return Job(
            prompt=await host.prompt("train", index), seeds=seeds, limit=runspec.limit, eos=runspec.eos,
            other_ends=runspec.other_ends, temperature=runspec.temperature,
            task=task.name, task_version=task.version, split="train", index=index,
            single_turn=task.kind == SINGLE_KIND, tf32=self.tf32,
        )  # fmt: skip


class _Group(NamedTuple):
    """A group as a node submits it."""

    job: Job
    samples: list[Sample]


def _drop_unopened(group: _Group) -> _Group:
    """Leave out the samples that the environment failed to open: nothing of them was sampled."""
    kept = [number for number, one in enumerate(group.samples) if one.logprobs]
    job = msgspec.structs.replace(group.job, seeds=[group.job.seeds[number] for number in kept])
    return _Group(job, [group.samples[number] for number in kept])


async def _tokens(source: _Source, scorer: EngineProcess, tokens: int, most: int) -> TokenArray:
    """Generate and compare groups until there are `tokens` tokens. `most`: tokens that count of one prompt, which are
    spread over its samples."""
    parts: list[TokenArray] = []
    for number in range(MOST_BATCHES):
        for job, samples in await source.batch(number):
            scores = await _score_samples(scorer, job, samples)
            compared = await asyncio.to_thread(compare_group, samples, scores, [0.0] * len(samples), job.ends)
            parts.append(compared[np.arange(most) * len(compared) // most] if len(compared) > most else compared)
        if sum(map(len, parts)) >= tokens:
            break
    return np.concatenate(parts)


async def _score_samples(scorer: EngineProcess, job: Job, samples: list[Sample]) -> list[SampleScore]:
    scores: list[SampleScore] = []
    for start in range(0, len(samples), SCORED_ROWS):
        rows = slice(start, start + SCORED_ROWS)
        scores += await scorer.score(_part(job, rows), pack_samples(samples[rows]))
    return scores


def _part(job: Job, rows: slice) -> Job:
    """Return the job of some of the samples."""
    return msgspec.structs.replace(job, seeds=job.seeds[rows])
