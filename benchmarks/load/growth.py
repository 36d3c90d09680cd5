"""Measure a coordinator's start and its recurring work, after a short run and after a long one.

Each figure is CPU time of the coordinator's process: a lease request and a judged group through its handlers, as
benchmarks/load/cost.py measures them; a version from the learner's batch to the signed Head, less the step itself; a
tick as the mean over many fast ticks, one in 30 of which tidies up, as in a real run. Long and short run alternate.
Work that a start causes once is awaited first, as its CPU would count for the figures taken beside it: the ledger is
verified in a thread, for minutes after a million groups, and the first tidying drops rows that an earlier program left.

For the page, a coordinator runs in a process of its own, and three tabs request the page over HTTP; each callback of
the event loop is timed.
"""

import asyncio
import gzip
import logging
import statistics
import threading
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from benchmarks.attacks.light_node import lease_of, opened
from benchmarks.load.bare import Bare, bare, until
from benchmarks.load.large import make_large, shape_of
from benchmarks.load.light import LightNode
from benchmarks.load.station import station
from echo2.coordinator.database.database import Database
from echo2.coordinator.run import setup
from echo2.coordinator.run.setup import Run

GROUPS: Final = 10
"""Groups of a batch, and so of a cycle: leased, judged, drawn."""
TICK: Final = 0.05
"""Seconds between two of the fast ticks."""
CHECK_SECONDS: Final = 600.0
"""Most seconds until the ledger of a million groups is verified."""
TABS: Final = 3
PATHS: Final = ("/live", "/api/v1/run")


class Cost(NamedTuple):
    """Seconds of CPU; `start_wall`: seconds by the clock. `tick`: the mean. `ask` (a lease request), `judged` (a group)
    and `version`: the median."""

    start: float
    start_wall: float
    tick: float
    ask: float
    judged: float
    version: float


class Picture(NamedTuple):
    """Cost of the page with three tabs open. `loop_seconds`, `held_cpu`: longest callback of the event loop, in seconds
    by the clock and of CPU. `cpu`: share of a core that the main process uses. `answers`: their number; `nbytes`: of
    the largest one, decompressed."""

    loop_seconds: float
    held_cpu: float
    cpu: float
    answers: int
    nbytes: int


def run_with_history(folder: Path, groups: int) -> Run:
    """Return the run folder of a run of `groups` groups; make it where it does not exist."""
    now = time.time_ns() // 1_000_000
    if (folder / "coordinator.toml").exists():
        return setup.load_run(folder, now=now, env={})
    return make_large(
        folder, shape_of(groups, now=now), leases={"minimum_seconds": 600.0}, guard={"warn_only": ["floor"]}
    )


def compared(folders: Sequence[Path], turns: int, cycles: int, ticks: int) -> list[Cost]:
    """Measure the folders alternately, `turns` times, each time in a new process; return the least of each figure,
    since other work only adds to it. `cycles`, `ticks`: of one measurement. The runs are longer afterwards."""
    costs_of: dict[Path, list[Cost]] = {folder: [] for folder in folders}
    for _ in range(turns):
        for folder in folders:
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                costs_of[folder].append(process.submit(measured, folder, cycles, ticks).result())
    return [Cost(*map(min, zip(*costs, strict=True))) for costs in costs_of.values()]


def measured(folder: Path, cycles: int, ticks: int) -> Cost:
    """Measure a run folder once, in this process."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    return asyncio.run(_measured(run_with_history(folder, 0), cycles, ticks))


async def _measured(run: Run, cycles: int, ticks: int) -> Cost:
    with Database.open(run.folder.database) as database:
        database.found_sound(time.time_ns() // 1_000_000)  # the check runs once, and belongs to no tick or group
    async with bare(run) as coordinator:
        started = coordinator.started
        daemon = coordinator.coordinator
        # The folder has the documents of every version, as an earlier program left them: the first call of `retain`
        # drops most of them, once.
        await daemon.publisher.retain(daemon.group_service.oldest_needed(), 1 << 50, 1 << 50)
        await until(lambda: daemon.ledger_check.last is not None, CHECK_SECONDS)
        rounds = [await _cycle(coordinator) for _ in range(cycles + 1)][1:]
        daemon.tick_seconds, daemon.tidy_seconds = TICK, 30 * TICK
        await asyncio.sleep(1.1)  # the tick that sleeps now is the last slow one
        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.sleep(ticks * TICK)
        share = (time.process_time() - cpu) / (time.perf_counter() - wall)
    ask, judged, version = (statistics.median(column) for column in zip(*rounds, strict=True))
    return Cost(*started, share * TICK, ask, judged, version)


async def _cycle(coordinator: Bare) -> tuple[float, float, float]:
    """Make one batch of groups and a version; return the CPU seconds of a lease request, of a judged group, and of the
    version."""
    nodes = [LightNode(coordinator.terms()) for _ in range(GROUPS)]
    for node in nodes:
        await coordinator.ask("hello", node.hello())
    ask, answers = await _each(coordinator, "lease", [node.ask() for node in nodes])
    bodies = [opened(answer) for answer in answers]
    leases = [lease_of(body) for body in bodies if isinstance(body, bytes)]
    assert len(leases) == GROUPS, f"no lease: {next(body for body in bodies if not isinstance(body, bytes))}"
    submissions = [node.submit(lease) for node, lease in zip(nodes, leases, strict=True)]
    before, cpu = _decided(coordinator), time.process_time()
    await asyncio.gather(*(coordinator.ask("submit", submission) for submission in submissions))
    await until(lambda: _decided(coordinator) >= before + GROUPS)
    judged = (time.process_time() - cpu) / GROUPS
    for node, lease in zip(nodes, leases, strict=True):
        await coordinator.ask("verdicts", node.verdicts([], [lease.id]))
    return ask, judged, await _version(coordinator)


async def _version(coordinator: Bare) -> float:
    publisher, group_service, learner = (
        coordinator.coordinator.publisher,
        coordinator.coordinator.group_service,
        coordinator.learner,
    )
    assert publisher.latest is not None
    version = publisher.latest.version
    cpu, spent = time.process_time(), learner.spent
    learner.let.set()
    await until(lambda: group_service.progress is not None and group_service.progress.version > version)
    return time.process_time() - cpu - (learner.spent - spent)


async def _each(coordinator: Bare, method: str, requests: Sequence[bytes]) -> tuple[float, list[bytes]]:
    """Send requests one by one; return the median CPU seconds, and the answers."""
    spent, answers = list[float](), list[bytes]()
    for request in requests:
        cpu = time.process_time()
        answers.append(await coordinator.ask(method, request))
        spent.append(time.process_time() - cpu)
    return statistics.median(spent), answers


def _decided(coordinator: Bare) -> int:
    return int(coordinator.database.value("SELECT coalesce(max(rowid), 0) FROM verdicts"))


def picture(run: Run, seconds: float) -> Picture:
    """Measure the page of this run's coordinator with open tabs."""
    with station(run.folder.path, sections={}, options=("--watch",), run=run) as place:
        statuses: list[int] = []
        stopping = threading.Event()
        tabs = [threading.Thread(target=_tab, args=(place.page, statuses, stopping)) for _ in range(TABS)]
        place.measure("forget")
        began = place.measure("forget")
        for tab in tabs:
            tab.start()
        time.sleep(seconds)
        ended = place.measure()
        stopping.set()
        for tab in tabs:
            tab.join()
    return Picture(
        ended.loop_seconds,
        ended.held_cpu,
        (ended.cpu - began.cpu) / (ended.at - began.at),
        len(statuses),
        max(statuses, default=0),
    )


def _tab(port: int, statuses: list[int], stopping: threading.Event) -> None:
    """Send the requests of an open tab, as often as it does; append the bytes of each answer to `statuses`."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while not stopping.is_set():
        for path in PATHS:
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept-Encoding": "gzip"})
            try:
                with opener.open(request, timeout=60) as answer:
                    body = answer.read()
                    packed = answer.headers.get("Content-Encoding") == "gzip"
                    statuses.append(len(gzip.decompress(body) if packed else body))
            except OSError:
                continue
        stopping.wait(2.0)
