"""A model that a server of vLLM runs: fed with weights, asked for completions.

Rules
1. A request that fails, or whose answer is false, ends its group. After `MOST_FAILURES` of them in a row, and as soon
   as the server is gone, the engine's process ends: the next one examines the server anew, and says what is wrong.
2. The server tells the likeliest alternatives of each token, so the rule from seed to token is checked here, before a
   group is submitted (engines.sampling.sampling_check).
3. After a change of weights cached prompts are dropped, and the server must name the new version. After a step that
   changed at least `PERCEPTIBLE_CHANGES` weights the log-probabilities of a known prompt must be others too: else the
   server computes with the old weights, whatever it says.
4. A change of weights is given up, as if the server were gone, after the client's patience and one second per
   `LEAST_RATE` bytes sent: a server that answers each part just in time would keep the engine for hours.
"""

import base64
import queue
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from echo2.engines.batch.checkpoint_patches import CheckpointPatch, in_parts
from echo2.engines.batch.request_batch import Completion, ProgramLost, TokenRequest
from echo2.engines.engine import EngineError
from echo2.engines.sampling import sampling_check
from echo2.engines.sampling.sampling_check import ALTERNATIVES
from echo2.engines.server.answers import Choice, ServerSettings, choice_of
from echo2.engines.server.http_client import MOST_BYTES, HttpClient, ServerGone, quotable_text
from echo2.engines.server.requirements import GENERATE
from echo2.engines.temperature import PLAIN_TEMPERATURE
from echo2.engines.vllm.noise_request import NoiseRequest
from echo2.weights.errors import BadSnapshot

MOST_FAILURES: Final = 8
PERCEPTIBLE_CHANGES: Final = 1000
PART_BYTES: Final = 16 << 20
"""Bytes of weights per request."""
LEAST_RATE: Final = 4 << 20
"""Bytes of weights per second that a server takes at least."""
ANSWER_WAIT_SECONDS: Final = 0.1
"""Seconds for which `advance` waits for an answer."""
PROBE_TOKENS: Final = 8
"""Tokens of a probe."""
MOST_ROWS: Final = 4096
"""Most rows at once, whatever a server says: each has a connection and an answer here."""
MOST_ANSWER_BYTES_PER_TOKEN: Final = 1024 * ALTERNATIVES
"""Most bytes of an answer per token: each alternative takes some 150."""


class ServedModel:
    """`engines.batch.request_batch.CompletionService`."""

    def __init__(
        self,
        client: HttpClient,
        settings: ServerSettings,
        vocabulary: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self.client, self._settings, self.vocabulary = client, settings, vocabulary
        self._pending: dict[int, tuple[TokenRequest, Future[dict[str, Any]]]] = {}
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._failures = 0

    def write(self, patches: Iterable[CheckpointPatch], root: bytes, *, whole: bool = False) -> None:
        """Write weights; they are then those of `root` (rule 3). `whole`: these are all. Raises EngineError,
        BadSnapshot."""
        before, changed = self.probe(greedy=True), 0
        until = self._clock() + self.client.patience
        self.client.post("/start_weight_update")
        for part in in_parts(patches, PART_BYTES):
            changed += sum(len(patch.bits) for patch in part)
            until += sum(patch.nbytes for patch in part) / LEAST_RATE
            self._send("/update_weights", {"update_info": {"patches": [_wire_patch(patch) for patch in part]}}, until)
        self._send("/update_weights", {"update_info": {"whole": whole}}, until)
        self._send("/finish_weight_update", {"weight_version": root.hex()}, until)
        if self.client.post("/reset_prefix_cache").get("success") is not True:
            raise EngineError("the server did not drop its cached prompts: let no other program use it")
        named = str(self.client.get("/weight_info").get("weight_version", ""))
        if named != root.hex():
            raise EngineError(
                f"the server names the weights {quotable_text(named[:16])}, not {root.hex()[:16]}, after they were sent"
            )
        after = self.probe(greedy=True)
        if not whole and changed >= PERCEPTIBLE_CHANGES and _logprobs(before) == _logprobs(after):
            raise EngineError("the server still computes with the weights from before the change")
        self.probe(greedy=False)

    def probe(self, *, greedy: bool) -> Choice:
        """Ask for some tokens behind a known prompt, and check how they were chosen (rule 2). Raises EngineError."""
        tokens = [number % self.vocabulary for number in range(3, 16)]
        request = TokenRequest(tokens, bytes(range(16)), 5, PROBE_TOKENS, (self.vocabulary - 1,), greedy)
        choice = choice_of(self.client.post(GENERATE, _body(request), most=_longest(request)), GENERATE)
        _check_choices(choice, request)
        return choice

    def submit(self, id: int, request: TokenRequest) -> None:
        """See `CompletionService.submit`."""
        length, most = len(request.tokens) + request.most, self._settings.model_config.max_model_len
        if request.temperature != PLAIN_TEMPERATURE:  # its log-probabilities are of plain logits
            raise EngineError("the engine server samples at temperature 1 alone: use the engine vllm")
        if length > most:
            raise EngineError(f"a rollout of {length} tokens is too long: the server's model and memory allow {most}")
        future = self.client.begin(GENERATE, _body(request), most=_longest(request))
        self._pending[id] = request, future
        future.add_done_callback(lambda done: self._ended.put(id))

    def withdraw(self, ids: Sequence[int]) -> None:
        """See `CompletionService.withdraw`."""
        for id in ids:
            _, future = self._pending.pop(id, (None, None))
            if future is not None:
                future.cancel()

    def advance(self) -> list[tuple[int, Completion | EngineError]]:
        """See `CompletionService.advance`. Raises ProgramLost (rule 1)."""
        ended: list[tuple[int, Completion | EngineError]] = []
        for id in self._answered_requests():
            if id in self._pending:
                request, future = self._pending.pop(id)
                ended.append((id, self._outcome(request, future)))
        return ended

    def limit(self, longest: int) -> int:
        """See `CompletionService.limit`: the server's own, which queues what its memory cannot hold."""
        return max(1, min(MOST_ROWS, self._settings.scheduler_config.max_num_seqs))

    def _answered_requests(self) -> list[int]:
        """Wait a moment for answers; return the requests that have one."""
        try:
            arrived = [self._ended.get(timeout=ANSWER_WAIT_SECONDS)]
        except queue.Empty:
            return []
        while not self._ended.empty():
            arrived.append(self._ended.get())
        return arrived

    def _outcome(self, request: TokenRequest, future: "Future[dict[str, Any]]") -> Completion | EngineError:
        try:
            choice = choice_of(future.result(), GENERATE)
            _check_choices(choice, request)
        except ServerGone as error:
            raise ProgramLost(str(error)) from error
        except EngineError as error:
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                raise ProgramLost(f"{self._failures} requests in a row failed, the last one so: {error}") from error
            return error
        self._failures = 0
        return Completion(choice.token_ids, _logprobs(choice), choice.root)

    def _send(self, path: str, body: dict[str, Any], until: float) -> None:
        """Send a part of a change of weights, by `until` on the clock (rule 4)."""
        left = until - self._clock()
        if left <= 0:
            raise ServerGone(f"the server {self.client.address} takes weights at less than {LEAST_RATE >> 20} MiB/s")
        try:
            self.client.post(path, body, within=left)
        except ServerGone:
            raise
        except EngineError as error:
            raise BadSnapshot(f"the server cannot take these weights: {error}") from error


def _body(request: TokenRequest) -> dict[str, Any]:
    params: dict[str, Any] = {
        "temperature": 0.0, "max_tokens": request.most, "stop_token_ids": [*request.ends], "ignore_eos": True,
        "logprobs": ALTERNATIVES, "detokenize": False,
    }  # fmt: skip
    if not request.greedy:
        params["extra_args"] = NoiseRequest(request.seed, request.first).arguments
    return {"token_ids": request.tokens, "sampling_params": params}


def _longest(request: TokenRequest) -> int:
    """Return the most bytes of an answer."""
    return MOST_BYTES + MOST_ANSWER_BYTES_PER_TOKEN * request.most


def _logprobs(choice: Choice) -> list[float]:
    return [one.logprob for one in choice.logprobs.content] if choice.logprobs is not None else []


def _check_choices(choice: Choice, request: TokenRequest) -> None:
    """Check that tokens and log-probabilities are of the same tokens, and how these were chosen. Raises EngineError."""
    logged = choice.logprobs.content if choice.logprobs is not None else []
    if len(logged) != len(choice.token_ids):
        raise EngineError(f"the answer has {len(logged)} log-probabilities for {len(choice.token_ids)} tokens")
    if [one.token_id for one in logged] != choice.token_ids:
        raise EngineError("the answer's log-probabilities are of other tokens than it has")
    if any(len(one.as_told_token().alternatives) < 2 for one in logged):
        raise EngineError("the answer tells no alternatives of its tokens: their choice cannot be checked")
    sampling_check.check([one.as_told_token() for one in logged], request.seed, request.first, request.greedy)


def _wire_patch(patch: CheckpointPatch) -> dict[str, Any]:
    positions = None if patch.positions is None else _text(patch.positions.astype("<i8").tobytes())
    values = _text(np.ascontiguousarray(patch.bits).tobytes())
    return {
        "name": patch.name, "dtype": patch.tensor.dtype, "shape": list(patch.tensor.shape), "values": values,
        "index": positions,
    }  # fmt: skip


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
