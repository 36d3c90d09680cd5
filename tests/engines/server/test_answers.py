"""The answers of vLLM's server, read."""

from typing import Any

import pytest

from echo2.engines.sampling.sampling_check import ToldToken
from echo2.engines.server.answers import ServerInfo, choice_of, read
from echo2.engines.server.http_client import ServerFault

ROOT = bytes(range(32))


def answer(*versions: str) -> dict[str, Any]:
    token = {"token_id": 7, "logprob": -0.5, "rank": 1, "top_logprobs": [{"token_id": 7, "logprob": -0.5, "rank": 1},
                                                                         {"token_id": 9, "logprob": -2.0}]}  # fmt: skip
    spans = [{"version": version, "start": 0, "end": 1} for version in versions]
    return {"request_id": "x", "choices": [{"index": 0, "token_ids": [7], "logprobs": {"content": [token]},
                                            "finish_reason": "length", "weight_versions": spans}]}  # fmt: skip


def test_a_choice_has_tokens_alternatives_and_the_root_of_its_weights() -> None:
    choice = choice_of(answer(ROOT.hex()), "/x")
    assert (choice.token_ids, choice.root) == ([7], ROOT)
    assert choice.logprobs.content[0].as_told_token() == ToldToken(7, -0.5, {7: -0.5, 9: -2.0})


@pytest.mark.parametrize("versions", [(), (ROOT.hex(), "ab" * 32), ("default",)])
def test_a_choice_of_several_versions_or_of_none_has_no_root(versions: tuple[str, ...]) -> None:
    assert choice_of(answer(*versions), "/x").root == b""


@pytest.mark.parametrize(
    "false", [{}, {"choices": []}, {"choices": answer()["choices"] * 2}, {"choices": [{"token_ids": "text"}]},
              {"choices": [{"token_ids": [7], "logprobs": {"content": [{"token_id": 7, "logprob": None}]}}]}],
)  # fmt: skip
def test_another_answer_is_the_servers_fault(false: dict[str, Any]) -> None:
    with pytest.raises(ServerFault, match=r"the server's answer to /x (cannot be read|has \d choices)"):
        choice_of(false, "/x")


def test_settings_need_only_what_is_looked_at() -> None:
    info = read({"vllm_config": {"model_config": {"dtype": "torch.float16", "more": 1}, "scheduler_config": {}}},
                ServerInfo, "/x")  # fmt: skip
    assert info.vllm_config.model_config.dtype == "torch.float16"
    assert info.vllm_config.weight_transfer_config is None
