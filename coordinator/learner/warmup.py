"""Create a base model: random weights, warmed up on noisy demonstrations, saved as an ordinary model folder.

The folder has the usual files: config.json, generation_config.json (eos), tokenizer.json, model.safetensors (bfloat16,
tied weights once).

The length of the warm-up matters: a policy that never answers correctly gets no signal, and one that always does has
nothing to learn. benchmarks/learning.py measures the effect of the length.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from echo2.coordinator.learner.batches.batch import TrainRow, pack
from echo2.coordinator.learner.batches.logprobs import token_logprobs
from echo2.coordinator.learner.messages import WARMED_CONTEXT, WarmedUp, WarmUp
from echo2.coordinator.learner.model import evaluating, parameter_count
from echo2.tasks import registry
from echo2.tasks.tokenizer import CHAR_SIZE, EOS, PAD, FileTokenizer, char_tokenizer

SHAPE = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 384,
    "max_position_embeddings": WARMED_CONTEXT,
}
RAMP_STEPS = 20
"""Steps over which the learning rate rises linearly to its value."""
GRADIENT_CLIP = 1.0
_ONE_BATCH = 1 << 40


def warm_up(order: WarmUp) -> WarmedUp:
    """Write the model folder that `order` describes; deterministic in its seed. Raises UnknownTask, and ValueError for
    a shape that the architecture does not admit."""
    started = time.perf_counter()
    torch.set_num_threads(1)
    tokenizer = char_tokenizer()
    model = build(order.shape, order.seed)
    loss = supervise(model, order, FileTokenizer(tokenizer, EOS))
    save(model, tokenizer, Path(order.folder))
    seconds = time.perf_counter() - started
    return WarmedUp(folder=order.folder, parameters=parameter_count(model), loss=loss, seconds=seconds)


def build(shape: dict[str, int], seed: int) -> PreTrainedModel:
    """Return a Qwen3 model with tied embeddings over the demo's characters, with random weights."""
    merged: dict[str, Any] = SHAPE | shape
    if merged["hidden_size"] % merged["num_attention_heads"]:
        raise ValueError("hidden_size must be a multiple of num_attention_heads")
    if merged.get("vocab_size", CHAR_SIZE) < CHAR_SIZE:
        raise ValueError(f"vocab_size must be at least the tokenizer's {CHAR_SIZE}")
    merged = {"vocab_size": CHAR_SIZE, "head_dim": merged["hidden_size"] // merged["num_attention_heads"]} | merged
    config = Qwen3Config(
        **merged, tie_word_embeddings=True, bos_token_id=None, eos_token_id=EOS, pad_token_id=PAD, dtype="float32"
    )
    torch.manual_seed(seed)
    return evaluating(Qwen3ForCausalLM(config))


def supervise(model: PreTrainedModel, order: WarmUp, text: FileTokenizer) -> float:
    """Train on demonstrations from the training split; return the last step's loss (mean over tokens, nats)."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=order.learning_rate, weight_decay=0.0)
    value = 0.0
    for number, part in enumerate(demonstrations(order, text)):
        for group in optimiser.param_groups:
            group["lr"] = order.learning_rate * min(1.0, (number + 1) / RAMP_STEPS)
        (micro,) = pack([[row] for row in part], _ONE_BATCH)
        loss = -token_logprobs(model, micro).mean()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_CLIP)
        optimiser.step()
        optimiser.zero_grad()
        value = float(loss.detach())
    return value


def demonstrations(order: WarmUp, text: FileTokenizer) -> Iterator[list[TrainRow]]:
    """Yield `order.steps` batches of prompts with noisy answers; the answers are the targets."""
    answered = _from_file(Path(order.demonstrations)) if order.demonstrations else _by_task(order, text)
    chance = torch.Generator().manual_seed(order.seed)
    for _ in range(order.steps):
        part: list[TrainRow] = []
        for index, seed in torch.randint(0, 1 << 31, (order.batch, 2), generator=chance).tolist():
            prompt, answer = answered(index, seed)
            targets = np.arange(len(prompt), len(prompt) + len(answer))
            behaviour = np.zeros(len(answer), np.float32)
            part.append(
                TrainRow(np.array(prompt + answer, np.int32), targets, behaviour, 0.0, 0, len(prompt), len(part))
            )
        yield part


Answered = Callable[[int, int], tuple[list[int], list[int]]]
"""(index, seed) -> tokens of a prompt, and of a noisy answer to it. Any index will do."""


def _by_task(order: WarmUp, text: FileTokenizer) -> Answered:
    task = registry.get(order.task, order.task_version)
    size = task.size("train")

    def answered(index: int, seed: int) -> tuple[list[int], list[int]]:
        answer = task.demonstration("train", index % size, text, seed, order.noise, order.slip)
        return list(task.episode("train", index % size, text).prompt), list(answer)

    return answered


def _from_file(path: Path) -> Answered:
    rows = msgspec.msgpack.decode(path.read_bytes(), type=list[tuple[list[int], list[int]]])
    return lambda index, seed: rows[index % len(rows)]


def save(model: PreTrainedModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the model folder, in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
