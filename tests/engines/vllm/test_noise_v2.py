"""The logits processor for vLLM's model runner V2, with the layout of a step as its interface describes it. The runner
itself needs Triton, and so a GPU."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from echo2.engines.sampling import sampling
from echo2.engines.vllm import tempered_rows
from echo2.engines.vllm.noise_keys import AHEAD
from tests.support import vllm_models
from tests.support.vllm_models import choice, params

pytestmark = vllm_models.INTERFACES


def step(places: list[int], seen: list[int]) -> object:
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext

    nothing, rows = torch.empty(0), torch.tensor(places, dtype=torch.int32)
    return LogitsContext(
        expanded_idx_mapping=rows, idx_mapping=rows, idx_mapping_np=np.array(places, np.int32),
        expanded_local_pos=nothing, input_ids=nothing, pos=torch.tensor(seen) - 1,
        seq_lens_upper_bound_np=np.array(seen, np.int32),
    )  # fmt: skip


def of_places(prompts: list[int]) -> object:
    lengths = np.array(prompts, np.int32)
    return SimpleNamespace(
        prompt_len=SimpleNamespace(np=lengths, gpu=torch.from_numpy(lengths)), max_num_reqs=len(prompts),
        device=torch.device("cpu"),
    )  # fmt: skip


def test_the_greatest_logit_is_the_seeded_choice_of_each_row_that_asks() -> None:
    from echo2.engines.vllm.noise_v2 import SeededNoiseV2

    noise = SeededNoiseV2(None, of_places([10, 20, 30, 40]))
    assert noise.add_request(2, params(0))
    assert noise.add_request(0, params(1, first=5))
    assert noise.add_request(3, params(2))
    assert not noise.add_request(1, params(None))
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(1)) * 3
    # Rows in any order; place 3 still computes a part of its prompt, so that vLLM drops its choice.
    ctx = step([2, 1, 0, 3], [30, 25, 12, 36])
    chosen = noise.apply(logits.clone(), ctx).argmax(-1).tolist()
    assert chosen[:3] == [choice(logits[0], 0, 0), int(logits[1].argmax()), choice(logits[2], 1, 7)]
    # A place that is given to a request without noise has none.
    noise.add_request(2, params(None))
    assert noise.apply(logits[:1].clone(), step([2], [31])).argmax(-1).tolist() == [int(logits[0].argmax())]


@pytest.mark.parametrize("by_kernel", [False, True])
def test_rows_at_temperatures_choose_by_the_rule_whatever_adds_the_noise(by_kernel: bool) -> None:
    from echo2.engines.vllm.noise_v2 import SeededNoiseV2

    noise = SeededNoiseV2(None, of_places([10, 20, 30, 40]))
    if by_kernel:
        noise._kernel = sampling.add_noise_of
    noise.add_request(0, params(0, temperature=800))
    noise.add_request(1, params(1, temperature=2000, kept_as=1))
    noise.add_request(2, params(2))
    noise.add_request(3, params(3, temperature=800, kept_as=3))
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(2)) * 3
    # Place 3 still computes a part of its prompt: nothing is kept of it.
    chosen = noise.apply(logits.clone(), step([0, 1, 2, 3], [12, 20, 31, 36])).argmax(-1).tolist()
    assert chosen[:3] == [choice(logits[0] * 1.25, 0, 2), choice(logits[1] * 0.5, 1, 0), choice(logits[2], 2, 1)]
    assert {kept_as: list(places) for kept_as, places in tempered_rows._kept.items()} == {0: [2], 1: [0]}
    (logprob,) = tempered_rows.take(1, 1)
    assert logprob == pytest.approx(float((logits[1] * 0.5).log_softmax(-1)[chosen[1]]), abs=1e-5)
    tempered_rows.drop(0)
    # A place that is given to a request at a temperature of 1 is at that.
    noise.add_request(1, params(1))
    assert noise.apply(logits[:1].clone(), step([1], [20])).argmax(-1).tolist() == [choice(logits[0], 1, 0)]


def test_a_long_rollout_and_one_that_vllm_computes_again_are_the_rules_own() -> None:
    from echo2.engines.vllm.noise_v2 import SeededNoiseV2

    noise, logits = SeededNoiseV2(None, of_places([3, 4])), torch.zeros(1, 64)
    noise.add_request(1, params(3, first=2))
    for number in [*range(5 * AHEAD + 3), 2000, 2001, 2 * AHEAD]:
        if number == 2 * AHEAD:
            noise.add_request(1, params(3, first=2))
        chosen = noise.apply(logits.clone(), step([1], [4 + number])).argmax(-1).tolist()
        assert chosen == [choice(logits[0], 3, 2 + number)], number


def test_a_step_of_rows_that_all_ask_for_noise_copies_nothing_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from echo2.engines.vllm import noise_keys, noise_v2

    copies: list[int] = []

    def counted(values: Any, device: torch.device) -> torch.Tensor:
        copies.append(len(values))
        return torch.from_numpy(values)

    monkeypatch.setattr(noise_keys, "upload", counted)
    monkeypatch.setattr(noise_v2, "upload", counted)
    noise = noise_v2.SeededNoiseV2(None, of_places([3, 4]))
    noise.add_request(0, params(0))
    noise.add_request(1, params(1))
    begun = len(copies)
    for number in range(AHEAD):
        noise.apply(torch.zeros(2, 16), step([0, 1], [3 + number, 4 + number]))
    assert len(copies) == begun
    noise.apply(torch.zeros(2, 16), step([0, 1], [3 + AHEAD, 4 + AHEAD]))
    assert copies[begun:] == [AHEAD] * 4


def test_arguments_that_cannot_be_read_are_refused_with_the_request() -> None:
    from vllm import SamplingParams

    from echo2.engines.vllm.noise_v2 import SeededNoiseV2

    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        SeededNoiseV2.validate_params(SamplingParams(extra_args={"echo2_seed": "short"}))
