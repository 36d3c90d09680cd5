"""Compare the engines of this machine with transformers: `python -m benchmarks.engines [--quick] [--engine NAME]`.

Each engine and type runs in a process of its own, on one thread of the CPU: llama.cpp in each of its types, vLLM in
float32, each where it is installed. Measured are tokens per CPU second at the number of rows that the engine finds
best, memory, the difference of its log-probabilities from float32 transformers, and the time from a diff on disk to the
first token under the new version. Claims:

    apply     a version is written into llama.cpp's memory in at most 0.25 of the CPU time of writing it as GGUF and
              loading that file
    pause     no step to a new version holds generation up for more than 0.5 s by the clock
    start     the transformers engine loads a model in at most 6 CPU seconds per 1e9 parameters, imports apart
    alone     the engine on vLLM makes at least 0.9 of the tokens per CPU second of vLLM alone, for the same requests in
              one batch (benchmarks.anchors.bare_vllm), each in its best of all rounds

The model is SmolLM2-135M-Instruct; with --quick random weights of its shape. A version changes 0.5 % of all weights by
one unit in the last place. `--engine llamacpp` or `--engine vllm` measures one engine beside transformers. Without
llama.cpp its claim is not measured, and the exit status is 1, unless another engine was named.
"""

import argparse
import asyncio
import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.harness import bench

bench.one_thread()

import msgspec  # noqa: E402
import numpy as np  # noqa: E402
import psutil  # noqa: E402
import torch  # noqa: E402
from transformers import Qwen3Config  # noqa: E402

import benchmarks.anchors.__main__ as anchors  # noqa: E402
from benchmarks.harness import anchor_file  # noqa: E402
from benchmarks.harness.bench import Claim, Measured  # noqa: E402
from benchmarks.rollout import Setup, prepare  # noqa: E402
from echo2.engines import registry  # noqa: E402
from echo2.engines.engine import Dtype, Job  # noqa: E402
from echo2.engines.llamacpp import architectures, backends, builds  # noqa: E402
from echo2.engines.llamacpp.resident_model import ResidentModel  # noqa: E402
from echo2.engines.process.messages import pack_samples  # noqa: E402
from echo2.engines.process.process import EngineProcess  # noqa: E402
from echo2.engines.registry import EngineRow  # noqa: E402
from echo2.engines.transformers.unfilled_model import build_unfilled  # noqa: E402
from echo2.weights.diff import encode  # noqa: E402
from echo2.weights.journaled import Rolling  # noqa: E402
from echo2.weights.snapshot import Snapshot, writing_snapshot  # noqa: E402
from echo2.weights.torch_io import entries_of, published_bits, published_tensors  # noqa: E402

SHARE = 0.005
"""Part of the weights that a version changes."""
APPLY, PAUSE, START, ALONE = 0.25, 0.5, 6.0, 0.9
"""The bars: a share of CPU time, seconds, CPU seconds per 1e9 parameters, and a share of tokens per CPU second."""
BATCH: Final = 32
"""Rollouts of the batch of `alone`."""
WIDE: Final[dict[str, Any]] = {
    "vocab_size": 20_000, "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
}  # fmt: skip
"""A model of Qwen3-4B's width, of few layers and words."""
TRANSFORMERS = "transformers float32"
COMPARED: Final = (registry.LLAMACPP, registry.VLLM)


class Versions(NamedTuple):
    """Two versions as snapshots, and the payloads from each to the other."""

    old: Snapshot
    new: Snapshot
    forward: Path
    back: Path


class Step(NamedTuple):
    """A step to a version. `cpu`: CPU seconds. `clock`: seconds by the clock. `first`: seconds from the
    beginning of the step to the first token after it."""

    cpu: float
    clock: float
    first: float


class Row(NamedTuple):
    """The figures of one engine. `runs`: rounds of generation. `memory`: resident MiB. `rows`: the number of
    rows that it finds best. `drift`: (mean, most) difference of a log-probability."""

    name: str
    runs: list[Measured]
    memory: float
    rows: int
    drift: tuple[float, float]
    steps: list[Step]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="random weights, 24 new tokens, fewer repeats")
    parser.add_argument("--small", action="store_true", help="8 M random weights, which show that all start")
    parser.add_argument("--engine", choices=[row.name for row in COMPARED], help="compare this one alone")
    options = parser.parse_args()
    quick = options.quick or options.small
    asked = [row for row in COMPARED if options.engine in (None, row.name)]
    compared = [row for row in asked if not row.missing()]
    bench.header("engines: against transformers, float32, on one thread", ["torch", "transformers"])
    with tempfile.TemporaryDirectory() as folder:
        setup = prepare(Path(folder), real=not quick, new_tokens=24 if quick else 64, groups=0, small=options.small)
        versions = next_version(setup)
        rows = asyncio.run(measure(setup, versions, compared, groups=12 if quick else 16, rounds=2 if quick else 4))
        claims = [*report(rows), asyncio.run(started(Path(folder), layers=1 if quick else 9))]
        if registry.LLAMACPP in compared:
            claims.append(applied(setup, versions, 3 if quick else 5))
        if registry.VLLM in compared:
            claims.append(beside_alone(setup, rounds=3 if quick else 5))
    for row in asked:
        if row not in compared:
            print(f"{row.name}: not installed ({row.remedy()})")
    if (registry.LLAMACPP in asked and registry.LLAMACPP not in compared) or not compared:
        return 1
    return bench.close(claims)


def next_version(setup: Setup) -> Versions:
    """Make a version in which `SHARE` of all weights is one unit off, and both payloads."""
    old, random = Snapshot(setup.snapshot), np.random.default_rng(0)
    path = setup.folder / "v1.safetensors"
    with writing_snapshot(path, old.tensors, old.aliases) as writer:
        for entry in old.tensors:
            bits = old.bits(entry.name).copy()
            chosen = random.integers(0, entry.elements, int(entry.elements * SHARE) + 1)
            bits[chosen] ^= np.ones(1, bits.dtype)
            writer.write(bits)
        writer.finish()
    new, forward, back = Snapshot(path), setup.folder / "forward", setup.folder / "back"
    encode(old, new, forward)
    encode(new, old, back)
    return Versions(old, new, forward, back)


# --- engines in processes of their own


def engines(compared: Sequence[EngineRow]) -> dict[str, tuple[str, Dtype]]:
    """Return engine and type of each row of the table: transformers first, then those compared with it."""
    chosen: dict[str, tuple[str, Dtype]] = {TRANSFORMERS: (registry.TRANSFORMERS.name, "float32")}
    for row in compared:
        floats: list[Dtype] = [dtype for dtype in row.dtypes if dtype != "blocks"]  # the model is not quantised
        chosen |= {f"{row.name} {dtype}": (row.name, dtype) for dtype in floats[: 1 if row is registry.VLLM else None]}
    return chosen


async def measure(
    setup: Setup, versions: Versions, compared: Sequence[EngineRow], groups: int, rounds: int
) -> list[Row]:
    """Measure all engines in turn."""
    jobs = [msgspec.structs.replace(setup.job, index=index, seeds=_seeds(index)) for index in range(groups)]
    async with AsyncExitStack() as stack:
        running, drift = dict[str, EngineProcess](), dict[str, tuple[float, float]]()
        for name, (engine, dtype) in engines(compared).items():
            process = await stack.enter_async_context(EngineProcess(name=name, engine=engine))
            await process.probe("cpu", dtype, engine=engine)
            folder = setup.folder / name.replace(" ", "-")
            Rolling.create(folder, versions.old)
            await process.load(setup.folder, folder)
            running[name] = process
            mean, most = drift[name] = await _drift(running, name, jobs[0])
            print(f"{name}: differs by {mean:.2g} nats a token in the mean, {most:.2g} at most", flush=True)
        for process in running.values():
            await process.generate_all(jobs * 2)  # finds the number of rows
        runs: dict[str, list[Measured]] = {name: [] for name in running}
        steps: dict[str, list[Step]] = {name: [] for name in running}
        for _ in range(rounds):
            for name, process in running.items():
                runs[name].append(await _generated(process, jobs))
                steps[name] += await _stepped(process, versions, jobs[0])
        return [
            Row(
                name, runs[name], psutil.Process(process.pid).memory_info().rss / 2**20, process.rows.limit,
                drift[name], steps[name],
            )
            for name, process in running.items()
        ]  # fmt: skip


def _seeds(index: int) -> list[bytes]:
    return [b"engines %3d %4d" % (index, sample) for sample in range(8)]


async def _generated(process: EngineProcess, jobs: Sequence[Job]) -> Measured:
    cpu, wall = bench.cpu_of(process.pid), time.perf_counter()
    tokens = sum(len(one.logprobs) for samples in await process.generate_all(jobs) for one in samples)
    return Measured(tokens, bench.cpu_of(process.pid) - cpu, time.perf_counter() - wall)


async def _drift(running: dict[str, EngineProcess], name: str, job: Job) -> tuple[float, float]:
    samples = await running[name].generate(job)
    scores = await running[TRANSFORMERS].score(job, pack_samples(samples))
    off = np.concatenate(
        [np.abs(np.asarray(one.logprobs) - score.logprobs) for one, score in zip(samples, scores, strict=True)]
    )
    return float(off.mean()), float(off.max())


async def _stepped(process: EngineProcess, versions: Versions, job: Job) -> list[Step]:
    """Step to the new version and back; return for each step its CPU seconds, its seconds by the clock, and those until
    a first token under the new version."""
    one = msgspec.structs.replace(job, seeds=job.seeds[:1], limit=1)
    seconds = []
    for payload, root in ((versions.forward, versions.new.root), (versions.back, versions.old.root)):
        began, cpu = time.perf_counter(), bench.cpu_of(process.pid)
        await process.step_by(payload, root, 1)
        stepped, stepped_cpu = time.perf_counter() - began, bench.cpu_of(process.pid) - cpu
        await process.generate(one)
        seconds.append(Step(stepped_cpu, stepped, time.perf_counter() - began))
    return seconds


def report(rows: Sequence[Row]) -> list[Claim]:
    """Print the table; return the claims on pauses."""
    by_name = {row.name: row for row in rows}
    table = [
        (
            row.name, statistics.median(run.rate for run in row.runs),
            bench.ratio(row.runs, by_name[TRANSFORMERS].runs), row.rows, row.memory, *map(_small, row.drift),
            *(statistics.median(times) for times in zip(*row.steps, strict=True)),
        )
        for row in rows
    ]  # fmt: skip
    bench.table(
        [
            "engine",
            "tokens per CPU second",
            "ratio",
            "rows",
            "MiB",
            "drift, mean",
            "most",
            "step, CPU s",
            "step, s",
            "to first token, s",
        ],
        table,
    )
    return [
        Claim(
            f"pause of {row.name}",
            statistics.median(step.clock for step in row.steps) / PAUSE,
            f"{PAUSE} s",
            1.0,
            at_most=True,
        )
        for row in rows
        if row.name != TRANSFORMERS
    ]


def _small(value: float) -> str:
    return f"{value:.1e}"


# --- the start of an engine


async def started(folder: Path, layers: int) -> Claim:
    """Load a model of Qwen3-4B's width into an engine in float32."""
    config = Qwen3Config(**WIDE, num_hidden_layers=layers)
    model = build_unfilled(config, torch.bfloat16)
    config.save_pretrained(folder / "wide")
    (folder / "wide" / "tokenizer.json").write_text("{}")
    entries = entries_of(published_tensors(model), dtype=torch.bfloat16, aliases={})
    block = published_bits(torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)) * 0.02)
    with writing_snapshot(folder / "wide" / "v0.safetensors", entries, {}) as writer:
        for entry in entries:
            writer.write(np.resize(block, entry.elements))
        writer.finish()
    Rolling.create(folder / "wide" / "rolling", Snapshot(folder / "wide" / "v0.safetensors"))
    parameters = sum(entry.elements for entry in entries)
    async with EngineProcess(name="wide") as process:
        await process.probe("cpu", "float32", engine=registry.TRANSFORMERS.name)
        began = bench.cpu_of(process.pid)
        await process.load(folder / "wide", folder / "wide" / "rolling")
        seconds = bench.cpu_of(process.pid) - began
    print(f"start: {parameters / 1e9:.2f}e9 parameters in {seconds:.2f} CPU seconds")
    return Claim("start", seconds * 1e9 / parameters / START, f"{START:g} CPU s per 1e9", 1.0, at_most=True)


# --- the engine on vLLM, and vLLM alone


def beside_alone(setup: Setup, rounds: int) -> Claim:
    """Compare our engine on vLLM, in a process of its own, with vLLM alone in another."""
    python, limit = Path(registry.VLLM.interpreter() or sys.executable), setup.job.limit
    names = ("our vLLM", "vLLM")
    with ExitStack() as stack:
        parts = {}
        for name in names:
            module, *first = anchors.PARTS[name]
            arguments = [*first, str(setup.folder), str(setup.snapshot), str(limit), str(BATCH)]
            parts[name] = stack.enter_context(anchors.started(python, module, arguments))
        anchors.warm_up(parts, BATCH)
        runs = anchors.in_turn(parts, [BATCH], rounds)
    best = {name: max(run.rate for run in runs[name, BATCH]) for name in names}
    bench.table(
        ["batch of the same requests", "rollouts", "tokens per CPU second"],
        [(name, BATCH, best[name]) for name in names],
    )
    return Claim("alone", best["our vLLM"] / best["vLLM"], "vLLM alone", ALONE)


# --- a version into llama.cpp's memory, and through a file


def applied(setup: Setup, versions: Versions, rounds: int) -> Claim:
    """Compare writing a version's changes into a model in memory with writing its GGUF and loading it."""
    library, architecture = backends.library(), architectures.read(setup.folder)
    folder = setup.folder / "applied"
    Rolling.create(folder, versions.old)
    rolling = Rolling(folder)
    rolling.apply(versions.forward, versions.new.root)
    model = ResidentModel(library, architecture, rolling.snapshot, "float32", None)
    changes = list(rolling.last_changes())

    def write() -> float:
        model.apply(changes, rolling.snapshot)
        return 1.0

    def through_file() -> float:
        path = setup.folder / "version.gguf"
        anchor_file.write(setup.folder, rolling.snapshot, path)
        _load_gguf(model, path)
        return 1.0

    measured = bench.take_turns({"apply": bench.timed(write), "file": bench.timed(through_file)}, rounds)
    model.close()
    for name, runs in measured.items():
        print(f"{name}: {statistics.median(run.cpu for run in runs):.3f} CPU seconds")
    share = 1 / bench.ratio(measured["apply"], measured["file"])
    return Claim("apply", share, "writing GGUF and loading it", APPLY, at_most=True)


def _load_gguf(model: ResidentModel, path: Path) -> None:
    library = model.library
    load = library.other("llama_model_load_from_file", ctypes.c_void_p, [ctypes.c_char_p, builds.Params])
    devices = backends.device_list(None)
    params = builds.model_params(
        library.llama_model_default_params(), library.layout, devices=ctypes.addressof(devices), n_gpu_layers=0,
        use_extra_bufts=False,
    )  # fmt: skip
    pointer = load(str(path).encode(), params)
    if not pointer:
        raise RuntimeError(library.reason("llama.cpp does not load the file"))
    library.llama_model_free(pointer)


if __name__ == "__main__":
    sys.exit(main())
