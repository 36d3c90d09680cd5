"""The page with 1,100 idle connections: it answers, and the daemon keeps descriptors for its own files."""

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

FILES = 1024
IDLE = 1100
SERVE = """
import asyncio, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, 2 * (int(sys.argv[1]),))
from echo2.coordinator.web.site import application, serve_web
from echo2.runtime.files import writing

class Shown:
    async def current_state(self): ...
    def nodes(self, after, most): ...
    def sealed_runspec(self): return b"a RunSpec"

async def main():
    site = await serve_web(application(Shown()), "127.0.0.1", 0)
    print(site.port, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            with writing(Path(line.strip())) as file:
                file.write(b"a Head")
            print("written", flush=True)
        except OSError as error:
            print(f"the Head is not written: {error.strerror}", flush=True)
asyncio.run(main())
"""


@contextmanager
def many_files() -> Iterator[None]:
    """Raise this process's limit of descriptors for the duration of a test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * IDLE), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def healthy(port: int) -> bytes:
    """Return the answer on a new connection; empty if none arrives in time."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as newcomer:
        try:
            newcomer.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return newcomer.recv(1000)
        except OSError:
            return b""


@pytest.mark.slow
def test_with_1100_idle_connections_at_1024_descriptors_the_page_answers_and_a_head_is_written(tmp_path: Path) -> None:
    """Check the answers and a written file. On 439044d idle connections take every descriptor: no new connection is
    answered, no Head written."""
    argv = [sys.executable, "-c", SERVE, str(FILES)]
    with (
        many_files(),
        ExitStack() as sockets,
        subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            port = int(child.stdout.readline())
            for _ in range(IDLE):
                sockets.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            answered = [healthy(port)[:12] for _ in range(3)]
            print(tmp_path / "head", file=child.stdin, flush=True)
            said = child.stdout.readline().strip()
            taken = len(os.listdir(f"/proc/{child.pid}/fd")) if sys.platform == "linux" else 0
        finally:
            child.kill()
    assert (said, answered) == ("written", [b"HTTP/1.1 200"] * 3), f"{taken} descriptors are taken"
    assert taken < FILES - 600
