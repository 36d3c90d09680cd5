"""Make the groups of nodes that compute the right policy and do not follow their seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.trust.machines import SHIFT, Engines, Generated, count, part, reward
from echo2.coordinator.verification.mixed_machines import MixedMachine
from echo2.engines.engine import Dtype, Job, Sample
from echo2.engines.process.messages import pack_samples
from echo2.engines.process.process import EngineProcess
from echo2.engines.temperature import PLAIN_TEMPERATURE

CHOICES: Final = 4
"""Rollouts from which `best_of` chooses one: the lease's own among them."""
PREFIX: Final = 16
"""Tokens that `prefilled` writes by itself at the beginning of each rollout."""
MACHINE: Final = MixedMachine()


def other_seeds(engines: Engines, groups: Sequence[Generated]) -> list[Generated]:
    """Return groups of a node that drew its own seeds."""
    return [_under(engines, group, group.job.index, "x") for group in groups]


def copied(engines: Engines, groups: Sequence[Generated]) -> list[Generated]:
    """Return groups of a node that submits what another one generated for its own lease of another prompt."""
    return [_under(engines, group, group.job.index + 1, "") for group in groups]


def replayed(engines: Engines, groups: Sequence[Generated]) -> list[Generated]:
    """Return groups of a node that submits its first group again for each later lease."""
    return [_under(engines, groups[0], group.job.index + len(groups), "") for group in groups]


def _under(engines: Engines, group: Generated, index: int, seeds: str) -> Generated:
    return Generated(engines.prompts.job(index, len(group.samples), seeds), group.samples)


async def at_temperature_one(engines: Engines, dtype: Dtype, weights: Path, first: int) -> list[Generated]:
    """Return groups of a node that samples at temperature 1, whatever the run's is."""
    temperature, plain = engines.prompts.temperature, engines.prompts._replace(temperature=PLAIN_TEMPERATURE)
    groups = await engines._replace(prompts=plain).generate(MACHINE, dtype, weights, first)
    return [one._replace(job=msgspec.structs.replace(one.job, temperature=temperature)) for one in groups]


async def best_of(engines: Engines, dtype: Dtype, weights: Path, first: int) -> list[Generated]:
    """Return groups in which each sample is the one of highest reward among `CHOICES`."""
    groups: list[Generated] = []
    async with engines.start_time_of(MACHINE, dtype, weights) as engine:
        while count(groups) < engines.tokens:
            index = first + len(groups)
            jobs = [engines.prompts.job(index, MACHINE.rows, seeds) for seeds in ("", "x", "y", "z")[:CHOICES]]
            rows = zip(*[await engine.generate(job) for job in jobs], strict=True)
            groups.append(Generated(jobs[0], [max(choices, key=reward) for choices in rows]))
    return groups


async def prefilled(
    engines: Engines, dtype: Dtype, weights: Path, first: int, scorer: EngineProcess
) -> list[Generated]:
    """Return groups whose rollouts begin with `PREFIX` tokens that the node chose, and go on by the lease's noise."""
    groups: list[Generated] = []
    async with (
        engines.start_time_of(MACHINE, dtype, weights) as engine,
        engines.start_time_of(MACHINE, dtype, weights, {SHIFT: str(PREFIX)}) as going_on,
    ):
        while count(groups) < engines.tokens:
            job = engines.prompts.job(first + len(groups), MACHINE.rows)
            groups.append(Generated(job, await _prefilled(engine, going_on, scorer, job)))
    return groups


async def _prefilled(engine: EngineProcess, going_on: EngineProcess, scorer: EngineProcess, job: Job) -> list[Sample]:
    """Return one group: the prefix is sampled by other seeds, with the log-probabilities that it truly has."""
    seeds = [bytes([row]) * 16 for row in range(len(job.seeds))]
    others = await engine.generate(msgspec.structs.replace(job, limit=PREFIX, seeds=seeds))
    prefix = [token for token in max((other.tokens for other in others), key=len) if token != job.eos]
    start = Sample(tokens=prefix, turns=[len(prefix)], logprobs=[0.0] * len(prefix))
    (score,) = await scorer.score(part(job, slice(0, 1)), pack_samples([start]))
    rest = await going_on.generate(
        msgspec.structs.replace(job, prompt=[*job.prompt, *prefix], limit=job.limit - len(prefix))
    )
    return [
        Sample(
            tokens=[*prefix, *sample.tokens],
            turns=[len(prefix) + len(sample.tokens)],
            logprobs=[*(min(0.0, float(value)) for value in score.logprobs), *sample.logprobs],
        )
        for sample in rest
    ]
