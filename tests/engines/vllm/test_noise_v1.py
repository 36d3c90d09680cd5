"""The logits processor for vLLM's model runner V1, driven as the runner drives it."""

import pytest
import torch

from tests.support import vllm_models
from tests.support.vllm_models import choice, params

pytestmark = vllm_models.INTERFACES


def test_the_greatest_logit_is_the_seeded_choice_of_each_row_that_asks() -> None:
    from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality

    from echo2.engines.vllm.noise_v1 import SeededNoise

    noise, tokens = SeededNoise(None, torch.device("cpu"), False), [[], [9], [], []]  # type: ignore[var-annotated]
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(1)) * 3
    added = [(0, params(0), [1], tokens[0]), (1, params(1, first=5), [1], tokens[1]), (2, params(None), [1], tokens[2])]
    noise.update_state(BatchUpdate(batch_size=3, removed=[], added=added, moved=[]))
    chosen = noise.apply(logits[:3].clone()).argmax(-1).tolist()
    assert chosen == [choice(logits[0], 0, 0), choice(logits[1], 1, 6), int(logits[2].argmax())]
    # A token later the first row has ended and the second has taken its place.
    tokens[1].append(3)
    moved = [(1, 0, MoveDirectionality.UNIDIRECTIONAL)]
    noise.update_state(BatchUpdate(batch_size=2, removed=[0], added=[], moved=moved))
    assert noise.apply(logits[:1].clone()).argmax(-1).tolist() == [choice(logits[0], 1, 7)]
    noise.update_state(None)
    assert not noise.is_argmax_invariant()


def test_arguments_that_cannot_be_read_are_refused_with_the_request() -> None:
    from vllm import SamplingParams

    from echo2.engines.vllm.noise_v1 import SeededNoise

    SeededNoise.validate_params(SamplingParams())
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        SeededNoise.validate_params(SamplingParams(extra_args={"echo2_seed": "short"}))
