"""One run of real processes whose learner and engines take the times they are given, and its figures.

Coordinator, learner, scorer and nodes are the product's, over libp2p on the loopback, with the tiny model. A step lasts
`step_seconds`, and a node makes a group in `group_seconds`: so supply and need are known, and the processor is idle
most of the time. Figures are of the steps after the first `LEFT_OUT`, in which the nodes get their first weights.
"""

import dataclasses
import json
import os
import shutil
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from anyio.from_thread import start_blocking_portal

from benchmarks.harness.crew import Crew
from benchmarks.harness.delay_proxy import delay_proxy
from benchmarks.harness.log_events import Event, events
from benchmarks.paced import paced_host, paced_learner, room_window
from benchmarks.paced.paced_host import AT_ONCE, GROUP_SECONDS
from benchmarks.paced.paced_learner import STEP_SECONDS
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.demo.demo import environment, real_programs
from echo2.coordinator.demo.demo_settings import TINY_DEMO, DemoSettings
from echo2.coordinator.demo.processes import ProcessorTimes
from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import RunState
from echo2.p2p.errors import Unreachable
from echo2.runtime.stand_ins import VARIABLE

LEFT_OUT: Final = 5
BATCH: Final = 8
"""Groups per step."""
NODES: Final = 4
TIMED: Final = dataclasses.replace(
    TINY_DEMO,
    warm_up={**TINY_DEMO.warm_up, "steps": 20},
    more={"guard": {"warn_only": ["cut", "too-hard", "floor", "no-signal", "same-answer"]}},
)
"""The demo's settings with a short warm-up: where times are given, the policy's skill does not count, and no run is
paused for the lack of it."""
SETTINGS: Final = dataclasses.replace(
    TIMED,
    run={**TINY_DEMO.run, "group_size": 4, "batch_groups": BATCH, "staleness": 8, "heldout": 32,
         "evaluate_every": 1000},
)  # fmt: skip
_LOOK: Final = 0.25
"""Seconds between two looks at the run's state."""


@dataclasses.dataclass(frozen=True)
class Pace:
    """The times of a run. `supply`: of the nodes, in units of the need of a learner whose step lasts `period` seconds:
    `step_seconds` and what the coordinator adds. `windowed`: under the window of leases; else as much as S allows.
    `batch`: groups per step. `at_once`: groups that a node makes at a time. `replaced`: seconds after which the oldest
    node is killed and another one starts; None: never. `latency`: of the coordinator's line, seconds one way. `times`:
    seconds of a group in each node; empty: `group_seconds` in all."""

    steps: int
    supply: float
    period: float
    step_seconds: float = 2.0
    windowed: bool = True
    batch: int = BATCH
    nodes: int = NODES
    at_once: int = 1
    replaced: float | None = None
    latency: float = 0.0
    times: tuple[float, ...] = ()

    @property
    def group_seconds(self) -> float:
        """Seconds of a group in one node."""
        return self.nodes * self.at_once * self.period / (self.supply * self.batch)


class PacedFigures(NamedTuple):
    """Figures of a run. `idle`: share of the learner's time. `period`: seconds of a step, with its answer's way.
    `accepted`: groups per learned group, without those that still wait at the end. `age`: mean, in steps. `busy`: share
    of the machine's processors. `supply`: as `Pace.supply`, by the measured period."""

    idle: float
    period: float
    accepted: float
    age: float
    busy: float
    supply: float


class Looked(NamedTuple):
    """The run's state at a moment, and the times of the processors until then."""

    state: RunState
    processors: ProcessorTimes


def made(folder: Path, settings: DemoSettings = SETTINGS, seed: int = 0) -> Path:
    """Make the run folder of which each run is a copy. Raises `LocalFault`."""
    (folder / "tmp").mkdir(parents=True)
    real_programs().make(folder / "run", settings, seed)
    return folder / "run"


def run_paced(pace: Pace, origin: Path, folder: Path) -> PacedFigures:
    """Run a copy of `origin` in `folder`, and return its figures. Raises `ProcessFault`."""
    first, last = looks(pace, origin, folder)
    own = (folder / "run" / "logs" / "coordinator.jsonl").read_text(errors="replace")
    return figures(pace, events(own.splitlines()), first, last)


def looks(pace: Pace, origin: Path, folder: Path) -> tuple[Looked, Looked]:
    """Run a copy of `origin` in `folder`; return the first look after `LEFT_OUT` steps and the last one before it
    finishes. Raises `ProcessFault`."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    (folder / "tmp").mkdir()
    shutil.copytree(origin, folder / "run")
    parts = [f"learner={paced_learner.MODULE}", f"engine={paced_host.MODULE}"]
    if not pace.windowed:
        parts.append(f"window={room_window.MODULE}")
    times = {STEP_SECONDS: f"{pace.step_seconds}", GROUP_SECONDS: f"{pace.group_seconds}", AT_ONCE: f"{pace.at_once}"}
    crew = Crew(logs, {**environment(os.environ, folder), **times, VARIABLE: " ".join(parts)})
    coordinator = [*real_programs().coordinator(folder / "run"), "--set", f"run.steps={pace.steps}"]
    with ExitStack() as stack:
        if pace.latency:
            listen, far = stack.enter_context(_far_line(pace.latency))
            coordinator += ["--set", f"network.listen={json.dumps([listen])}"]
            coordinator += ["--set", f"network.advertise={json.dumps([far])}"]
        stack.callback(crew.stop)
        crew.start("coordinator", coordinator)
        return _watched(pace, crew, folder)


@contextmanager
def _far_line(seconds: float) -> Iterator[tuple[str, str]]:
    """Yield the address at which the coordinator listens, and the one of a line to it that adds `seconds` each way."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(delay_proxy(port, seconds)) as far:
        yield f"/ip4/127.0.0.1/tcp/{port}", f"/ip4/127.0.0.1/tcp/{far}"


def figures(pace: Pace, logged: Sequence[Event], first: Looked, last: Looked) -> PacedFigures:
    """Return the figures of the time between two looks."""
    since, until = first.state.step, last.state.step
    begun = {event.fields["step"]: event.at for event in logged if event.name == "step begun"}
    ended = {event.fields["step"]: event.at for event in logged if event.name == "step made"}
    steps = [step for step in range(since + 1, until) if step in ended and step + 1 in begun]
    idle = sum(begun[step + 1] - ended[step] for step in steps)
    period = statistics.fmean(ended[step] - begun[step] for step in steps)
    learned = (until - since) * pace.batch
    accepted = (last.state.accepted - last.state.buffered) - (first.state.accepted - first.state.buffered)
    ages = [
        late - early
        for late, early in zip(
            last.state.staleness, [*first.state.staleness, *[0] * len(last.state.staleness)], strict=False
        )
    ]
    return PacedFigures(
        idle=idle / (idle + period * len(steps)),
        period=period,
        accepted=accepted / learned,
        age=sum(age * groups for age, groups in enumerate(ages)) / max(1, sum(ages)),
        busy=first.processors.share_until(last.processors),
        supply=pace.nodes * pace.at_once * period / (pace.group_seconds * pace.batch),
    )


def _watched(pace: Pace, crew: Crew, folder: Path) -> tuple[Looked, Looked]:
    """Start the nodes as soon as there is a version; return the two looks. Raises `ProcessFault`."""
    nodes = _Nodes(pace, crew, folder)
    seen = list[Looked]()
    until = time.monotonic() + 120 + 5 * pace.steps * max(pace.step_seconds, pace.period)
    while time.monotonic() < until:
        time.sleep(_LOOK)
        crew.check(may_end=nodes.names)
        with suppress(Unreachable, FileNotFoundError):
            state = status.decode(status.fetch(RunFolder(folder / "run").page.read_text().strip()))
            if state.versions:
                nodes.keep(state.invite)
            if state.phase in ("finishing", "finished"):
                return seen[0], seen[-1]
            if state.phase == "paused":
                raise crew.fault("the run is paused", "coordinator")
            if state.step >= LEFT_OUT:
                seen[1:] = [_look(state)] if seen else []
                seen = seen or [_look(state)]
    raise crew.fault(f"the run was not finished after {pace.steps} steps' time", "coordinator")


def node_name(place: int) -> str:
    """Return the name of the node that is started in this place, from 0 on."""
    return f"node-{place + 1}"


class _Nodes:
    """The nodes of a run. `names`: of all that were started."""

    def __init__(self, pace: Pace, crew: Crew, folder: Path) -> None:
        self._pace, self._crew, self._folder = pace, crew, folder
        self._replaced_at = 0.0
        self.names: list[str] = []

    def keep(self, invite: str) -> None:
        """Start the nodes that are lacking, and replace the oldest one when it is time (`Pace.replaced`)."""
        now = time.monotonic()
        if not self.names:
            self._replaced_at = now
            for _ in range(self._pace.nodes):
                self._start(invite)
        elif self._pace.replaced is not None and now >= self._replaced_at + self._pace.replaced:
            self._replaced_at += self._pace.replaced
            self._crew.kill(self.names[-self._pace.nodes])
            self._start(invite)

    def _start(self, invite: str) -> None:
        number, times = len(self.names), self._pace.times
        name = node_name(number)
        own = {GROUP_SECONDS: f"{times[number % len(times)]}"} if times else {}
        self._crew.start(name, real_programs().node(invite, self._folder / name, name, "direct"), own)
        self.names.append(name)


def _look(state: RunState) -> Looked:
    return Looked(state, ProcessorTimes.now())
