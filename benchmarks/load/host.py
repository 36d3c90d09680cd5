"""A coordinator as `echo2-coord run` starts it, with stub model processes: `python -m benchmarks.load.host FOLDER`.

Libp2p, group service, database, publisher and page are the product's own: `coordinator.serving.serve`. The process
answers each JSON line on stdin with its figures (`measured`), until stdin ends:

    {"say": "measure"}                at once
    {"say": "freshly"}                after Python and the C library have given back unused memory
    {"say": "forget"}                 after forgetting the longest callback of the event loop

Options: `--commit-milliseconds` is added to each commit of run.sqlite; `--descriptors` limits open files; `--watch`
times every callback of the event loop; `--scorer` names a module that replaces the stub scorer; `--foreign-loopback`
treats each 127.x.y.0/24 but 127.0.0.0/24 as a public subnet.
"""

import argparse
import asyncio
import ctypes
import gc
import json
import logging
import os
import resource
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import structlog

from benchmarks.attacks.foreign_loopback import with_foreign_loopback
from echo2.coordinator import serving
from echo2.coordinator.run import setup

_STUBS: Final = {
    "echo2.engines.host": "benchmarks.load.stub_scorer",
    "echo2.coordinator.learner": "benchmarks.load.stub_learner",
}
_WRITES: Final = ("INSERT", "UPDATE", "DELETE", "REPLACE")


class SlowConnection(sqlite3.Connection):
    """A connection that sleeps `seconds` at each commit, as on a slow disk: at COMMIT, and after a statement outside a
    transaction that writes."""

    seconds = 0.0

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        lone = not self.in_transaction and sql.lstrip().upper().startswith(_WRITES)
        cursor = super().execute(sql, *parameters)
        if (lone and "temp." not in sql) or sql == "COMMIT":
            time.sleep(self.seconds)
        return cursor


def slow_commits(seconds: float) -> None:
    """Make each commit of run.sqlite take `seconds` longer, from now on."""
    SlowConnection.seconds = seconds
    plain = sqlite3.connect

    def connect(database: Any, *arguments: Any, **named: Any) -> sqlite3.Connection:
        if "run.sqlite" in str(database) and "mode=ro" not in str(database):
            named["factory"] = SlowConnection
        connection: sqlite3.Connection = plain(database, *arguments, **named)
        return connection

    sqlite3.connect = connect  # type: ignore[assignment]


class Holds:
    """The longest callback of the event loop: seconds by the clock, and CPU seconds of its thread."""

    def __init__(self) -> None:
        self.longest = self.longest_cpu = 0.0

    def watch(self) -> None:
        """Time every callback from now on."""
        run: Callable[[asyncio.Handle], None] = vars(asyncio.Handle)["_run"]

        def timed(handle: asyncio.Handle) -> None:
            began, cpu = time.perf_counter(), time.thread_time()
            run(handle)
            self.longest = max(self.longest, time.perf_counter() - began)
            self.longest_cpu = max(self.longest_cpu, time.thread_time() - cpu)

        handles: Any = asyncio.Handle
        handles._run = timed


def with_stubs(scorer: str | None) -> None:
    """Make the daemon start the stubs in place of the model processes. `scorer`: replaces the stub scorer."""
    names = vars(serving)
    stubs = {**_STUBS, "echo2.engines.host": scorer} if scorer else _STUBS

    names["learner_process"] = partial(names["learner_process"], module=stubs["echo2.coordinator.learner"])
    names["EngineProcess"] = partial(names["EngineProcess"], module=stubs["echo2.engines.host"])


def measured(holds: Holds) -> dict[str, float]:
    """Return the figures of this process, as `benchmarks.load.station.Measure` names them."""
    return {
        "memory": float(psutil.Process().memory_info().rss),
        "descriptors": float(len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0),
        "cpu": time.process_time(),
        "at": time.monotonic(),
        "loop_seconds": holds.longest,
        "held_cpu": holds.longest_cpu,
    }


def give_back() -> None:
    """Give unused memory back to the system, and SQLite's page caches, which are bounded."""
    gc.collect()
    for candidate in gc.get_objects():
        if issubclass(type(candidate), sqlite3.Connection):  # isinstance would ask the object: some warn, or are gone
            with suppress(sqlite3.Error):  # another thread's connection, or a closed one
                candidate.execute("PRAGMA shrink_memory")
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


async def answer(holds: Holds) -> None:
    """Answer the lines on stdin until it ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while order_text := await reader.readline():
        match json.loads(order_text)["say"]:
            case "forget":
                holds.longest = holds.longest_cpu = 0.0
            case "freshly":
                give_back()
        print(json.dumps(measured(holds)), flush=True)


async def serve(folder: Path, web_port: int) -> None:
    """Serve the run until stdin ends."""
    holds = Holds()
    if _watching():
        holds.watch()
    run = setup.load_run(folder, now=time.time_ns() // 1_000_000, flags={"web": {"port": web_port}})
    work = asyncio.create_task(serving.serve(run))
    answering = asyncio.create_task(answer(holds))
    await asyncio.wait({work, answering}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        await work
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


def _watching() -> bool:
    return "--watch" in sys.argv


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--web-port", type=int, default=0)
    parser.add_argument("--commit-milliseconds", type=float, default=0.0)
    parser.add_argument("--descriptors", type=int, help="the soft limit of open files")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--foreign-loopback", action="store_true")
    parser.add_argument("--scorer", help="a module in place of the stub scorer")
    options = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    if options.descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (options.descriptors, options.descriptors))
    if options.commit_milliseconds:
        slow_commits(options.commit_milliseconds / 1000)
    if options.foreign_loopback:
        with_foreign_loopback()
    with_stubs(options.scorer)
    asyncio.run(serve(options.folder, options.web_port))


if __name__ == "__main__":
    main()
