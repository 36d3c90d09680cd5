"""vLLM's outputs read as completions, and its errors as one sentence. Stories with vLLM itself are in test_engine."""

from types import SimpleNamespace

import pytest

from echo2.engines.batch.request_batch import Completion
from echo2.engines.engine import EngineError
from echo2.engines.vllm.resident_engine import completion_of, reason

ROOT = bytes(range(32))


def output(*versions: str, finish: str = "stop") -> SimpleNamespace:
    logprobs = [
        {7: SimpleNamespace(logprob=-0.5), 9: SimpleNamespace(logprob=-2.0)},
        {1: SimpleNamespace(logprob=-1.0)},
    ]
    spans = [SimpleNamespace(version=version) for version in versions]
    return SimpleNamespace(finish_reason=finish, token_ids=[7, 1], logprobs=logprobs, weight_versions=spans)


def test_an_output_has_the_log_probability_of_each_token_and_the_root_of_its_weights() -> None:
    assert completion_of(output(ROOT.hex())) == Completion([7, 1], [-0.5, -1.0], ROOT)


@pytest.mark.parametrize("versions", [(), (ROOT.hex(), "ab" * 32), ("default",)])
def test_an_output_of_several_versions_or_of_none_has_no_root(versions: tuple[str, ...]) -> None:
    answer = completion_of(output(*versions))
    assert answer.root == b""


@pytest.mark.parametrize("finish", ["abort", "error", None])
def test_a_request_that_vllm_gives_up_is_an_error(finish: str) -> None:
    answer = completion_of(output(ROOT.hex(), finish=finish))
    assert isinstance(answer, EngineError)
    assert f"vLLM ended a request early ({finish})" in str(answer)


def test_the_reason_of_an_error_is_its_first_sentence() -> None:
    assert reason(ValueError("\n  no room\nsee the log")) == "no room"
    assert reason(AssertionError()) == "AssertionError"
