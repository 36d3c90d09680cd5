"""Measure the time until nodes work under a new version: `python -m benchmarks.loop [--quick]`.

The time runs from the end of the step that made a version to a node's first token under it, and is split by stage. The
learner's idle share is printed too. The run is like the demo's: the tiny model, a coordinator and three nodes as real
processes over libp2p on the loopback, none of them killed. It has no bar.

Then two runs are compared whose steps and groups take given times (benchmarks/paced), with half more supply than the
learner needs: one under the window of leases, one with as much leased as S allows (`room`). Bars: accepted
groups at most 1.08 of the learned ones, mean age at most 0.75 S, idle share at most 0.01 above that of `room`.

    export and encode       snapshot and diffs, in the learner           checkpoint      durable; the learner's answer
    sign and store          files, Version, Edges                        Head signed     and written to disk
    Head on its way         gossip, and the node's check                 documents       Version, EdgeIndex, Edges
    payload                 chunks of the diff                           apply           in the engine
    running group ends      a group is generated under one version       lease           one round trip
    lease refused           the node waits until there is room for another group
    first token             estimated, since engines do not report it: the group's time divided by the tokens of its
                            longest rollout

Times are read from the log lines of the processes; all share this machine's clock. Figures are over pairs of a version
and a node that got a lease under it; a node that skipped to a later version forms no such pair. Everything is in
seconds by the clock, and depends on the machine's load, which is printed.
"""

import argparse
import dataclasses
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import bubble
from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.harness.crew import Crew
from benchmarks.harness.log_events import Event, events
from benchmarks.paced import paced_run
from benchmarks.paced.paced_run import Pace, PacedFigures
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.demo.demo import Programs, environment, real_programs
from echo2.coordinator.demo.demo_settings import TINY_DEMO, DemoSettings
from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import RunState
from echo2.p2p import multiaddr
from echo2.p2p.errors import Unreachable

SUPPLY: Final = 1.5
STAGES: Final = (
    "export and encode", "checkpoint", "sign and store", "Head signed", "Head on its way", "documents",
    "payload", "running group ends", "apply", "lease refused", "lease", "first token",
)  # fmt: skip


class Journey(NamedTuple):
    """The time from the end of a version's step to a node's first token under it. `seconds`: of each of `STAGES`."""

    version: int
    node: str
    seconds: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.seconds)


def births(coordinator: Sequence[Event]) -> dict[int, list[float]]:
    """Return per version five times: the end of its step, the end of its export, the learner's answer, the store of its
    files, the signature of its Head. Versions without one of them are left out."""
    begun: dict[int, float] = {}
    marks_of: dict[int, list[float]] = {}
    for event in coordinator:
        step = event.fields.get("step")
        if event.name == "step begun" and step is not None:
            begun[step] = event.at
        elif event.name == "step made" and step in begun and event.fields["export_seconds"]:
            ended = begun[step] + event.fields["seconds"]
            marks_of[step] = [ended, ended + event.fields["export_seconds"], event.at]
        elif event.name in ("version stored", "head out") and event.version is not None:
            marks = marks_of.get(event.version, [])
            if len(marks) == {"version stored": 3, "head out": 4}[event.name]:
                marks.append(event.at)
    return {version: marks for version, marks in marks_of.items() if len(marks) == 5}


def journeys(coordinator: Sequence[Event], nodes: Mapping[str, Sequence[Event]]) -> list[Journey]:
    """Return the journey of every pair of a version and a node that got a lease under it. `nodes`: events by node."""
    born = births(coordinator)
    pairs = []
    for node, own in nodes.items():
        for version, marks in born.items():
            after = _arrival(own, version)
            if after is not None:
                # Two processes write these lines: a node may finish a stage before the other process has logged it.
                in_order = accumulate([*marks, *after], max)
                pairs.append(Journey(version, node, tuple(later - sooner for sooner, later in pairwise(in_order))))
    return pairs


def _arrival(own: Sequence[Event], version: int) -> list[float] | None:
    """Return the times at which a node had heard of the version, found an update path, fetched, started and finished
    applying, last asked for a lease, got it, and wrote its first token. None where one is missing."""
    first: dict[str, Event] = {}
    fetched = asked = None
    for event in own:
        if event.name == "payload fetched" and "applying" not in first:
            fetched = event.at
        if event.version != version:
            continue
        if event.name == "lease asked" and "lease received" not in first:
            asked = event.at
        first.setdefault(event.name, event)
    wanted = ("head heard", "way found", "applying", "version held", "lease received", "group generated")
    if fetched is None or asked is None or not all(name in first for name in wanted):
        return None
    heard, resolved, applying, loaded, leased, generated = (first[name] for name in wanted)
    token = leased.at + (generated.at - leased.at) / generated.fields["longest"]
    return [heard.at, resolved.at, fetched, applying.at, loaded.at, asked, leased.at, token]


def p90(values: Sequence[float]) -> float:
    """Return the 90th percentile, by nearest rank."""
    return sorted(values)[math.ceil(0.9 * len(values)) - 1]


def firsts(journeys_seen: Sequence[Journey]) -> list[Journey]:
    """Return the shortest journey of each version."""
    return [
        min((journey for journey in journeys_seen if journey.version == version), key=lambda journey: journey.total)
        for version in sorted({journey.version for journey in journeys_seen})
    ]


def rows(journeys_seen: Sequence[Journey]) -> Iterator[tuple[str, float, float, float, float]]:
    """Yield per stage, and last for their sum: name, median and p90 over the first node of each version, then over all
    nodes."""
    quick = firsts(journeys_seen)
    for place, stage in enumerate(STAGES):
        some, every = ([journey.seconds[place] for journey in group] for group in (quick, journeys_seen))
        yield stage, statistics.median(some), p90(some), statistics.median(every), p90(every)
    some, every = ([journey.total for journey in group] for group in (quick, journeys_seen))
    yield "all of it", statistics.median(some), p90(some), statistics.median(every), p90(every)


def report(journeys_seen: Sequence[Journey], final: RunState) -> int:
    """Print the table and the closing lines; return the exit status."""
    if not journeys_seen:
        print("loop: no node got a lease under a version that a step made: nothing to report")
        return 1
    columns = ["stage, seconds", "first node, median", "p90", "all nodes, median", "p90"]
    table = list(rows(journeys_seen))
    bench.table(columns, table)
    print(
        f"{len({journey.version for journey in journeys_seen})} versions of {final.version}, "
        f"{len(journeys_seen)} pairs of version and node"
    )
    _, median, slow, every, slowest = table[-1]
    print(f"loop: end of step to a first token {median:.2f} s (p90 {slow:.2f} s), reported, no bar")
    print(f"loop: end of step to every node's first token {every:.2f} s (p90 {slowest:.2f} s), reported, no bar")
    idle = "unknown" if final.idle is None else f"{100 * final.idle:.0f} %"
    print(f"loop: learner idle {idle} of its time since its first step, reported, no bar")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="10 steps instead of 25")
    quick = parser.parse_args(arguments).quick
    steps = 10 if quick else 25
    settings = dataclasses.replace(paced_run.TIMED if quick else TINY_DEMO, steps=steps, seconds=600)
    bench.header(
        f"loop: from the end of a step to the first token under it, {settings.nodes} nodes, {steps} steps",
        ["torch", "transformers"],
    )
    with tempfile.TemporaryDirectory(prefix="echo2-loop-") as folder:
        final, journeys_seen = _play(settings, Path(folder))
    print(f"load at the end {os.getloadavg()[0]:.1f}\n")
    reported = report(journeys_seen, final)
    with tempfile.TemporaryDirectory(prefix="echo2-loop-") as folder:
        window, room = paced(2 * steps, Path(folder))
    bubble.table([("window", window), ("room", room)])
    return max(reported, bubble.verdict([window, room], closing(window, room)))


def paced(steps: int, folder: Path) -> tuple[PacedFigures, PacedFigures]:
    """Return the figures of the runs under the window and by room alone. Raises `ProcessFault`."""
    origin = paced_run.made(folder / "made")
    period = paced_run.run_paced(Pace(bubble.CALIBRATING, 3.0, 2.0), origin, folder / "period").period
    window, room = (
        paced_run.run_paced(Pace(steps, SUPPLY, period, windowed=windowed), origin, folder / name)
        for name, windowed in (("window", True), ("room", False))
    )
    return window, room


def closing(window: PacedFigures, room: PacedFigures) -> list[Claim]:
    """Return the claims of the two runs."""
    limit = paced_run.SETTINGS.run["staleness"]
    return [
        Claim("accepted groups", window.accepted, "learned groups", 1.08, at_most=True),
        Claim("mean age", window.age / limit, "S", 0.75, at_most=True),
        Claim("idle, less that under room", window.idle - room.idle, "the learner's time", 0.01, at_most=True),
    ]


def _play(settings: DemoSettings, folder: Path) -> tuple[RunState, list[Journey]]:
    """Run the demo's processes without its faults; return the run's last state and the journeys. Raises
    `ProcessFault`."""
    programs, logs = _logging_programs(), folder / "logs"
    logs.mkdir()
    programs.make(folder / "run", settings, 0)
    crew = Crew(logs, environment(os.environ, folder))
    try:
        crew.start("coordinator", programs.coordinator(folder / "run"))
        final = _finished(crew, programs, settings, folder)
    finally:
        crew.stop()
    told = {path.stem: events(path.read_text(errors="replace").splitlines()) for path in logs.glob("node-*.log")}
    own = (folder / "run" / "logs" / "coordinator.jsonl").read_text(errors="replace")
    return final, journeys(events(own.splitlines()), told)


def _finished(crew: Crew, programs: Programs, settings: DemoSettings, folder: Path) -> RunState:
    """Start the nodes as soon as there is a version; return the run's state once all steps are made. Raises
    `ProcessFault`."""
    names = [f"node-{number}" for number in range(1, settings.nodes + 1)]
    until = time.monotonic() + settings.seconds
    while time.monotonic() < until:
        time.sleep(0.5)
        crew.check(may_end=names)
        with suppress(Unreachable, FileNotFoundError):
            state = status.decode(status.fetch(RunFolder(folder / "run").page.read_text().strip()))
            if state.phase in ("finishing", "finished"):
                return state
            if state.versions and not crew.names()[1:]:
                for name in names:
                    crew.start(name, programs.node(state.invite, folder / name, name, "direct"))
    raise crew.fault(f"the run was not finished within {settings.seconds:.0f} s", "coordinator")


def _logging_programs() -> Programs:
    """Return the demo's programs, with nodes that log at level debug in JSON."""
    real = real_programs()

    def node(invite: str, home: Path, name: str, journey: multiaddr.Route) -> list[str]:
        return [*real.node(invite, home, name, journey), "--log", "debug", "--json-logs"]

    return dataclasses.replace(real, node=node)


if __name__ == "__main__":
    sys.exit(main())
