import copy
from typing import Any

import torch
from transformers import DynamicCache, Qwen3Config

from echo2.engines.transformers import kv_cache

CONFIG = Qwen3Config(num_hidden_layers=2)


def states(generator: torch.Generator, rows: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (rows, 3, tokens, 5)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def test_it_holds_what_the_librarys_own_cache_holds() -> None:
    """Prompt, repeat, tokens one by one and several at once, rows dropped and reordered in between, past the room."""
    generator = torch.Generator().manual_seed(0)
    ours: Any = kv_cache.growing_cache(CONFIG)
    theirs: Any = DynamicCache(config=CONFIG)
    rows = 2

    def feed(tokens: int) -> None:
        for layer in range(2):
            keys, values = states(generator, rows, tokens)
            actual, expected = ours.update(keys, values, layer), theirs.update(keys, values, layer)
            assert torch.equal(actual[0], expected[0])
            assert torch.equal(actual[1], expected[1])
        assert ours.get_seq_length() == theirs.get_seq_length()

    feed(7)
    for cache in (ours, theirs):
        cache.batch_select_indices(torch.tensor([0, 0, 0, 1, 1]))
    rows = 5
    for _ in range(2 * kv_cache.LEAST_SPARE_TOKENS):
        feed(1)
    for kept in ([4, 0, 2], [1]):
        for cache in (ours, theirs):
            cache.batch_select_indices(torch.tensor(kept))
        rows = len(kept)
        feed(3)
        feed(2 * kv_cache.LEAST_SPARE_TOKENS)
        feed(1)
    for cache in (ours, theirs):
        cache.batch_repeat_interleave(4)
    rows = 4
    feed(2)


def test_a_copy_grows_apart_from_its_original() -> None:
    generator = torch.Generator().manual_seed(0)
    original: Any = kv_cache.growing_cache(CONFIG)
    for layer in range(2):
        original.update(*states(generator, 1, 4), layer)
        original.update(*states(generator, 1, 1), layer)
    before = original.layers[0].keys.clone()
    twin = copy.deepcopy(original)
    twin.update(*states(generator, 1, 1), 0)
    assert torch.equal(original.layers[0].keys, before)
    original.update(*states(generator, 1, 1), 0)
    assert not torch.equal(original.layers[0].keys, twin.layers[0].keys)
    assert torch.equal(twin.layers[0].keys[:, :, :5], before)


def test_tokens_are_written_in_place_while_there_is_room() -> None:
    generator = torch.Generator().manual_seed(0)
    cache: Any = kv_cache.growing_cache(CONFIG)
    cache.update(*states(generator, 1, 4), 0)
    cache.update(*states(generator, 1, 1), 0)
    place = cache.layers[0].keys.data_ptr()
    for _ in range(kv_cache.LEAST_SPARE_TOKENS):
        cache.update(*states(generator, 1, 1), 0)
    assert cache.layers[0].keys.data_ptr() == place
    cache.update(*states(generator, 1, 1), 0)
    assert cache.layers[0].keys.data_ptr() != place


def test_layers_that_are_not_full_attention_are_left_alone() -> None:
    sliding = Qwen3Config(
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=4,
        use_sliding_window=True,
    )
    kinds = [type(layer).__name__ for layer in kv_cache.growing_cache(sliding).layers]
    assert kinds == ["DynamicSlidingWindowLayer", "_GrowingLayer"]
