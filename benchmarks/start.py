"""Measure the CPU that both programs take from a command to its answer: `--help`, and `status` of a daemon.

The anchor is a Python that imports typer and rich, without which no program could print its help. All of them are
processes of this interpreter, taken in turn. The node is its control socket and the coordinator its page, in this
process, whose time is not counted.
"""

import argparse
import asyncio
import http.server
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

import msgspec

from benchmarks.harness.bench import Claim, Measured, close, header, ratio, table, take_turns
from echo2.coordinator.database.run_folder import RunFolder, lock_run
from echo2.coordinator.metrics import status
from echo2.runtime.control_client import socket_path
from echo2.runtime.control_socket import ControlSocket
from echo2.runtime.python_command import code_command, module_command
from tests.support import pictures
from tests.support.operator_keys import RUN, Operator

ANCHOR: Final = "typer and rich"
NODE: Final = "echo2-node"
COORDINATOR: Final = "echo2-coord"
BARS: Final = {
    f"{NODE} --help": 2.0, f"{NODE} status": 4.0, f"{COORDINATOR} --help": 2.0, f"{COORDINATOR} status": 4.0,
}  # fmt: skip


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 starts of each instead of 15")
    options = parser.parse_args()
    header("start: CPU from a command to its answer", ["typer", "rich"])
    with tempfile.TemporaryDirectory() as home, _daemon(Path(home)), _coordinator(Path(home)):
        commands = {ANCHOR: code_command("import typer, rich")}
        for program, module in ((NODE, "echo2.node.cli"), (COORDINATOR, "echo2.coordinator.cli")):
            commands[f"{program} --help"] = module_command(module, "--help")
            commands[f"{program} status"] = module_command(module, "status", "--home", home)
        starts = {name: partial(_start, command) for name, command in commands.items()}
        taken = take_turns(starts, 5 if options.quick else 15)
    table(["command", "CPU s"], [[name, min(one.cpu for one in some)] for name, some in taken.items()])
    claims = [
        Claim(name.replace("--", ""), ratio(taken[ANCHOR], taken[name]), ANCHOR, bar, at_most=True)
        for name, bar in BARS.items()
    ]
    return close(claims)


@contextmanager
def _daemon(home: Path) -> Iterator[None]:
    """Answer `status` at a home's control socket, in a thread."""

    async def answer(asked: dict[str, Any]) -> dict[str, Any]:
        return {"state": "working", "version": 7}

    async def serve() -> None:
        server = ControlSocket(socket_path(home), {"status": answer}, logger="node")
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


@contextmanager
def _coordinator(home: Path) -> Iterator[None]:
    """Make a run folder with a signed Root and the address of its page, hold it as a coordinator does, and answer there
    with the state of a busy run, in a thread."""
    body = msgspec.json.encode(msgspec.structs.replace(pictures.BUSY, run=RUN.hex()))

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == status.PATH else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    folder = RunFolder(home)
    folder.roots.mkdir()
    (folder.roots / "1.root").write_bytes(Operator().root_document(1))
    with lock_run(folder), http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        folder.page.write_text(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def _start(command: Sequence[str]) -> Measured:
    """Run a command to its end."""
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(1, cpu, time.perf_counter() - wall)


if __name__ == "__main__":
    sys.exit(main())
