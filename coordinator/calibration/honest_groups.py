"""Generate honest groups with engines of this machine, and compare them with the scorer, for a Calibration.

Rules
1. Engine processes of the class generate groups of the run's task under one version; the scorer, in float32, scores
   them. The groups are compared as those of nodes are (coordinator/verification/token_evidence.py).
2. All processes are of this module's own and run at low priority: the scorer and the learner of a running coordinator
   go first, and wait for none of them.
3. A process that loaded other weights than those named ends the measurement.
"""

import asyncio
import hashlib
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
from echo2.coordinator.run.setup import Run
from echo2.coordinator.run.task_processes import hosted_all
from echo2.coordinator.settings.computing import computing_of
from echo2.coordinator.verification.mixed_machines import MixedMachine
from echo2.coordinator.verification.token_evidence import TokenArray, compare_group
from echo2.engines.engine import Dtype, Job, Sample, SampleScore
from echo2.engines.process.messages import pack_samples
from echo2.engines.process.process import EngineProcess
from echo2.protocol.task_kinds import ANSWERED_KINDS, SINGLE_KIND
from echo2.runtime.errors import LocalFault
from echo2.tasks.task import Transcript

NICE_PRIORITY: Final = 10
"""Priority of the processes, as of `nice`."""
MOST_GROUPS: Final = 4_096
"""Groups per machine before it is given up for want of tokens."""
SCORED_ROWS: Final = 16
"""Samples that are scored in one call."""


class MeasuredVersion(NamedTuple):
    """The weights that a Calibration is made with: a snapshot at `path` with content root `root`."""

    era: int
    version: int
    root: bytes
    path: Path


class ClassParts(NamedTuple):
    """The parts of an engine class."""

    engine: str
    dtype: Dtype
    device: str


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
    async with hosted_all(run.tasks, run.config.environment) as hosts, engine_process(run, weights, exact) as scorer:
        for number, (name, machine) in enumerate(machines.items()):
            async with engine_process(run, weights, wanted, machine) as process:
                assert process.probed is not None
                builds |= dict.fromkeys(process.probed.builds)
                source = _Source(run, list(hosts), process, machine, number * MOST_GROUPS)
                compared[name] = await _tokens(source, scorer, tokens)
    return HonestTokens(compared, list(builds))


@asynccontextmanager
async def engine_process(
    run: Run, weights: MeasuredVersion, wanted: ClassParts, machine: MixedMachine | None = None
) -> AsyncIterator[EngineProcess]:
    """Yield an engine process with the weights loaded (rules 2 and 3). `machine`: None for the scorer."""
    name, threads = ("calibration", machine.threads) if machine else ("calibration scorer", 1)
    async with EngineProcess(name=name, threads=threads, env=machine.env if machine else None) as process:
        os.setpriority(os.PRIO_PROCESS, process.pid, NICE_PRIORITY)
        await process.probe(wanted.device, wanted.dtype, engine=wanted.engine)
        loaded = await process.load(run.folder.model, weights.path)
        if loaded.root != weights.root:
            raise LocalFault(f"{weights.path} changed while its class was calibrated: calibrate again")
        yield process


class _Source(NamedTuple):
    """One machine's groups of the run's tasks, which take turns. `first`: number of its first prompt."""

    run: Run
    hosts: list[TaskHost]
    process: EngineProcess
    machine: MixedMachine
    first: int

    async def group(self, number: int) -> "_Group":
        """Generate the group of this number, with the rewards that its task gives it."""
        host = self.hosts[number % len(self.hosts)]
        job = await self._job(host, number)
        if host.facts.kind in ANSWERED_KINDS:
            room = model_folder.room_of(self.run.folder.model, self.run.runspec.limit)
            played = await play(self.process, host, job, "train", room)
            rewards = [0.0 if one is None else one.reward for one in played.scores]
            return _drop_unopened(_Group(job, played.samples, rewards))
        if not self.machine.alone:
            return await _reward_group(host, job, await self.process.generate(job))
        jobs = [_part(job, slice(row, row + 1)) for row in range(len(job.seeds))]
        return await _reward_group(host, job, [sample for (sample,) in await self.process.generate_all(jobs)])

    async def _job(self, host: TaskHost, number: int) -> Job:
        runspec, task = self.run.runspec, host.facts
        index = (self.first + number) // len(self.hosts) % task.train
        named = f"calibration/{self.first + number}".encode()
        seeds = [hashlib.blake2b(named + b"/%d" % row, digest_size=16).digest() for row in range(self.machine.rows)]
        return Job(
            prompt=await host.prompt("train", index), seeds=seeds, limit=runspec.limit, eos=runspec.eos,
            other_ends=runspec.other_ends,
            task=task.name, task_version=task.version, split="train", index=index,
            single_turn=task.kind == SINGLE_KIND,
        )  # fmt: skip


class _Group(NamedTuple):
    """A group with its rewards."""

    job: Job
    samples: list[Sample]
    rewards: list[float]


def _drop_unopened(group: _Group) -> _Group:
    """Leave out the samples that the environment failed to open: nothing of them was sampled."""
    kept = [number for number, one in enumerate(group.samples) if one.logprobs]
    job = msgspec.structs.replace(group.job, seeds=[group.job.seeds[number] for number in kept])
    return _Group(job, [group.samples[number] for number in kept], [group.rewards[number] for number in kept])


async def _reward_group(host: TaskHost, job: Job, samples: list[Sample]) -> _Group:
    rewards = [
        (await host.score("train", job.index, Transcript(one.tokens, one.turns), job.limit)).reward for one in samples
    ]
    return _Group(job, samples, rewards)


async def _tokens(source: _Source, scorer: EngineProcess, tokens: int) -> TokenArray:
    """Generate and compare groups until there are `tokens` tokens."""
    parts: list[TokenArray] = []
    for number in range(MOST_GROUPS):
        job, samples, rewards = await source.group(number)
        scores = await _score_samples(scorer, job, samples)
        parts.append(await asyncio.to_thread(compare_group, samples, scores, rewards, job.ends))
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
