"""Measure what a served episode of four turns costs the node, against the same number of tokens in one turn.

A real engine process (transformers, float32, a model of SmolLM2-135M's depth and width, random weights) generates
rollouts both ways: each of the second kind has the length of one of the first, so that equally many rows run at each
time. The served turns are stored and sealed as node/rollouts/served_groups.py does it; their answers, of `GIVEN`
tokens, are there at once. CPU of the engine's process and of this one. The network's part is that
of benchmarks/step_round_trip.py, whose CPU per turn is added.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.harness import bench
from benchmarks.harness.bench import Measured
from echo2.engines.engine import Job, Sample, SampledTurn
from echo2.engines.process.process import EngineProcess
from echo2.node.rollouts.turn_store import TurnStore
from echo2.p2p.envelope import seal
from echo2.p2p.identity import generate_key
from echo2.p2p.wire_types import encode
from echo2.protocol.steps import StepRequest
from echo2.weights.torch_io import save_model

VOCABULARY: Final = 32
"""So small that a turn ends after 32 tokens on average."""
EOS: Final = 1
TURNS: Final = 4
GIVEN: Final = (5, 6, 7, 8, 9, 10, 11, 12)
PROMPT: Final = 32


def make_model(folder: Path, vocabulary: int = VOCABULARY, text: Tokenizer | None = None) -> Path:
    """Write the model folder, with a tokenizer; return its snapshot."""
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True, rms_norm_eps=1e-5,
        bos_token_id=0, eos_token_id=EOS, initializer_range=0.01,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = torch.nn.Module.to(LlamaForCausalLM(config), torch.bfloat16)
    model.save_pretrained(folder)
    (text or Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))).save(str(folder / "tokenizer.json"))
    return save_model(model, folder / "v0.safetensors").path


class Episodes:
    """The node's end of served episodes, with an environment that ends them after `TURNS` turns. `steps`: answered."""

    def __init__(self, folder: Path) -> None:
        self._store, self._key = TurnStore(folder / "turns.sqlite"), generate_key()
        self.steps = 0

    async def __call__(self, sampled_turn: SampledTurn) -> Sequence[int] | None:
        """Answer a turn, and do the node's work for it."""
        one = sampled_turn
        self._store.put_turn(one)
        step = StepRequest(lease=one.served, sample=one.sample, turn_number=one.turn_number, tokens=one.tokens)
        seal("request", bytes(32), encode(step), self._key)
        given = GIVEN if one.turn_number < 2 * (TURNS - 1) else None
        self._store.put_answer(one, given)
        self.steps += 1
        return given


def costs(
    runner: asyncio.Runner, folder: Path, rollouts: int, rounds: int
) -> tuple[list[Measured], list[Measured], float]:
    """Generate `rollouts` rollouts together both ways. Return what it cost per round, work in tokens sampled and given,
    and the mean of the tokens per step."""
    snapshot = make_model(folder / "model")
    process, episodes = EngineProcess(), Episodes(folder)
    lengths, tokens = list[int](), 0
    """Tokens of each rollout of the last served round; of all served ones."""

    def job(number: int, limit: int, eos: int, served: bytes = b"") -> Job:
        return Job(
            prompt=[3 + place % 20 for place in range(PROMPT)], seeds=[number.to_bytes(16, "big")], limit=limit,
            eos=eos, task="x", task_version=1, split="train", index=0, single_turn=not served, served=served,
        )  # fmt: skip

    number = 0

    def names() -> list[int]:
        nonlocal number
        number += rollouts
        return list(range(number - rollouts, number))

    async def served() -> list[list[Sample]]:
        jobs = [job(one, 1_000, EOS, one.to_bytes(16, "big")) for one in names()]
        return list(await asyncio.gather(*(process.generate_served(one, episodes) for one in jobs)))

    async def whole() -> list[list[Sample]]:
        jobs = [job(one, length, VOCABULARY) for one, length in zip(names(), lengths, strict=True)]
        return await process.generate_all(jobs)

    def candidate(generate: Any, count: bool) -> Measured:
        nonlocal lengths, tokens
        before = bench.cpu_of(os.getpid())
        samples = [sample for group in runner.run(generate()) for sample in group]
        spent, total = bench.cpu_of(os.getpid()) - before, sum(len(sample.tokens) for sample in samples)
        if count:
            lengths, tokens = [len(sample.tokens) for sample in samples], tokens + total
        return Measured(total, spent, 0.0)

    async def ready() -> None:
        await process.start()
        await process.probe("cpu", "float32", engine="transformers")
        await process.load(folder / "model", snapshot)

    runner.run(ready())
    try:
        measured = bench.take_turns(
            {"served": lambda: candidate(served, True), "one turn": lambda: candidate(whole, False)}, rounds
        )
    finally:
        runner.run(process.stop())
    return measured["served"], measured["one turn"], tokens / episodes.steps
