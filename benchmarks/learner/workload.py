"""Data that both learners train on: groups of rollouts on a model of SmolLM2-135M's shape, with random weights."""

import random
from typing import Any, Final, NamedTuple

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

GROUP: Final = 8
WORDS: Final = 49152
WIDTH: Final = 576
RATE: Final = 1e-5


class Shape(NamedTuple):
    """A batch. `mean`: of the completions' lengths, log-normal between 4 and `most`; None: all have `most`."""

    name: str
    prompt: int
    most: int
    mean: float | None
    groups: int = 2


MIXED: Final = Shape("mixed lengths", 64, 96, 40.0)
EQUAL: Final = Shape("equal lengths", 16, 96, None)
SHAPES: Final = {shape.name: shape for shape in (MIXED, EQUAL)}


class RolloutGroup(NamedTuple):
    """Tokens of a prompt and of completions, and a reward for each completion."""

    prompt: list[int]
    completions: list[list[int]]
    rewards: list[float]


def groups_of(shape: Shape) -> list[RolloutGroup]:
    """Return the groups of a batch, the same at each call."""
    chance = random.Random(1)

    def length() -> int:
        if shape.mean is None:
            return shape.most
        return max(4, min(shape.most, int(chance.lognormvariate(0, 0.6) * shape.mean)))

    def tokens(number: int) -> list[int]:
        return [chance.randrange(2, WORDS - 200) for _ in range(number)]

    return [
        RolloutGroup(
            tokens(shape.prompt), [tokens(length()) for _ in range(GROUP)], [chance.random() for _ in range(GROUP)]
        )
        for _ in range(shape.groups)
    ]


def model(layers: int) -> PreTrainedModel:
    """Return a model of SmolLM2-135M's width and this depth, in float32."""
    torch.manual_seed(0)
    config: Any = LlamaConfig  # its arguments are not all typed
    made: Any = LlamaForCausalLM(
        config(
            vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=layers, num_attention_heads=9, num_key_value_heads=3,
            intermediate_size=1536, max_position_embeddings=2048, tie_word_embeddings=True, rms_norm_eps=1e-5,
            rope_theta=1e5, attn_implementation="sdpa",
        )
    )  # fmt: skip
    answer: PreTrainedModel = made.eval()
    return answer
