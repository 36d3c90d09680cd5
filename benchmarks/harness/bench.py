"""Print the header, the table and the closing lines of a benchmark, in a form that a script can read.

1. The header names machine, versions and threads; a figure without them says nothing.
2. Speed is CPU time (user and system), because a shared machine stretches the clock. Candidates alternate, so that a
   slow minute affects all of them, and the median of their paired ratios counts. Work in this process is measured by
   the CPU time of the calling thread; another process is measured with its whole tree by `cpu_of`.
3. A claim is a ratio against an anchor that was measured in the same run, and closes with one line:
   `NAME: ratio R against ANCHOR, bar B: ok|short`. The program exits with 1 if any is short.
"""

import importlib.metadata
import logging
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psutil
import structlog


class Measured(NamedTuple):
    """An amount of work (tokens, bytes, rollouts ...), and the CPU seconds and seconds by the clock that it took."""

    work: float
    cpu: float
    wall: float

    @property
    def rate(self) -> float:
        """Return the work per CPU second."""
        return self.work / self.cpu


@dataclass(frozen=True)
class Claim:
    """A ratio with its bar: good at `bar` or above; with `at_most`, at `bar` or below."""

    name: str
    ratio: float
    anchor: str
    bar: float
    at_most: bool = False

    @property
    def ok(self) -> bool:
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar

    def closing_line(self) -> str:
        verdict = "ok" if self.ok else "short"
        return f"{self.name}: ratio {self.ratio:.3f} against {self.anchor}, bar {self.bar:g}: {verdict}"


def one_thread() -> None:
    """Limit this process and its children to one thread, and hide progress bars; nodes give way to nothing. Call it
    before torch is imported."""
    os.environ["ECHO2_PRIORITY"] = "normal"
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"


def header(title: str, packages: Sequence[str] = ()) -> None:
    """Print the subject and the machine. From then on only warnings and errors are logged, and SIGTERM ends this
    process as Ctrl-C does, so that the processes that it started are ended too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    print(f"# {title}")
    print(f"{_cpu()}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.platform()}")
    print(f"Python {platform.python_version()}{', ' if versions else ''}{versions}")
    print(
        f"threads per process: {os.environ.get('OMP_NUM_THREADS', 'not set')}; load {os.getloadavg()[0]:.1f}\n",
        flush=True,
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under columns; floats with three significant digits."""
    cells = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for text_row in (columns, ["-" * width for width in widths], *cells):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(text_row, widths, strict=True)) + " |")
    print(flush=True)


def close(claims: Sequence[Claim]) -> int:
    """Print the closing lines; return the exit status: 1 where a claim falls short, or where none was measured."""
    for claim in claims:
        print(claim.closing_line())
    return 0 if claims and all(claim.ok for claim in claims) else 1


def close_each(parts: Iterable[Sequence[Claim]]) -> int:
    """Print the closing lines of each part as soon as it is measured; return the exit status, as of `close`."""
    statuses = list[int]()
    for claims in parts:
        statuses += [close(claims)] if claims else []
        print(flush=True)
    return max(statuses, default=1)


Candidate = Callable[[], Measured]
"""Does its work once, and returns the amount of work with its cost."""


def timed(work: Callable[[], float]) -> Candidate:
    """Return a candidate that measures `work`, which returns its amount and runs in the calling thread alone."""

    def candidate() -> Measured:
        cpu, wall = time.thread_time(), time.perf_counter()
        done = work()
        return Measured(done, time.thread_time() - cpu, time.perf_counter() - wall)

    return candidate


def take_turns(candidates: Mapping[str, Candidate], repeats: int) -> dict[str, list[Measured]]:
    """Run each candidate once to warm up, then `repeats` rounds of all candidates."""
    for candidate in candidates.values():
        candidate()
    results: dict[str, list[Measured]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, candidate in candidates.items():
            results[name].append(candidate())
    return results


def ratio(subject: Sequence[Measured], anchor: Sequence[Measured]) -> float:
    """Return the median of the paired ratios of work per CPU second."""
    return statistics.median(one.rate / other.rate for one, other in zip(subject, anchor, strict=True))


def cpu_of(pid: int) -> float:
    """Return the CPU seconds so far of a process, of its running descendants, and of their children that ended."""
    root = psutil.Process(pid)
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # ended meanwhile: its parent's figures contain its time
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", errors="replace") as file:
            names = [text_line.partition(":")[2].strip() for text_line in file if text_line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
