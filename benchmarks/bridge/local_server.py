"""Play a taskset's episodes by verifiers alone, with an inference server of our engine in this process: the anchor.

this process    HTTP server on loopback ── engine's process
local_rollouts.py, in verifiers' Python, with its environment server
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from benchmarks.harness.bench import Measured, cpu_of
from echo2.engines.engine import Job
from echo2.engines.process.process import EngineProcess
from echo2.tasks.verifiers.taskset_file import usual_python

_SCRIPT: Final = Path(__file__).with_name("local_rollouts.py")


class EngineServer:
    """The two paths that verifiers calls, answered by an engine. `ends`: tokens that end a turn. `written`: episode ->
    turns that it answers instead of the engine's. `tokens`: sampled so far."""

    def __init__(self, engine: EngineProcess, ends: Sequence[int], limit: int) -> None:
        self._engine, self._ends, self._limit = engine, ends, limit
        self.written: dict[str, list[list[int]]] = {}
        self.tokens, self._calls = 0, 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Yield the server's address while it runs."""
        app = web.Application(client_max_size=1 << 24)
        app.add_routes([web.get("/v1/models", self._models), web.post("/inference/v1/generate", self._generate)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy"}]})

    async def _generate(self, request: web.Request) -> web.Response:
        name, body = request.headers["X-Episode"], await request.json()
        if name in self.written:
            tokens = self.written[name].pop(0)
            logprobs = [0.0] * len(tokens)
        else:
            self._calls += 1
            job = Job(
                prompt=body["token_ids"], seeds=[self._calls.to_bytes(16, "big")], limit=self._limit,
                eos=self._ends[0], other_ends=tuple(self._ends[1:]), task="x", task_version=1, split="train", index=0,
                single_turn=True,
            )  # fmt: skip
            (sample,) = await self._engine.generate(job)
            tokens, logprobs = [int(one) for one in sample.tokens], [float(one) for one in sample.logprobs]
            self.tokens += len(tokens)
        entries = [
            {"token": f"token_id:{token}", "logprob": value} for token, value in zip(tokens, logprobs, strict=True)
        ]
        finish = "stop" if tokens[-1] in self._ends else "length"
        choice = {"index": 0, "token_ids": tokens, "finish_reason": finish, "logprobs": {"content": entries}}
        return web.json_response({"request_id": name, "choices": [choice]})


class LocalRollouts:
    """The process that plays episodes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout

    async def rewards(self, episodes: Sequence[tuple[str, int]]) -> dict[str, float]:
        """Play episodes, each a name and a row's place in the taskset; return their rewards by name."""
        self.order(episodes)
        told = [json.loads(await self._out.readline()) for _ in episodes]
        return {one["name"]: one["reward"] for one in told}

    def order(self, episodes: Sequence[tuple[str, int]]) -> None:
        """Begin to play episodes, for `measure`."""
        self._in.write(json.dumps({"episodes": list(episodes)}).encode() + b"\n")

    async def measure(self, episodes: int) -> Measured:
        """Wait until so many more of the ordered episodes have ended; return what they cost all processes."""
        cpu, wall = cpu_of(os.getpid()), time.perf_counter()
        for _ in range(episodes):
            if not await self._out.readline():
                raise RuntimeError("verifiers' process has ended")
        return Measured(episodes, cpu_of(os.getpid()) - cpu, time.perf_counter() - wall)


@asynccontextmanager
async def rolling_out(settings: Mapping[str, Any]) -> AsyncIterator[LocalRollouts]:
    """Run local_rollouts.py with `settings`. Raises `RuntimeError` if it does not start."""
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = await asyncio.create_subprocess_exec(
        str(usual_python()), str(_SCRIPT), json.dumps(settings), stdin=-1, stdout=-1, env=surroundings
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not await process.stdout.readline():
            raise RuntimeError("verifiers' process has not started")
        yield LocalRollouts(process)
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(20):
                await process.wait()
        except TimeoutError:
            process.kill()
