"""Measure the CPU that the volunteer's program takes from a command to its answer: `--help`, `status` of a daemon.

The anchor is a Python that imports typer and rich, without which the program could print no help. All three are
processes of this interpreter, taken in turn. The daemon is its control socket, in this process, whose time is not
counted.
"""

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.bench import Claim, Measured, close, header, ratio, table, take_turns
from echo2.runtime.control_client import socket_path
from echo2.runtime.control_socket import ControlSocket
from echo2.runtime.python_command import code_command, module_command

ANCHOR: Final = "typer and rich"
BARS: Final = {"--help": 2.0, "status": 4.0}


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 starts of each instead of 15")
    options = parser.parse_args()
    header("start: CPU from a command to its answer", ["typer", "rich"])
    with tempfile.TemporaryDirectory() as home, _daemon(Path(home)):
        node = partial(module_command, "echo2.node.cli")
        commands = {
            ANCHOR: code_command("import typer, rich"),
            "--help": node("--help"),
            "status": node("status", "--home", home),
        }
        starts = {name: partial(_start, command) for name, command in commands.items()}
        taken = take_turns(starts, 5 if options.quick else 15)
    table(["command", "CPU s"], [[name, min(one.cpu for one in some)] for name, some in taken.items()])
    claims = [
        Claim(name.strip("-"), ratio(taken[ANCHOR], taken[name]), ANCHOR, bar, at_most=True)
        for name, bar in BARS.items()
    ]
    return close(claims)


@contextmanager
def _daemon(home: Path) -> Iterator[None]:
    """Answer `status` at a home's control socket, in a thread."""

    async def status(asked: dict[str, Any]) -> dict[str, Any]:
        return {"state": "working", "version": 7}

    async def serve() -> None:
        server = ControlSocket(socket_path(home), {"status": status}, logger="node")
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.run())
            await server.listening.wait()
            up.set()
            await stop.wait()
            serving.cancel()

    loop, up, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    try:
        up.wait()
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def _start(command: Sequence[str]) -> Measured:
    """Run a command to its end."""
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(1, cpu, time.perf_counter() - wall)


if __name__ == "__main__":
    sys.exit(main())
