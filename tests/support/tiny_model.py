"""A tiny Qwen3 model on disk: folder with config.json and tokenizer.json, and a bf16 snapshot."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from echo2.engines.engine import Job
from echo2.tasks import registry, tokenizer
from echo2.weights.diff import encode
from echo2.weights.snapshot import Snapshot
from echo2.weights.torch_io import save_model

TEXT = tokenizer.FileTokenizer(tokenizer.char_tokenizer(), tokenizer.EOS)


class OnDisk(NamedTuple):
    folder: Path
    snapshot: Path
    root: bytes
    model: Any


def make(folder: Path, seed: int = 0, eos_bias: float = 0.0) -> OnDisk:
    """Make a model of random weights, under which tokens differ in likelihood. `eos_bias`: above 0 it favours eos."""
    folder.mkdir(parents=True, exist_ok=True)
    config = Qwen3Config(
        vocab_size=tokenizer.CHAR_SIZE,
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=128, head_dim=16, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=tokenizer.EOS, pad_token_id=tokenizer.PAD, initializer_range=0.15,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    if eos_bias:
        with torch.no_grad():
            model.model.embed_tokens.weight[tokenizer.EOS] *= 1 + eos_bias
    config.save_pretrained(folder)
    tokenizer.char_tokenizer().save(str(folder / "tokenizer.json"))
    snapshot = save_model(model, folder / f"{seed}.snapshot")
    return OnDisk(folder, snapshot.path, snapshot.root, model)


def next_version(old: OnDisk, scale: float = 0.02) -> tuple[OnDisk, Path]:
    """Move the weights a little; return the new snapshot with its payload."""
    model = old.model
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * parameter.std() * torch.randn(parameter.shape, generator=generator)
    snapshot = save_model(model, old.folder / "next.snapshot")
    payload = old.folder / "payload"
    encode(Snapshot(old.snapshot), snapshot, payload)
    return OnDisk(old.folder, snapshot.path, snapshot.root, model), payload


def job(
    index: int = 0, samples: int = 8, limit: int = 8, task: str = "reverse", split: str = "train", first: int = 0
) -> Job:
    """Return the job of a group of the demo's tasks. `first`: the number of its first seed."""
    prompt = list(registry.get(task, 1).episode("train" if split == "train" else "heldout", index, TEXT).prompt)
    seeds = [b"seed" + (1000 * index + first + sample).to_bytes(12, "little") for sample in range(samples)]
    return Job(
        prompt=prompt, seeds=seeds, limit=limit, eos=tokenizer.EOS, task=task, task_version=1, split=split, index=index
    )
