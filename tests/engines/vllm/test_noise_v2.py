"""The logits processor for vLLM's model runner V2, with the layout of a step as its interface describes it. The runner
itself needs Triton, and so a GPU."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support import vllm_models
from tests.support.vllm_models import choice, params

pytestmark = vllm_models.INTERFACES


def step(places: list[int], seen: list[int]) -> object:
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext

    nothing = torch.empty(0)
    return LogitsContext(
        expanded_idx_mapping=nothing, idx_mapping=nothing, idx_mapping_np=np.array(places, np.int32),
        expanded_local_pos=nothing, input_ids=nothing, pos=nothing, seq_lens_upper_bound_np=np.array(seen, np.int32),
    )  # fmt: skip


def test_the_greatest_logit_is_the_seeded_choice_of_each_row_that_asks() -> None:
    from echo2.engines.vllm.noise_v2 import SeededNoiseV2

    prompts = SimpleNamespace(np=np.array([10, 20, 30, 40], np.int32))
    noise = SeededNoiseV2(None, SimpleNamespace(prompt_len=prompts))
    assert noise.add_request(2, params(0))
    assert noise.add_request(0, params(1, first=5))
    assert noise.add_request(3, params(2))
    assert not noise.add_request(1, params(None))
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(1)) * 3
    # Rows in any order; place 3 still computes a part of its prompt.
    ctx = step([2, 1, 0, 3], [30, 25, 12, 36])
    chosen = noise.apply(logits.clone(), ctx).argmax(-1).tolist()
    assert chosen == [
        choice(logits[0], 0, 0),
        int(logits[1].argmax()),
        choice(logits[2], 1, 7),
        int(logits[3].argmax()),
    ]
    # A place that is given to a request without noise has none.
    noise.add_request(2, params(None))
    assert noise.apply(logits[:1].clone(), step([2], [31])).argmax(-1).tolist() == [int(logits[0].argmax())]


def test_arguments_that_cannot_be_read_are_refused_with_the_request() -> None:
    from vllm import SamplingParams

    from echo2.engines.vllm.noise_v2 import SeededNoiseV2

    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        SeededNoiseV2.validate_params(SamplingParams(extra_args={"echo2_seed": "short"}))
