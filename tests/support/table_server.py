"""A server with the end points of vLLM that engines.server uses, over a bigram table that it is sent as weights. It
follows the rules, but for the fault that a test gives it."""

import asyncio
import base64
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from echo2.engines.sampling import sampling_reference

ALTERNATIVES = 8
HANG = 3600.0


class TableServer:
    """`fault`: what it does wrong, or empty; may be changed at any time. `tokens`: size of its vocabulary. `asked`:
    number of requests to generate. `settings`: as /server_info says them. `elsewhere`: the address of a redirection."""

    def __init__(self, tokens: int) -> None:
        self.fault, self.asked, self.address, self.elsewhere = "", 0, "", ""
        self.tokens = tokens
        self.table: NDArray[np.float32] = np.zeros((tokens, tokens), np.float32)
        self._old = self.table
        self.version = "default"
        self.settings: dict[str, Any] = {
            "model_config": {
                "dtype": "torch.float32", "logprobs_mode": "raw_logprobs", "max_model_len": 512,
                "logits_processors": ["echo2.engines.vllm.noise_v1:SeededNoise"],
            },
            "scheduler_config": {"max_num_seqs": 24, "async_scheduling": False},
            "device_config": {"device_type": "cpu"}, "weight_transfer_config": {"backend": "echo2"},
            "speculative_config": None,
        }  # fmt: skip
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.add_routes([
            web.get("/version", self._version), web.get("/server_info", self._info),
            web.get("/weight_info", self._weight_info), web.get("/props", self._other_program),
            web.get("/get_model_info", self._other_program),
            web.post("/inference/v1/generate", self._generate), web.post("/start_weight_update", self._begin),
            web.post("/update_weights", self._update), web.post("/finish_weight_update", self._finish),
            web.post("/reset_prefix_cache", self._reset),
        ])  # fmt: skip
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def stop(self) -> None:
        """Close the port and all connections, as a process that dies."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()

    @contextmanager
    def running(self) -> Iterator["TableServer"]:
        """Run it in a thread of its own."""
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(self.start(), self._loop).result()
        try:
            yield self
        finally:
            self.stop()
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    async def _stop(self) -> None:
        """Python 3.11 leaks the socket of a connection that the port has taken and that the closed server no longer
        has (CPython gh-109564): what waits at the port becomes a connection first. Closed ones release their sockets
        in the next rounds."""
        await _some_rounds()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        await _some_rounds()

    async def _version(self, request: web.Request) -> web.Response:
        if self.fault in ("llama-server", "SGLang", "another program"):
            raise web.HTTPNotFound
        return web.json_response({"version": "0.31.0" if self.fault == "an old version" else "0.32.0"})

    async def _other_program(self, request: web.Request) -> web.Response:
        if {"/props": "llama-server", "/get_model_info": "SGLang"}[request.path] != self.fault:
            raise web.HTTPNotFound
        return web.json_response({})

    async def _info(self, request: web.Request) -> web.Response:
        if self.fault == "no settings":
            raise web.HTTPNotFound
        return web.json_response({"vllm_config": self.settings, "vllm_env": {}})

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.version})

    async def _begin(self, request: web.Request) -> web.Response:
        self._old, self.table = self.table, self.table.copy()
        return web.json_response({"message": "started"})

    async def _update(self, request: web.Request) -> web.Response:
        if self.fault == "no room":
            return web.json_response({"error": {"message": "CUDA out of memory"}}, status=500)
        for patch in (await request.json())["update_info"].get("patches", []):
            if (patch["name"], patch["shape"]) != ("table", [self.tokens, self.tokens]):
                return web.json_response({"error": {"message": f"there is no {patch['name']}"}}, status=500)
            bits = np.frombuffer(base64.b64decode(patch["values"]), "<u2").astype(np.uint32) << 16
            where = slice(None) if patch["index"] is None else np.frombuffer(base64.b64decode(patch["index"]), "<i8")
            self.table.reshape(-1)[where] = bits.view(np.float32)
        return web.json_response({"message": "updated"})

    async def _finish(self, request: web.Request) -> web.Response:
        if self.fault == "old weights":
            self.table = self._old
        if self.fault != "old version":
            self.version = (await request.json())["weight_version"]
        return web.json_response({"message": "finished"})

    async def _reset(self, request: web.Request) -> web.Response:
        return web.json_response({"success": self.fault != "a cache that others hold"})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        body = await request.json()
        if self.fault == "hangs":
            await asyncio.sleep(HANG)
        if self.fault == "errors":
            return web.json_response({"error": {"message": "an illegal memory access"}}, status=500)
        if self.fault == "a redirection":
            raise web.HTTPTemporaryRedirect(self.elsewhere)
        if self.fault == "too much":
            return web.Response(body=b'{"choices":[' + b"[]," * (1 << 20) + b"0]}")
        if self.fault == "escapes":
            return web.Response(body=b"\x1b[2J\x1b[31mall is well\xff")
        if self.fault == "no JSON":
            return web.Response(text="<html>502 Bad Gateway</html>")
        if self.fault == "dies":
            assert request.transport is not None
            request.transport.abort()
            runner, self._runner = self._runner, None
            if runner is not None:
                self._ending = self._loop.create_task(runner.cleanup())
        return web.json_response({"choices": [self._choice(body["token_ids"], body["sampling_params"])]})

    def _choice(self, prompt: list[int], params: dict[str, Any]) -> dict[str, Any]:
        seed = (params.get("extra_args") or {}).get("echo2_seed")
        first = (params.get("extra_args") or {}).get("echo2_first", 0)
        tokens: list[int] = []
        logged: list[dict[str, Any]] = []
        while len(tokens) < params["max_tokens"] and (not tokens or tokens[-1] not in params.get("stop_token_ids", [])):
            logprobs = self._logprobs([*prompt, *tokens][-1])
            tokens.append(self._token(logprobs, seed, first + len(tokens)))
            best = np.argsort(-logprobs)[:ALTERNATIVES].tolist()
            value = float("nan") if self.fault == "NaN" else float(logprobs[tokens[-1]])
            logged.append({
                "token_id": tokens[-1], "logprob": value,
                "top_logprobs": [{"token_id": one, "logprob": float(logprobs[one])} for one in best],
            })  # fmt: skip
        if self.fault == "fewer log-probabilities":
            logged.pop()
        if self.fault == "no alternatives":
            logged = [{**one, "top_logprobs": []} for one in logged]
        if self.fault == "one alternative twice":
            logged = [{**one, "top_logprobs": 2 * one["top_logprobs"][:1]} for one in logged]
        if self.fault == "log-probabilities of other tokens":
            logged[0]["token_id"] += 1
        spans = [] if self.fault == "no versions" else [{"version": self.version, "start": 0, "end": len(tokens)}]
        return {
            "index": 0, "token_ids": tokens, "logprobs": {"content": logged}, "finish_reason": "stop",
            "weight_versions": spans,
        }  # fmt: skip

    def _logprobs(self, last: int) -> NDArray[np.float32]:
        row = self.table[last]
        return (row - row.max() - math.log(np.exp(row - row.max()).sum())).astype(np.float32)

    def _token(self, logprobs: NDArray[np.float32], seed: str | None, number: int) -> int:
        if self.fault == "other tokens":
            return int(np.argsort(-logprobs)[1])
        if seed is None or self.fault == "no seeds":
            return int(logprobs.argmax())
        return sampling_reference.choose(logprobs.tolist(), sampling_reference.key(bytes.fromhex(seed), number))


async def _some_rounds() -> None:
    for _ in range(4):
        await asyncio.sleep(0)
