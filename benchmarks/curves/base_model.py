"""The base of a curve: SmolLM2-135M-Instruct after a few supervised steps on demonstrations of the task."""

import json
import tempfile
from pathlib import Path
from typing import Final

import msgspec
import torch
from transformers import AutoModelForCausalLM

from benchmarks.curves.plans import WARM_BATCH, Curve
from coordinator.learner.messages import WarmUp
from coordinator.learner.warmup import supervise
from coordinator.run import model_folder
from tasks import plugins, tokenizer
from tasks.task import Task, prompt_of
from weights.torch_io import save_model

SEED: Final = 20261123
"""Of the warm-up: all seeds of a curve begin with one base."""


def make_base(folder: Path, curve: Curve) -> None:
    """Write the model folder, unless it is there."""
    if (folder / "warm.json").exists():
        return
    model_folder.make_smollm2(folder)
    eos = model_folder.facts(folder).eos
    text = tokenizer.load(folder / "tokenizer.json", eos)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with tempfile.NamedTemporaryFile() as file:
        rows = demonstrations(plugins.find(curve.task), text, curve.warm_batches * WARM_BATCH, curve.slip)
        Path(file.name).write_bytes(msgspec.msgpack.encode(rows))
        order = WarmUp(
            folder=str(folder), task=curve.task, task_version=1, steps=curve.warm_batches, noise=0.0, slip=curve.slip,
            batch=WARM_BATCH, learning_rate=curve.warm_rate, seed=SEED, demonstrations=file.name,
        )  # fmt: skip
        loss = supervise(model, order, text)
    torch.nn.Module.to(model, torch.bfloat16)
    save_model(model, folder / model_folder.WEIGHTS)
    (folder / "warm.json").write_text(json.dumps({"batches": curve.warm_batches, "loss": loss}))


def demonstrations(
    task: Task, text: tokenizer.FileTokenizer, number: int, slip: float
) -> list[tuple[list[int], list[int]]]:
    """Return (tokens of a prompt, of an answer) for the first prompts of the train split."""
    return [
        (
            list(prompt_of(task, "train", index, text)),
            list(task.demonstration("train", index, text, SEED + index, 0.0, slip)),
        )
        for index in range(number)
    ]
