"""Architectures that runs are made of, each as a tiny model, and groups of mixed lengths for `Decoder`."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from echo2.engines.batch.continuous_batch import ContinuousBatch
from echo2.engines.batch.rollout_state import RolloutState
from echo2.engines.batch.row_limit import RowLimit
from echo2.engines.engine import EngineRows, Finished, Job, SampledTurn
from echo2.engines.transformers.decoder import Decoder
from echo2.tasks import registry
from tests.support.tiny_model import TEXT

VOCABULARY = 64
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 8, "max_position_embeddings": 512,
    "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": TEXT.eos, "pad_token_id": 0,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SLIDING: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 7, "query_pre_attn_scalar": 8,
}  # fmt: skip
MODELS: dict[str, tuple[Any, Any]] = {
    "Qwen3": (Qwen3ForCausalLM, Qwen3Config(**SHAPE)),
    "Llama": (LlamaForCausalLM, LlamaConfig(**SHAPE)),
    "Gemma 3, of which some layers slide": (Gemma3ForCausalLM, Gemma3TextConfig(**SHAPE, **SLIDING)),
    "Qwen3-MoE": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**SHAPE, **EXPERTS)),
    "Mistral, whose layers all slide": (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=7)),
}


def job(index: int, samples: int, limit: int, prompt: Sequence[int]) -> Job:
    return Job(
        prompt=list(prompt), seeds=[bytes([index, number]) * 8 for number in range(samples)], limit=limit,
        eos=TEXT.eos, task="reverse", task_version=1, split="train", index=index,
    )  # fmt: skip


def mixed() -> list[Job]:
    """Prompts of 1 to 60 tokens and completions of up to 37, more rows than run at once."""
    chance = torch.Generator().manual_seed(2)
    return [
        job(index, 1 + index % 4, 1 + 4 * index, torch.randint(2, 60, (1 + 6 * index,), generator=chance).tolist())
        for index in range(10)
    ]


class Batched:
    """The calls of an engine that generate."""

    def __init__(self, decoder: Decoder, limit: int | None = None) -> None:
        self.batch = ContinuousBatch(decoder, self.rollouts, RowLimit(limit), decoder.clock)

    def rollouts(self, job: Job) -> list[RolloutState]:
        if job.served:
            return [RolloutState(job, seed, None, number=number) for number, seed in enumerate(job.seeds)]
        task = registry.get(job.task, job.task_version)
        return [RolloutState(job, seed, task.episode("train", job.index, TEXT)) for seed in job.seeds]

    def begin(self, ticket: int, job: Job) -> None:
        self.batch.begin(ticket, job)

    def cancel(self, ticket: int) -> None:
        self.batch.cancel(ticket)

    def turns(self) -> list[SampledTurn]:
        return self.batch.turns()

    def answer(self, served: bytes, sample: int, turn_number: int, given: Sequence[int] | None) -> None:
        self.batch.answer(served, sample, turn_number, given)

    @property
    def idle(self) -> bool:
        return self.batch.idle

    def step(self) -> list[Finished]:
        return self.batch.step()

    @property
    def rows(self) -> EngineRows:
        return self.batch.rows
