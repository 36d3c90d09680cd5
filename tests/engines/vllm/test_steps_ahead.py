"""Steps that are scheduled ahead of those that are read: a patch waits for the steps under way, and each output has the
version of its own step. vLLM's own order of events (`EngineCore.step_with_batch_queue`) runs over a stand-in for the
device, which computes a step with the weights that it has when the step is dispatched."""

import itertools
import random
from collections import deque
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from echo2.engines.batch.checkpoint_patches import CheckpointPatch
from echo2.engines.batch.request_batch import Completion, TokenRequest
from echo2.engines.vllm import resident_engine
from echo2.engines.vllm.resident_engine import ResidentEngine
from tests.support import vllm_models

pytestmark = vllm_models.INTERFACES
PATCHES = 1_000


class Device:
    """Computes a step at its dispatch, and schedules all requests in each."""

    def __init__(self) -> None:
        self.weights = "of no version"
        self.left: dict[str, int] = {}
        """Request -> tokens that are still to be scheduled."""
        self.batch: list[tuple[str, str]] = []

    def has_requests(self) -> bool:
        return any(self.left.values())

    def schedule(self, throttle: bool) -> Any:
        self.batch = [(id, self.weights) for id, left in self.left.items() if left]
        for id, _ in self.batch:
            self.left[id] -= 1
        return SimpleNamespace(total_num_scheduled_tokens=len(self.batch), pending_structured_output_tokens=False)

    def execute_model(self, step: Any, non_block: bool) -> "Future[Any]":
        return _done(None)

    def sample_tokens(self, grammar: Any, non_block: bool) -> "Future[Any]":
        return _done(list(self.batch))

    def get_grammar_bitmask(self, step: Any) -> None:
        return None

    def update_from_output(self, step: Any, output: list[tuple[str, str]]) -> dict[int, Any]:
        return {0: SimpleNamespace(outputs=output, weight_version=None)}


def _done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Llm:
    """Stands in for vLLM's LLMEngine around a core with its own order of events. `tokens`: of each token the weights by
    which it was computed, and the version that its output names."""

    def __init__(self) -> None:
        from vllm.v1.engine.core import EngineCore

        self.device, self.tokens = Device(), list[tuple[str, str]]()
        self.asked: dict[str, int] = {}
        self.versions: dict[str, list[str]] = {}
        nothing = lambda *_: nullcontext()  # noqa: E731
        core: Any = SimpleNamespace(
            batch_queue=deque(maxlen=2), batch_queue_size=2, is_pooling_model=False, is_mm_encoder_only=False,
            check_for_draft_tokens=False, scheduler=self.device, model_executor=self.device, _weight_version="default",
            _should_throttle_prefills=lambda: False, log_error_detail=nothing, capture_iteration_details=nothing,
            _process_aborts_queue=lambda: None, _attach_iteration_details=lambda *_: None,
        )  # fmt: skip
        core._attach_weight_version = EngineCore._attach_weight_version.__get__(core)
        core.step = EngineCore.step_with_batch_queue.__get__(core)
        self.core, self.engine_core = core, SimpleNamespace(engine_core=core)
        self.model_config = SimpleNamespace(max_model_len=1 << 20, get_vocab_size=lambda: 8)
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=16, num_gpu_blocks=64),
            scheduler_config=SimpleNamespace(max_num_seqs=8),
        )

    def add_request(self, id: str, prompt: Any, params: Any) -> None:
        self.device.left[id] = self.asked[id] = params.max_tokens
        self.versions[id] = []

    def step(self) -> list[Any]:
        outputs, _ = self.core.step()
        ended = []
        for id, weights in outputs[0].outputs if outputs else ():
            self.tokens.append((weights, outputs[0].weight_version))
            self.versions[id].append(outputs[0].weight_version)
            if len(self.versions[id]) == self.asked[id]:
                ended.append(self._output(id))
        return ended

    def _output(self, id: str) -> Any:
        versions = self.versions.pop(id)
        del self.device.left[id]
        one = SimpleNamespace(
            finish_reason="length", token_ids=[1] * len(versions),
            logprobs=[{1: SimpleNamespace(logprob=-1.0)}] * len(versions),
            weight_versions=[SimpleNamespace(version=version) for version, _ in itertools.groupby(versions)],
        )  # fmt: skip
        return SimpleNamespace(request_id=id, outputs=[one], finished=True)

    def collective_rpc(self, method: str, args: Any = ()) -> None:
        if method == "update_weights" and args[0].get("patches"):
            self.device.weights = args[0]["patches"][0]["values"].hex()

    def abort_request(self, ids: list[str]) -> None:
        return None

    def reset_prefix_cache(self) -> None:
        return None

    def set_weight_version(self, version: str) -> None:
        self.core._weight_version = version


def patch_to(number: int) -> CheckpointPatch:
    bits = np.frombuffer(root_of(number), np.uint8)
    return CheckpointPatch(SimpleNamespace(dtype="U8", shape=(32,)), "a weight", bits, None)  # type: ignore[arg-type]


def root_of(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


def under_load(engine: ResidentEngine) -> list[Completion]:
    """Patch `PATCHES` times, with requests under way all the time; return all answers."""
    dice, ids, answers, waiting = random.Random(3), itertools.count(), list[Completion](), 0
    for number in range(PATCHES):
        engine.write([patch_to(number)], root_of(number))
        while waiting < 5:
            engine.submit(next(ids), TokenRequest([1, 2, 3], bytes(16), 0, dice.randint(1, 6), (0,), greedy=True))
            waiting += 1
        for _ in range(dice.randint(1, 4)):
            outcomes = [outcome for _, outcome in engine.advance()]
            waiting -= len(outcomes)
            answers += [one for one in outcomes if isinstance(one, Completion)]
    return answers


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Llm:
    llm = Llm()
    monkeypatch.setattr(resident_engine, "_make", lambda *_: llm)
    return llm


def resident() -> ResidentEngine:
    return ResidentEngine(None, "cpu", "float32", None)  # type: ignore[arg-type]


def test_1000_patches_under_load_and_each_token_has_the_version_of_its_step(llm: Llm) -> None:
    answers = under_load(resident())
    assert len(llm.tokens) > PATCHES
    assert [one for one in llm.tokens if one[0] != one[1]] == []
    whole = [one for one in answers if one.root]
    assert len(whole) > 100
    assert len(answers) - len(whole) > 100  # those that span versions have no root


def test_without_the_wait_outputs_would_name_versions_that_did_not_compute_them(
    llm: Llm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ResidentEngine, "_read_steps", lambda self: None)
    under_load(resident())
    assert [one for one in llm.tokens if one[0] != one[1]]


def test_what_a_patch_reads_is_answered_by_the_next_step_unless_it_is_withdrawn(llm: Llm) -> None:
    engine = resident()
    engine.write([patch_to(1)], root_of(1))
    for id in (1, 2):
        engine.submit(id, TokenRequest([1], bytes(16), 0, 1, (0,), greedy=True))
    assert engine.advance() == []
    engine.write([patch_to(2)], root_of(2))
    engine.withdraw([2])
    ((id, answer),) = engine.advance()
    assert (id, answer.root) == (1, root_of(1))
    assert not llm.core.batch_queue
