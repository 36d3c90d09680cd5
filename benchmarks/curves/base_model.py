"""The base of a curve: SmolLM2-135M-Instruct after a few supervised steps on demonstrations of the task."""

import json
import random
import tempfile
from pathlib import Path
from typing import Final

import msgspec
import torch
from transformers import AutoModelForCausalLM

from benchmarks.curves.plans import WARM_BATCH, Curve
from echo2.coordinator.learner.messages import WarmUp
from echo2.coordinator.learner.warmup import supervise
from echo2.coordinator.run import model_folder
from echo2.tasks import plugins, tokenizer
from echo2.tasks.poker.exploitability import situations
from echo2.tasks.poker.opponents import kuhn_equilibrium, uniform
from echo2.tasks.poker.poker_task import PokerTask, hand_number
from echo2.tasks.poker.situation import tokens_before
from echo2.tasks.task import Task, Tokenizer, prompt_of
from echo2.weights.torch_io import save_model

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
    """Return (tokens read, of an answer), one for each of the first indices of the train split."""
    if isinstance(task, PokerTask):
        return _moves_of_kuhn(text, number, slip)
    return [
        (
            list(prompt_of(task, "train", index, text)),
            list(task.demonstration("train", index, text, SEED + index, 0.0, slip)),
        )
        for index in range(number)
    ]


def _moves_of_kuhn(text: Tokenizer, number: int, slip: float) -> list[tuple[list[int], list[int]]]:
    """Return moves in all situations alike, also in those that the equilibrium seldom comes to. With probability `slip`
    a move is any legal one, else the equilibrium's."""
    chance, places = random.Random(SEED), situations("kuhn")
    rows: list[tuple[list[int], list[int]]] = []
    for index in range(number):
        situation = chance.choice(places)
        policy = uniform if chance.random() < slip else kuhn_equilibrium
        (move,) = chance.choices(situation.legal, policy(situation))
        before = tokens_before(hand_number("train", index), situation, text)
        rows.append((before, [*text.encode(move), text.eos]))
    return rows
