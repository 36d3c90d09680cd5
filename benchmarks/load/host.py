"""A coordinator as `echo2-coord run` starts it, with stub model processes: `python -m benchmarks.load.host FOLDER`.

Libp2p, group service, database, publisher and page are the product's own: `serving.serve`. The process
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
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import structlog

from benchmarks.attacks import foreign_loopback
from benchmarks.load import slow_connection
from benchmarks.load.watched_loop import WatchedLoop
from echo2.coordinator.command_line import serving
from echo2.coordinator.run import setup
from echo2.runtime.stand_ins import VARIABLE


def stand_ins(options: argparse.Namespace) -> str:
    """Return the parts that are not the daemon's own."""
    parts = {"learner": "benchmarks.load.stub_learner", "scorer": options.scorer}
    if options.foreign_loopback:
        parts["subnets"] = foreign_loopback.MODULE
    if options.commit_milliseconds:
        parts["connection"] = slow_connection.MODULE
    return " ".join(f"{part}={module}" for part, module in parts.items())


def measured(loop: WatchedLoop) -> dict[str, float]:
    """Return the figures of this process, as `benchmarks.load.station.Measure` names them."""
    return {
        "memory": float(psutil.Process().memory_info().rss),
        "descriptors": float(len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0),
        "cpu": time.process_time(),
        "at": time.monotonic(),
        "loop_seconds": loop.longest,
        "held_cpu": loop.longest_cpu,
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


async def answer(loop: WatchedLoop) -> None:
    """Answer the lines on stdin until it ends."""
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while order_text := await reader.readline():
        match json.loads(order_text)["say"]:
            case "forget":
                loop.longest = loop.longest_cpu = 0.0
            case "freshly":
                give_back()
        print(json.dumps(measured(loop)), flush=True)


async def serve(folder: Path, web_port: int) -> None:
    """Serve the run until stdin ends."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, WatchedLoop)
    run = setup.load_run(folder, now=time.time_ns() // 1_000_000, flags={"web": {"port": web_port}})
    work = asyncio.create_task(serving.serve(run))
    answering = asyncio.create_task(answer(loop))
    await asyncio.wait({work, answering}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        await work
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--web-port", type=int, default=0)
    parser.add_argument("--commit-milliseconds", type=float, default=0.0)
    parser.add_argument("--descriptors", type=int, help="the soft limit of open files")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--foreign-loopback", action="store_true")
    parser.add_argument("--scorer", default="benchmarks.load.stub_scorer", help="a module in its place")
    options = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    if options.descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (options.descriptors, options.descriptors))
    os.environ[slow_connection.MILLISECONDS] = str(options.commit_milliseconds)
    os.environ[VARIABLE] = stand_ins(options)
    with asyncio.Runner(loop_factory=partial(WatchedLoop, options.watch)) as runner:
        runner.run(serve(options.folder, options.web_port))


if __name__ == "__main__":
    main()
