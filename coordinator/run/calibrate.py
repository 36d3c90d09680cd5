"""Calibrate an engine class by the operator's own engines: `echo2-coord calibrate`.

Rules
1. Engine processes of the class generate groups of the run's task under its newest version; the scorer, in float32,
   scores them. The groups are compared as those of nodes are (coordinator/verification/token_evidence.py).
2. Each machine of `MACHINES` is a process with other threads, rows or instructions: what changes rounding on one
   computer. A Calibration takes them together, with an allowance for machines that are not at hand.
3. The result is signed by the ledger key and written to `calibrations/` of the run folder. A running coordinator reads
   it within half a minute and opens the class.
"""

import asyncio
import hashlib
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from coordinator.run.model_folder import tokenizer
from coordinator.run.setup import Run
from coordinator.verification.calibration import TOKENS_LEAST, Calibration, TooFewTokens, fit, seal_calibration
from coordinator.verification.open_classes import is_exact
from coordinator.verification.token_evidence import Incomparable, TokenArray, compare_group
from engines.engine import Dtype, Job, Sample, dtype_named
from engines.messages import packed
from engines.process import EngineProcess
from engines.registry import UnknownEngine, choose
from protocol.engine_classes import parts
from runtime.child import ChildDied, ChildError
from runtime.errors import LocalFault
from runtime.files import writing
from tasks.task import Tokenizer, Transcript, begun, prompt_of, replay
from weights.store import StoredFile, StoreReader


class TestedMachine(NamedTuple):
    """A process that stands in for a machine. `rows`: samples per group. `env`: of its process."""

    rows: int = 16
    threads: int = 1
    env: Mapping[str, str] = {}


MACHINES: Final[Mapping[str, TestedMachine]] = {
    "16 rows": TestedMachine(),
    "64 rows": TestedMachine(rows=64),
    "2 threads": TestedMachine(threads=2),
    "without vector instructions": TestedMachine(env={"ATEN_CPU_CAPABILITY": "default"}),
}
OTHERS: Final = ("16 rows", "64 rows")
"""The machines for devices other than a CPU, which threads and instructions of the CPU do not concern."""
MOST_GROUPS: Final = 4_096
"""Groups per machine before it is given up for want of tokens."""


def calibrate(run: Run, engine_class: str, tokens: int, now: int) -> Path:
    """Calibrate a class, and return the file written. `tokens`: per machine. `now`: ms. Raises `LocalFault`."""
    engine, dtype, device = parts_of(engine_class)
    newest = newest_snapshot(run.folder.store)
    names = MACHINES if device == "cpu" else OTHERS
    try:
        machines = asyncio.run(_measure(run, newest, (engine, dtype, device), list(names), max(tokens, TOKENS_LEAST)))
        tables = fit(machines)
    except (ChildDied, ChildError, Incomparable, TooFewTokens) as error:
        raise LocalFault(f"cannot calibrate {engine_class} here: {error}") from error
    document = Calibration(
        run=run.id,
        engine_class=engine_class,
        builds=[f"{name} {importlib.metadata.version(name)}" for name in choose(engine).packages],
        era=newest.era,
        version=newest.version,
        root=newest.hash,
        machines={name: len(array) for name, array in machines.items()},
        tables=tables,
        at=now,
    )
    run.folder.calibrations.mkdir(exist_ok=True)
    path = run.folder.calibrations / f"{now}-{engine_class.replace('/', '-')}.calibration"
    with writing(path) as file:
        file.write(seal_calibration(document, run.keys.ledger))
    return path


def parts_of(engine_class: str) -> tuple[str, Dtype, str]:
    """Return the engine, number format and device of a class that needs a Calibration. Raises `LocalFault`."""
    named = parts(engine_class)
    dtype = dtype_named(named[1]) if len(named) == 3 else None
    if dtype is None:
        raise LocalFault(f"{engine_class} is no class: name engine/dtype/device, as transformers/bfloat16/cpu")
    if is_exact(engine_class):
        raise LocalFault(f"{engine_class} is exact: it is open without a Calibration")
    try:
        choose(named[0]).check(dtype)
    except UnknownEngine as error:
        raise LocalFault(str(error)) from error
    return named[0], dtype, named[2]


def newest_snapshot(store: Path) -> StoredFile:
    """Return the newest published weights. Raises `LocalFault`."""
    try:
        with StoreReader(store) as reader:
            snapshots = reader.snapshots()
    except FileNotFoundError as error:
        raise LocalFault("this run has no version yet: start `echo2-coord run` first") from error
    if not snapshots:
        raise LocalFault("this run has no version yet: wait until `echo2-coord run` has published one")
    return snapshots[-1]


async def _measure(
    run: Run, newest: StoredFile, wanted: tuple[str, Dtype, str], names: list[str], tokens: int
) -> dict[str, TokenArray]:
    engine, dtype, device = wanted
    text = tokenizer(run.folder.model, run.runspec.eos)
    async with EngineProcess(name="scorer") as scorer:
        await scorer.probe(run.config.learner.device)
        await scorer.load(run.folder.model, newest.path)
        machines = {}
        for number, name in enumerate(names):
            machine = MACHINES[name]
            async with EngineProcess(threads=machine.threads, env=machine.env) as process:
                await process.probe(device, dtype, engine=engine)
                await process.load(run.folder.model, newest.path)
                machines[name] = await _honest_tokens(run, text, process, scorer, (number, machine.rows), tokens)
    return machines


async def _honest_tokens(
    run: Run, text: Tokenizer, process: EngineProcess, scorer: EngineProcess, which: tuple[int, int], tokens: int
) -> TokenArray:
    """Generate and compare groups until there are `tokens` tokens. `which`: the machine's number, and its rows."""
    machine, rows = which
    parts: list[TokenArray] = []
    for number in range(MOST_GROUPS):
        job = _job(run, text, (machine * MOST_GROUPS + number) % run.task.size("train"), rows, machine)
        samples = await process.generate(job)
        scores = await scorer.score(job, packed(samples))
        parts.append(compare_group(samples, scores, _rewards(run, text, job, samples), job.eos))
        if sum(map(len, parts)) >= tokens:
            break
    return np.concatenate(parts)


def _job(run: Run, text: Tokenizer, index: int, rows: int, machine: int) -> Job:
    named = f"calibration/{machine}/{index}".encode()
    return Job(
        prompt=prompt_of(run.task, "train", index, text),
        seeds=[hashlib.blake2b(named + b"/%d" % row, digest_size=16).digest() for row in range(rows)],
        limit=run.runspec.limit,
        eos=run.runspec.eos,
        task=run.task.name,
        task_version=run.task.version,
        split="train",
        index=index,
    )


def _rewards(run: Run, text: Tokenizer, job: Job, samples: list[Sample]) -> list[float]:
    transcripts = [Transcript(sample.tokens, sample.turns) for sample in samples]
    episodes = [begun(run.task, "train", job.index, text) for _ in samples]
    return [
        replay(episode, transcript, eos=job.eos, limit=job.limit).reward
        for episode, transcript in zip(episodes, transcripts, strict=True)
    ]
