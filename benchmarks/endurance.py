"""Measure a long honest run: `python -m benchmarks.endurance [--seconds 3600] [--descriptors 256] [--out FOLDER]`.

A coordinator and three nodes train the tiny model, as real processes over libp2p, each under `ulimit -n 256`. Beside
them a client imitates an open browser tab: it requests the page as the page itself does, and the API as `status` does.
Memory and open descriptors of every process are sampled every 10 s, and drawn at the end. The run has so many steps
that it ends by itself after about `--seconds`: a short run before it measures the speed, unless `--steps` is given.

    ended by itself     processes that ended before the run did: none
    steps               the run reached its end
    receipts            every accepted group's receipt is in its node's outbox
    tab                 every request was answered
    descriptors         of a process, less its connections: at most 100; their median in the last third of the run at
                        most 2 above that in the second third
    memory              bytes per version, after the first ten minutes (a third of a shorter run): at most 2,048
"""

import argparse
import os
import shutil
import signal
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import msgspec
import psutil

from benchmarks.harness import bench, picture
from benchmarks.harness.bench import Claim
from benchmarks.harness.crew import Crew
from benchmarks.load.station import free_port
from echo2.coordinator.demo.demo import environment
from echo2.coordinator.demo.demo_settings import TINY_DEMO
from echo2.coordinator.demo.processes import ProcessFault
from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import RunState
from echo2.coordinator.run import first_model, setup
from echo2.coordinator.settings.config import GuardKind
from echo2.p2p.errors import Unreachable

EVERY: Final = 10.0
"""Seconds from one sample to the next."""
PILOT: Final = 90.0
"""Seconds of the short run that measures the speed of steps."""
NODES: Final = ("node-1", "node-2", "node-3")
COORDINATOR: Final = "coordinator"
WARM_UP: Final = 20
"""Steps of the warm-up: the policy's skill does not count."""
SETTLED: Final = 600.0
"""Seconds after which growth of memory counts."""
_START, _SILENCE, _DRAIN = 90.0, 60.0, 120.0  # seconds
_CHILDREN: Final = {"learner": "learner", "echo2.engines.process.host": "engine"}


class Sample(NamedTuple):
    """One process at one time. `at`: seconds since the nodes were started; `memory`: resident bytes; `connections`:
    established TCP connections."""

    at: float
    version: int
    memory: int
    descriptors: int
    connections: int


@dataclass
class Tab:
    """A client that requests the same as an open browser tab. `answers`: their number; `failures`: the failed requests;
    `slowest`: seconds until the slowest answer."""

    url: str
    answers: int = 0
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)

    def run(self, stopping: threading.Event) -> None:
        """Request the page once, then its live part every 2 s, and the API every 5th time."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        number = 0
        while not stopping.is_set():
            paths = ("/",) if number == 0 else ("/live", "/api/v1/run") if number % 5 == 0 else ("/live",)
            for path in paths:
                began = time.monotonic()
                request = urllib.request.Request(self.url + path, headers={"Accept-Encoding": "gzip"})
                try:
                    with opener.open(request, timeout=30.0) as answer:
                        answer.read()
                    self.answers += 1
                except OSError as error:
                    if not stopping.is_set():
                        self.failures.append(f"{path}: {error}")
                self.slowest = max(self.slowest, time.monotonic() - began)
            number += 1
            stopping.wait(2.0)


@dataclass
class Outcome:
    """Result of a run. `samples`: by process. `accepted`: groups; `receipts`: those whose receipt is in an outbox.
    `fault`: the reason of an early end."""

    state: RunState
    seconds: float
    samples: dict[str, list[Sample]]
    tab: Tab
    accepted: int
    receipts: int
    fault: str | None


@dataclass
class EnduranceRun:
    """One run. `descriptors`: the limit of each process. `steps`: of the run, which then takes about `seconds`; None:
    the run has no end, and is stopped after `seconds`."""

    folder: Path
    descriptors: int
    steps: int | None
    seconds: float
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def run(self) -> Outcome:
        """Start all processes, sample them until the run ends, and end them."""
        logs, tmp = self.folder / "logs", self.folder / "tmp"
        for path in (logs, tmp):
            path.mkdir(parents=True)
        make_run(self.folder / "run", self.steps)
        self._crew = Crew(logs, environment(os.environ, self.folder))
        port, stopping = free_port(), threading.Event()
        self._url = f"http://127.0.0.1:{port}"
        tab = Tab(self._url)
        thread = threading.Thread(target=tab.run, args=(stopping,))
        fault = None
        try:
            self._start(
                COORDINATOR, "echo2.coordinator.cli", "run", "--home", str(self.folder / "run"), "--port", str(port)
            )
            state = self._until(lambda state: bool(state.versions), _START)
            for name in NODES:
                home = ("--home", str(self.folder / name), "--name", name, "--listen", "/ip4/127.0.0.1/tcp/0")
                self._start(name, "echo2.node.cli", "join", state.invite, "--gpu", "cpu", "--priority", "normal", *home)
            thread.start()
            began = time.monotonic()
            try:
                state = self._watched(state, began)
                seconds = time.monotonic() - began
                stopping.set()
                state = self._end(state)
            except ProcessFault as error:
                fault, seconds = str(error), time.monotonic() - began
        finally:
            stopping.set()
            if thread.ident:
                thread.join()
            self._crew.stop()
        accepted, receipts = counted(self.folder)
        return Outcome(state, seconds, self.samples, tab, accepted, receipts, fault)

    def _start(self, name: str, module: str, *arguments: str) -> None:
        limited = ["sh", "-c", f'ulimit -n {self.descriptors}; exec "$@"', "sh"]
        self._crew.start(name, [*limited, sys.executable, "-m", module, *arguments])

    def _watched(self, state: RunState, began: float) -> RunState:
        """Sample until the run is finished; a run without end, until `seconds` have passed. Raises `ProcessFault`."""
        due, answered = 0.0, time.monotonic()
        while state.phase != "finished":
            now = time.monotonic() - began
            if self.steps is None and now >= self.seconds:
                break
            if self.steps is not None and now >= 3 * self.seconds + _START:
                raise self._crew.fault(f"step {state.step} of {self.steps} after {now:.0f} s", COORDINATOR)
            look = self._look()
            state, answered = (look, time.monotonic()) if look else (state, answered)
            if time.monotonic() - answered > _SILENCE:
                raise self._crew.fault(f"the coordinator has not answered for {_SILENCE:.0f} s", COORDINATOR)
            self._crew.check(may_end=NODES if state.phase in ("finishing", "finished") else ())
            if now >= due:
                due += EVERY
                self._sample(now, state.version)
            time.sleep(1.0)
        return state

    def _sample(self, at: float, version: int) -> None:
        for name, process in processes(os.getpid(), self.folder):
            with suppress(psutil.Error):
                connections = sum(one.status == "ESTABLISHED" for one in process.net_connections("tcp"))
                one = Sample(at, version, process.memory_info().rss, process.num_fds(), connections)
                self.samples.setdefault(name, []).append(one)

    def _end(self, state: RunState) -> RunState:
        """Wait until the nodes end, interrupt those that do not, then end the coordinator. Raises `ProcessFault`."""
        running = self._crew.wait([name for name in NODES if self._crew.alive(name)], 30.0 if self.steps else 0.0)
        for name in running:
            self._crew.tell(name, signal.SIGINT)
        for name in self._crew.wait(running, _DRAIN):
            raise self._crew.fault(f"{name} did not end within {_DRAIN:.0f} s", name)
        state = self._until(lambda state: state.undecided == 0, _DRAIN)
        self._crew.check(may_end=NODES)
        self._crew.end(COORDINATOR, signal.SIGTERM, _DRAIN)
        return state

    def _look(self) -> RunState | None:
        with suppress(Unreachable):
            return status.decode(status.fetch(self._url))
        return None

    def _until(self, good: Any, seconds: float) -> RunState:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            state = self._look()
            if state is not None and good(state):
                return state
            self._crew.check(may_end=NODES)
            time.sleep(0.5)
        raise self._crew.fault(f"the coordinator did not answer as it should within {seconds:.0f} s", COORDINATOR)


def make_run(home: Path, steps: int | None) -> None:
    """Make a run like the demo's, with another number of steps."""
    flags: dict[str, dict[str, Any]] = {
        "run": {"name": "endurance", **TINY_DEMO.run},
        "learner": dict(TINY_DEMO.learner),
        "network": {"listen": ["/ip4/127.0.0.1/tcp/0"], "mdns": False},
        "https": {"listen": []},
        "guard": {"warn_only": get_args(GuardKind)},  # a policy that has learned all it can dies in an hour
    }
    if steps is not None:
        flags["run"]["steps"] = steps
    config = setup.settings_for(TINY_DEMO.model, flags, env={})
    warm_up = msgspec.structs.replace(first_model.default_warm_up(), steps=WARM_UP)
    setup.init(home, TINY_DEMO.model, config, now=time.time_ns() // 1_000_000, warm_up=warm_up)


def processes(root: int, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Return the run's processes by name: coordinator, node-1 ..., and their children, "coordinator learner" and so
    on."""
    for process in psutil.Process(root).children():
        with suppress(psutil.Error):
            words = process.cmdline()
            home = Path(words[words.index("--home") + 1]) if "--home" in words else None
            if home is None or home.parent != folder:
                continue
            name = COORDINATOR if home.name == "run" else home.name
            yield name, process
            for child in process.children(recursive=True):
                with suppress(psutil.Error):
                    command_line = " ".join(child.cmdline())
                    kind = next((said for part, said in _CHILDREN.items() if part in command_line), None)
                    if kind is not None:
                        kind = "scorer" if (name, kind) == (COORDINATOR, "engine") else kind
                        yield f"{name} {kind}", child


def counted(folder: Path) -> tuple[int, int]:
    """Return the number of accepted groups in run.sqlite, and of those whose receipt is in a node's outbox."""
    accepted = set(_column(folder / "run" / "run.sqlite", "SELECT lease FROM verdicts WHERE verdict = 'accepted'"))
    kept: set[bytes] = set()
    for outbox in folder.glob("node-*/runs/*/outbox.sqlite"):
        kept |= set(_column(outbox, "SELECT lease FROM submissions WHERE receipt IS NOT NULL"))
    return len(accepted), len(accepted & kept)


def _column(path: Path, query: str) -> list[bytes]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return [row[0] for row in database.execute(query)]


# -- judging the samples --------------------------------------------------------


def settled(samples: Sequence[Sample], seconds: float) -> list[Sample]:
    """Return the samples after the first ten minutes, or after a third of a shorter run."""
    return [one for one in samples if one.at >= min(SETTLED, seconds / 3)]


def slope(samples: Sequence[Sample]) -> float:
    """Return the growth of memory in bytes per version, by least squares."""
    versions, memory = [one.version for one in samples], [one.memory for one in samples]
    if len(set(versions)) < 2:
        return 0.0
    middle, mean = sum(versions) / len(versions), sum(memory) / len(memory)
    spread = sum((version - middle) ** 2 for version in versions)
    return sum((version - middle) * (nbytes - mean) for version, nbytes in zip(versions, memory, strict=True)) / spread


def beside_connections(samples: Sequence[Sample]) -> int:
    """Return the largest number of open descriptors besides connections."""
    return max(one.descriptors - one.connections for one in samples)


def grown(samples: Sequence[Sample], seconds: float) -> int:
    """Return the growth of descriptors besides connections: the median of the last third less that of the second. So a
    file that is open for a moment (a payload that is read, an answer of the page) does not count as growth."""
    thirds = [[one for one in samples if low <= one.at / seconds < high] for low, high in ((1 / 3, 2 / 3), (2 / 3, 9))]
    if not all(thirds):
        return 0
    before, after = (statistics.median_low(one.descriptors - one.connections for one in third) for third in thirds)
    return after - before


def report(outcome: Outcome, steps: int) -> int:
    """Print table and closing lines; return the exit status."""
    rows = []
    for name, samples in sorted(outcome.samples.items()):
        last, late = samples[-1], settled(samples, outcome.seconds)
        rows.append(
            (
                name,
                samples[0].memory / 2**20,
                last.memory / 2**20,
                slope(late),
                last.descriptors,
                last.connections,
                max(one.descriptors for one in samples),
            )
        )
    columns = ["process", "MiB, first", "MiB, last", "bytes a version", "descriptors", "connections", "most"]
    bench.table(columns, rows)
    state, tab = outcome.state, outcome.tab
    print(
        f"{outcome.seconds:.0f} s, {state.version} versions, "
        f"{outcome.accepted} groups accepted, {state.refused} refused"
    )
    print(f"tab: {tab.answers} answers, the slowest after {tab.slowest:.2f} s; {len(tab.failures)} failed")
    for fault in (outcome.fault, *tab.failures[:5]):
        if fault:
            print(f"  {fault}")
    print()
    every = outcome.samples.values()
    leaves = max((slope(settled(samples, outcome.seconds)) for samples in every), default=0.0)
    return bench.close(
        [
            Claim("processes that ended by themselves", float(outcome.fault is not None), "none", 0, at_most=True),
            Claim("steps made", state.step / steps, "those wanted", 1.0),
            Claim("receipts in outboxes", outcome.receipts / max(1, outcome.accepted), "groups accepted", 1.0),
            Claim("answers that the tab missed", len(tab.failures), "none", 0, at_most=True),
            Claim("descriptors beside connections", max(map(beside_connections, every)), "one", 100, at_most=True),
            Claim(
                "descriptors that came in the last third",
                max(grown(samples, outcome.seconds) for samples in every),
                "none",
                2,
                at_most=True,
            ),
            Claim("bytes of memory per version", leaves, "one", 2048, at_most=True),
        ]
    )


# -- the pictures -------------------------------------------------------------


def drawing(samples: Mapping[str, Sequence[Sample]], field_: str, scale: float, heading: str, below: str) -> str:
    """Return the SVG of one figure of all processes over time."""
    longest = max(one.at for some in samples.values() for one in some) / 60
    most = max(getattr(one, field_) for some in samples.values() for one in some) / scale
    across = picture.Linear(0, max(1.0, longest), picture.LEFT, picture.RIGHT)
    up = picture.Linear(0, max(1.0, 1.05 * most), picture.BOTTOM, picture.TOP)
    ends = {name: up.at(getattr(some[-1], field_) / scale) for name, some in samples.items()}
    parts = picture.grid(
        across, up, {tick: f"{tick:g}" for tick in across.ticks()}, {tick: f"{tick:,g}" for tick in up.ticks()},
        "minutes",
    )  # fmt: skip
    for name, some in samples.items():
        style = "c5" if name == COORDINATOR else "c4" if name.startswith(COORDINATOR) else "c1"
        parts.append(
            picture.polyline([(across.at(one.at / 60), up.at(getattr(one, field_) / scale)) for one in some], style)
        )
    for name, height in picture.apart(ends).items():
        parts.append(picture.text(picture.RIGHT + 8, height + 4, name, "small"))
    return picture.svg(heading, heading, below, parts)


def draw(outcome: Outcome, out: Path, descriptors: int) -> None:
    """Write both pictures into `out`."""
    below = f"tiny model, three nodes, ulimit -n {descriptors}, an open tab; {outcome.state.version} versions"
    for name, scale, heading in (
        ("memory", 2.0**20, "Memory of every process, MiB"),
        ("descriptors", 1.0, "Open descriptors of every process"),
    ):
        path = out / f"endurance-{name}.svg"
        path.write_text(drawing(outcome.samples, name, scale, heading, below))
        print(f"drawn: {path}")


@contextmanager
def folder_for(keep: bool) -> Iterator[Path]:
    """Yield a temporary folder; keep it where asked, or after an error."""
    folder = Path(tempfile.mkdtemp(prefix="echo2-endurance-"))
    try:
        yield folder
    except BaseException:
        print(f"left in {folder}")
        raise
    if keep:
        print(f"left in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="about how long the run is to take")
    parser.add_argument("--steps", type=int, help="steps of the run (default: determined by a run of 90 s)")
    parser.add_argument("--descriptors", type=int, default=256, help="the limit of open files of each process")
    parser.add_argument("--out", type=Path, default=Path("."), help="a folder for the pictures")
    parser.add_argument("--keep", action="store_true", help="keep the run's folder and logs")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    bench.one_thread()
    bench.header(f"endurance: a tiny run under ulimit -n {options.descriptors}", ["torch"])
    with folder_for(options.keep) as folder:
        steps = options.steps
        if steps is None:
            pilot = EnduranceRun(folder / "pilot", options.descriptors, None, min(PILOT, options.seconds)).run()
            if not pilot.state.step:
                parser.exit(1, f"no step in {pilot.seconds:.0f} s: this machine has no time for the run\n")
            steps = max(2, round(pilot.state.step / pilot.seconds * options.seconds))
            print(f"pilot: {pilot.state.step} steps in {pilot.seconds:.0f} s, so {steps} steps\n", flush=True)
        outcome = EnduranceRun(folder / "whole", options.descriptors, steps, options.seconds).run()
        draw(outcome, options.out, options.descriptors)
        code = report(outcome, steps)
        if code and not options.keep:
            kept = options.out / "endurance-logs"
            shutil.copytree(folder / "whole" / "logs", kept, dirs_exist_ok=True)
            print(f"logs: {kept}")
    return code


if __name__ == "__main__":
    sys.exit(main())
