"""The loopback end point that verifiers takes for an inference server: its calls become turns of open episodes.

    GET  /v1/models               one model, with its context
    POST /inference/v1/generate   token ids in; token ids and log-probabilities out, once the turn was sampled

Rules
1. An episode is named by the member `EPISODE` of a call, which verifiers' client takes from its sampling settings. It
   has one call at a time. A call must bring the secret of the end point in the header `SECRET_HEADER`: where the
   process has the system's network, other programs of the machine reach the end point too.
2. A call that asks for other sampling than the run's is refused (`fault_of_sampling`). Temperature 1 and top-p 1 leave
   it as the RunSpec has it, whatever its temperature is.
3. Log-probabilities are zeros: the coordinator has none when it answers a turn, and the learner takes its own.
4. A call that is refused ends its episode for the environment: 400, which clients do not send again.

Imports aiohttp alone, so that it runs in either Python.
"""

import asyncio
import hmac
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web

EPISODE: Final = "cache_salt"
SECRET_HEADER: Final = "X-Echo2-Secret"
MODEL: Final = "policy"
MOST_BODY: Final = 16 << 20
"""Most bytes of a call."""
_NEUTRAL_SAMPLING: Final[Mapping[str, tuple[object, ...]]] = {
    "temperature": (1,),
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "n": (1,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "ignore_eos": (False,),
    "min_tokens": (0,),
}
"""Parameter -> the values that leave the sampling as the run has it."""
ASKED: Final = "ask for temperature 1 and top-p 1 alone"
_WITHOUT_EFFECT: Final = {
    "logprobs", "skip_special_tokens", "seed", "stop_token_ids", "routed_experts_prompt_start", "reasoning_effort",
}  # fmt: skip


class Sampled(NamedTuple):
    """The answer to a call. `finish`: stop, or length where the turn was cut. `refusal`: why there is no answer."""

    tokens: list[int]
    finish: str = "stop"
    refusal: str = ""


def fault_of_sampling(parameters: Mapping[str, Any], ends: Collection[int]) -> str:
    """Return why these sampling parameters cannot be had, as a sentence; empty: they can (rule 2)."""
    for name, value in parameters.items():
        if value is None or value == [] or name in _WITHOUT_EFFECT:
            continue
        if name not in _NEUTRAL_SAMPLING:
            return f"it asks for the sampling parameter {name} = {value!r:.60}, and turns of this run have none"
        if value not in _NEUTRAL_SAMPLING[name]:
            return f"it asks for {name} = {value!r:.60}, but the run says how turns are sampled: {ASKED}"
    others = sorted(set(parameters.get("stop_token_ids") or []) - set(ends))
    if others:
        return f"its renderer ends turns at the tokens {others}, which end no turn of this run"
    return ""


class ModelCalls:
    """The end point. `called`: gets an episode's name and the tokens of its call; `refused`: its name and why its call
    was refused. `ends`: the tokens that end a turn of the run. `headers`: that calls must have."""

    def __init__(self, called: Callable[[str, list[int]], None], refused: Callable[[str, str], None]) -> None:
        self.ends: Collection[int] = ()
        self._called, self._refused = called, refused
        self.headers = {SECRET_HEADER: secrets.token_urlsafe(32)}
        self._open: dict[str, asyncio.Future[Sampled] | None] = {}
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Listen on a free port of the loopback interface; return the base URL that verifiers gets."""
        app = web.Application(client_max_size=MOST_BODY)
        app.add_routes([web.get("/v1/models", self._models), web.post("/inference/v1/generate", self._generate)])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def open(self, name: str) -> None:
        """Take calls of an episode."""
        self._open[name] = None

    def answer(self, name: str, sampled: Sampled) -> None:
        """Answer the pending call of an episode, if it has one."""
        pending = self._open.get(name)
        if pending is not None and not pending.done():
            pending.set_result(sampled)

    def close(self, name: str) -> None:
        """Take no more calls of an episode."""
        self.answer(name, Sampled([], refusal="the episode is over"))
        self._open.pop(name, None)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _generate(self, request: web.Request) -> web.Response:
        told = request.headers.get(SECRET_HEADER, "").encode(errors="replace")
        if not hmac.compare_digest(told, self.headers[SECRET_HEADER].encode()):
            return _refusal("this end point is not for you")
        body = await request.json()
        name = body.get(EPISODE) if isinstance(body, dict) else None
        if not isinstance(name, str) or name not in self._open:
            return _refusal("no such episode is open")
        if fault := self._fault(name, body):
            self._refused(name, fault)
            return _refusal(fault)
        pending = self._open[name] = asyncio.get_running_loop().create_future()
        try:
            self._called(name, body["token_ids"])
            sampled = await pending
        finally:
            if self._open.get(name) is pending:
                self._open[name] = None
        if sampled.refusal:
            return _refusal(sampled.refusal)
        entries = [{"token": f"token_id:{token}", "logprob": 0.0} for token in sampled.tokens]
        choice = {
            "index": 0,
            "token_ids": sampled.tokens,
            "finish_reason": sampled.finish,
            "logprobs": {"content": entries},
        }
        return web.json_response({"request_id": name, "choices": [choice]})

    def _fault(self, name: str, body: Mapping[str, Any]) -> str:
        """Return why a call cannot be taken; empty: it can."""
        tokens = body.get("token_ids")
        if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
            return "its call to the model has no token ids"
        if self._open[name] is not None:
            return "it calls the model twice at a time, and an episode has one turn at a time"
        if body.get("features") or body.get("content_parts"):
            return "its call to the model has images, which the model cannot see"
        return fault_of_sampling(body.get("sampling_params") or {}, self.ends)


def _refusal(sentence: str) -> web.Response:
    error = {"message": sentence, "type": "BadRequestError", "code": 400}
    return web.json_response({"error": error}, status=400)
