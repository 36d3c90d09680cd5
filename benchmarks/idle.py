"""Measure what a node's engine takes from the owner's own programs: `python -m benchmarks.idle [--quick]`.

The load is like a compilation: one process per core compiles Python's own library, a fixed amount of work. It runs
alone and beside an engine's process that generates without end, as a node starts it (node/engine_child.py), in
alternating pairs; where it runs alone, the engine is stopped by SIGSTOP. Each ratio is the median over the pairs.

    one group       engine and load in one control group, where SCHED_IDLE holds
    two groups      in two of them, the engine's made idle, as CPUWeight=idle of our service makes it; root only
    normal          one group, with priority = "normal": no bar, it shows what is saved

Then a whole node waits for a run that is paused, and the CPU time of its main process is counted.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tokenizers import Tokenizer, models

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim

bench.one_thread()

from benchmarks.turns_cost import EOS, VOCABULARY, make_model  # noqa: E402
from benchmarks.waiting_node import share_of_a_core  # noqa: E402
from echo2.engines.process.process import EngineProcess  # noqa: E402
from echo2.engines.rate import TaskShare, Workload  # noqa: E402
from echo2.node.config import load_config  # noqa: E402
from echo2.node.engine_child import engine_child  # noqa: E402
from echo2.runtime.priority import Priority  # noqa: E402

CPU_BAR: Final = 1.03
CLOCK_BAR: Final = 1.05
WAITING_BAR: Final = 0.005
"""Share of a core."""
WAITING_SECONDS: Final = 120.0
GROUPS: Final = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
"""Where control groups for CPU time are made: of version 1, and of version 2."""
_COMPILE: Final = """
import sys, sysconfig, pathlib
texts = [path.read_bytes() for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("[a-m]*.py"))]
for _ in range(int(sys.argv[1])):
    for text in texts:
        compile(text, "x", "exec")
"""


class Took(NamedTuple):
    """The cost of one load. Seconds."""

    cpu: float
    clock: float


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="2 pairs instead of 10, a shorter load, no node that waits"
    )
    options = parser.parse_args()
    bench.header("idle: the owner's own programs beside a node's engine", ["torch", "transformers"])
    pairs, times = (2, 1) if options.quick else (10, 6)
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        place = Path(folder)
        words = Tokenizer(
            models.WordLevel({f"word{number}": number for number in range(VOCABULARY)}, unk_token="word0")
        )
        snapshot = make_model(place / "model", text=words)
        rows = dict[str, Took]()
        for name, row in _rows(runner, place, snapshot, pairs, times):
            print(f"{name}: CPU {row.cpu:.3f} of that alone, clock {row.clock:.3f}", flush=True)
            rows[name] = row
        waiting = [] if options.quick else [_waiting_claim(place)]
    bench.table(["engine", "CPU", "clock"], [[name, row.cpu, row.clock] for name, row in rows.items()])
    if "two groups" not in rows:
        print("two groups: not measured, no control group can be made here")
    del rows["normal"]
    return bench.close([
        claim
        for name, row in rows.items()
        for claim in (
            Claim(f"CPU of a load beside the engine: {name}", row.cpu, "alone", CPU_BAR, at_most=True),
            Claim(f"clock of a load beside the engine: {name}", row.clock, "alone", CLOCK_BAR, at_most=True),
        )
    ] + waiting)  # fmt: skip


def _rows(runner: asyncio.Runner, place: Path, snapshot: Path, pairs: int, times: int) -> Iterator[tuple[str, Took]]:
    """Yield the name of each row and its figures. The row of an engine that gives way to nothing is the first, as it
    alone starts on a machine that has other work."""
    yield "normal", runner.run(_beside(place, snapshot, "normal", pairs, times, None))
    yield "one group", runner.run(_beside(place, snapshot, "idle", pairs, times, None))
    with _idle_group() as group:
        if group is not None:
            yield "two groups", runner.run(_beside(place, snapshot, "idle", pairs, times, group))


def _waiting_claim(place: Path) -> Claim:
    share = share_of_a_core(place, WAITING_SECONDS)
    return Claim("CPU of a node that waits", share, "a core", WAITING_BAR, at_most=True)


async def _beside(place: Path, snapshot: Path, priority: Priority, pairs: int, times: int, group: Path | None) -> Took:
    """Return the load's CPU and clock beside an engine, as a share of those alone. `group`: control group for the
    engine; None: that of this process."""
    async with _working(place, snapshot, priority) as engine:
        if group is not None:
            (group / "cgroup.procs").write_text(str(engine))
        alone, beside = list[Took](), list[Took]()
        for _ in range(pairs):
            os.kill(engine, signal.SIGSTOP)
            alone.append(await asyncio.to_thread(_load, times))
            os.kill(engine, signal.SIGCONT)
            beside.append(await asyncio.to_thread(_load, times))
    both = list(zip(beside, alone, strict=True))
    return Took(
        statistics.median(one.cpu / other.cpu for one, other in both),
        statistics.median(one.clock / other.clock for one, other in both),
    )


@asynccontextmanager
async def _working(place: Path, snapshot: Path, priority: Priority) -> AsyncIterator[int]:
    """Run an engine's process that generates until the block ends; its process id."""
    config, _ = load_config({"home": place, "priority": priority}, {"ECHO2_CONFIG": str(place / "none.toml")})
    process = engine_child(config)
    await process.start()
    try:
        await process.probe("cpu", "float32", engine="transformers")
        await process.load(place / "model", snapshot)
        generating = asyncio.ensure_future(_generate(process, place / "model"))
        await asyncio.sleep(2.0)  # until it generates; a load that begins earlier only has less beside it
        yield process.pid
        if generating.done():
            generating.result()  # raises why the engine stopped
        generating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await generating
    finally:
        await process.stop(0.0)


async def _generate(process: EngineProcess, model: Path) -> None:
    workload = Workload(tasks=(TaskShare(name="x", version=1, single_turn=True),), limit=64, group=4, eos=EOS)
    while True:
        await process.rate(model, workload, 60.0)


def _load(times: int) -> Took:
    """Compile on every core; return what it took."""
    began = time.perf_counter()
    command = [sys.executable, "-I", "-c", _COMPILE, str(times)]
    compilers = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    used = [os.wait4(one.pid, 0)[2] for one in compilers]
    for one in compilers:
        one.returncode = 0
    return Took(sum(one.ru_utime + one.ru_stime for one in used), time.perf_counter() - began)


@contextmanager
def _idle_group() -> Iterator[Path | None]:
    """Make a control group whose processes compute when no other group does; None: none can be made here."""
    for top in GROUPS:
        group = top / f"echo2-idle-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / "cpu.idle").write_text("1")
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
        return
    yield None


if __name__ == "__main__":
    sys.exit(main())
