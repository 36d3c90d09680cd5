"""The buffers of rows of different lengths."""

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, MistralConfig, Qwen3Config

from echo2.engines.transformers.row_cache import FULL_ATTENTION, LEAST_SPARE_TOKENS, SLIDING_ATTENTION, RowCache, kinds

HEADS, SIZE = 2, 4


def states(rows: int, tokens: int, first: float = 1.0) -> torch.Tensor:
    return torch.arange(rows * HEADS * tokens * SIZE).view(rows, HEADS, tokens, SIZE).float() + first


def filled(lengths: list[int]) -> tuple[RowCache, list[torch.Tensor]]:
    """Return a cache of two layers whose places hold prompts of these lengths, and the prompts' states."""
    cache, prompts = RowCache(2, torch.device("cpu")), []
    for place, length in enumerate(lengths):
        prompt = states(1, length, 1000.0 * (place + 1))[0]
        cache.put(place, 1, [prompt, prompt], [-prompt, -prompt])
        prompts.append(prompt)
    return cache, prompts


def test_a_step_writes_one_token_per_row_at_its_own_position() -> None:
    cache, prompts = filled([3, 5])
    cache.step([3, 5])
    new = states(2, 1)
    for layer in range(2):
        keys, values = cache.update(new, -new, layer)
        assert keys.shape == (2, HEADS, 6, SIZE)
        assert torch.equal(keys[0, :, :3], prompts[0])
        assert torch.equal(keys[1, :, :5], prompts[1])
        assert torch.equal(keys[0, :, 3], new[0, :, 0])
        assert torch.equal(keys[1, :, 5], new[1, :, 0])
        assert torch.equal(values, -keys)


def test_what_a_row_does_not_attend_to_is_masked_and_finite() -> None:
    cache, _ = filled([2, 5])
    cache.step([2, 5])
    seen = cache.mask(torch.float32)[:, 0, 0] == 0
    assert seen.tolist() == [[True] * 3 + [False] * 3, [True] * 6]
    window = cache.mask(torch.float32, 2)[:, 0, 0] == 0
    assert window.tolist() == [[False, True, True, False, False, False], [False] * 4 + [True] * 2]
    new = states(2, 1)
    keys, _ = cache.update(new, new, 0)
    assert bool(keys.isfinite().all())


def test_a_place_takes_anothers_row_and_a_cleaned_one_is_zero() -> None:
    cache, prompts = filled([5, 2, 4])
    cache.move(2, 0, 4)
    cache.clean(1)
    cache.step([4, 0])
    new = states(2, 1)
    keys, _ = cache.update(new, new, 1)
    assert torch.equal(keys[0, :, :4], prompts[2])
    assert not bool(keys[1, :, 1:].any())


def test_a_buffer_grows_with_room_to_spare_and_keeps_what_it_has() -> None:
    cache, prompts = filled([3])
    before = cache.nbytes
    assert before == 2 * 2 * HEADS * (3 + LEAST_SPARE_TOKENS) * SIZE * 4
    cache.put(1, 3, [states(1, 200)[0]] * 2, [states(1, 200)[0]] * 2)
    assert cache.nbytes == 2 * 2 * 4 * HEADS * (200 + LEAST_SPARE_TOKENS) * SIZE * 4
    cache.step([3, 200, 200, 200])
    new = states(4, 1)
    keys, _ = cache.update(new, new, 0)
    assert torch.equal(keys[0, :, :3], prompts[0])


CONFIGS = {
    "Llama": (LlamaConfig(num_hidden_layers=2), (FULL_ATTENTION, FULL_ATTENTION)),
    "Qwen3": (Qwen3Config(num_hidden_layers=2), (FULL_ATTENTION, FULL_ATTENTION)),
    "Mistral, whose layers all slide": (
        MistralConfig(num_hidden_layers=2, sliding_window=8),
        (SLIDING_ATTENTION, SLIDING_ATTENTION),
    ),
    "Gemma 3": (Gemma3TextConfig(num_hidden_layers=6), (SLIDING_ATTENTION,) * 5 + (FULL_ATTENTION,)),
}


@pytest.mark.parametrize(("config", "expected"), CONFIGS.values(), ids=CONFIGS.keys())
def test_the_kinds_of_layers_are_those_of_the_config(config: object, expected: tuple[str, ...]) -> None:
    assert kinds(config) == expected


def test_places_double_so_that_groups_that_come_one_by_one_copy_little() -> None:
    (cache, _), sizes = filled([3]), set[int]()
    for place in range(1, 64):
        cache.put(place, 1, [states(1, 3)[0]] * 2, [states(1, 3)[0]] * 2)
        sizes.add(cache.nbytes // (2 * 2 * HEADS * (3 + LEAST_SPARE_TOKENS) * SIZE * 4))
    assert sizes == {2, 4, 8, 16, 32, 64}
