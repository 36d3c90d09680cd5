"""Make a stream of versions by the project's own learner on SmolLM2-135M. For `benchmarks.diff`.

These parts are the product's own: the model (coordinator.learner.smollm2); rollouts by the engine under the version
just exported, which it reaches by the exported payload; the task's episode and reward; `coordinator.learner.session`
with its GRPO objective, AdamW over float32 master weights, export in bfloat16, edges and checkpoints.

Differences from a real run:

1. There is no network and no staleness, and the batch is small (`GROUPS` groups of `GROUP_SIZE`).
2. The engine's log-probabilities replace the scorer's, which differ by rounding.
3. Unless `fresh`, each master weight starts at random within the cell that rounds to the same bfloat16, as after many
   steps. In the first step of a real run the master weights lie on bfloat16's grid, and few cross to the next value.
4. Unless `fresh`, the exact zeros that the model file's quantiser made, one in a hundred of the embedding, start at
   random within their cell of the quantiser. No trained model has them, and they would change by many units in every
   step.
5. Unless `fresh`, the first versions are left out, until the optimiser's moments are steady.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from benchmarks.diff.anchors import Words
from benchmarks.diff.streams import Stream
from benchmarks.plays.direct import generate
from echo2.coordinator.learner import model
from echo2.coordinator.learner.batches.batch_groups import TrainGroup, TrainSample
from echo2.coordinator.learner.messages import Batch, Hyper, Open, WarmUp
from echo2.coordinator.learner.ranks.split_master import publishable
from echo2.coordinator.learner.session import Session
from echo2.coordinator.learner.warmup import save, supervise
from echo2.coordinator.run import model_folder
from echo2.engines.engine import Job
from echo2.engines.transformers.engine import TransformersEngine
from echo2.tasks import tokenizer
from echo2.tasks.task import Task, Tokenizer, Transcript, replay
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot

GROUPS: Final = 4
GROUP_SIZE: Final = 8
LIMIT: Final = 6
"""Most sampled tokens of a rollout."""
BLOCK: Final = 32
"""Weights that share a quantiser's step in the package's file (GGUF's Q4_1 and Q8_0)."""
WARM: Final = 12
"""Versions left out: a third of them while the learning rate rises."""


class Course(NamedTuple):
    """Settings of a stream. `rate`: learning rate. `steps`: versions recorded after the first. `fresh`: the master
    weights start on the bfloat16 grid, and no version is left out. `lessons`: supervised steps on the task's
    demonstrations before it, for a task at which the base model earns no reward: then there is no gradient."""

    task: str
    rate: float
    steps: int
    fresh: bool = False
    lessons: int = 0

    @property
    def warm(self) -> int:
        return 0 if self.fresh else WARM

    @property
    def name(self) -> str:
        return f"{self.task}-lr{self.rate:g}{'-fresh' if self.fresh else ''}"


def learned(course: Course, folder: Path, say: Callable[[str], None]) -> Stream:
    """Make the stream, with about 5 GB of files in `folder`, and 7 GB while a checkpoint is written. `say`: gets
    progress lines. Raises `LocalFault` where the model's package is not installed."""
    model_folder.make_smollm2(folder / "model")
    if course.lessons:
        say(f"last loss of the lessons {teach(folder / 'model', course):.2f}")
    if not course.fresh:
        spread(folder / "model" / "model.safetensors")
    loop = Loop(course, folder)
    for _ in range(course.warm):
        say(loop.step())
    base = current = bits_of(loop.at)
    steps = []
    for _ in range(course.steps):
        say(loop.step())
        new = bits_of(loop.at)
        index = np.flatnonzero(current != new)
        steps.append((index, new[index]))
        current = new
    return Stream(course.name, base, steps)


class Loop:
    """A learner and an engine in one process, which alternate."""

    def __init__(self, course: Course, folder: Path) -> None:
        base = folder / "model"
        hyper = Hyper(learning_rate=course.rate, warmup_steps=course.warm // 3)
        order = Open(
            model=str(base), folder=str(folder / "learner"), database="", device="cpu", hyper=hyper, published="",
            published_version=0, published_root=b"", era=1, next_era=2, staleness=0, threads=torch.get_num_threads(),
        )  # fmt: skip
        self._groups: dict[bytes, TrainGroup] = {}
        self._session = Session(order, report=print, read=lambda names: [self._groups[name] for name in names])
        first = self._session.answer_open().export
        assert first is not None
        self._folder, self._task = folder, model_folder.task_named(course.task)
        self._eos = model_folder.facts(base).eos
        self._text = tokenizer.load(base / "tokenizer.json", self._eos)
        self._engine, self._chance, self._number = TransformersEngine(), random.Random(course.name), 0
        Rolling.create(folder / "engine", Snapshot(Path(first.snapshot), root=first.root))
        self._engine.load(base, folder / "engine")

    @property
    def at(self) -> Snapshot:
        """Return the snapshot of the current version, which is valid until the next step."""
        return Snapshot(self._folder / "engine" / "snapshot.safetensors")

    def step(self) -> str:
        """Collect a batch under the current version, make a step, and move the engine to the new version; return a
        summary."""
        started = time.perf_counter()
        self._number += 1
        self._groups = {group.id: group for group in map(self._group, range(GROUPS))}
        generated = time.perf_counter()
        stepped = self._session.step(Batch(step=self._number, groups=list(self._groups)))
        length, self._number = 0, stepped.step
        if stepped.export is not None:  # a step that changes no published weight makes no version, and has no number
            # The engine goes to the new version as a node's does: by the payload.
            self._engine.step_by(Path(stepped.export.edges[0].payload), stepped.export.root, 0)
            length = Path(stepped.export.edges[0].payload).stat().st_size
        metrics = stepped.metrics
        return (
            f"step {self._number}: reward {metrics['reward']:.3f}, "
            f"groups without signal {metrics['zero_variance']:.0%}, "
            f"gradient {metrics['grad_norm']:.2g}, payload {length:,} bytes; rollouts {generated - started:.0f} s, "
            f"step {stepped.seconds:.0f} s, the rest {time.perf_counter() - generated - stepped.seconds:.0f} s"
        )

    def _group(self, place: int) -> TrainGroup:
        task, index = self._task, self._chance.randrange(self._task.size("train"))
        job = Job(
            prompt=list(task.episode("train", index, self._text).prompt),
            seeds=[self._chance.randbytes(16) for _ in range(GROUP_SIZE)],
            limit=LIMIT, eos=self._eos, task=task.name, task_version=task.version, split="train", index=index,
        )  # fmt: skip
        samples = [
            TrainSample(
                tokens=np.array(one.tokens, np.int32),
                turns=one.turns,
                behaviour=np.array(one.logprobs, np.float32),
                reward=reward(task, index, self._text, Transcript(one.tokens, one.turns)),
            )
            for one in generate(self._engine, job)
        ]
        name = b"%d-%d" % (self._number, place)
        return TrainGroup(id=name, version=self._number - 1, prompt=np.array(job.prompt, np.int32), samples=samples)


def teach(folder: Path, course: Course) -> float:
    """Rewrite the model after `course.lessons` supervised steps, in bfloat16; return the last loss."""
    network = model.load(folder, "cpu")
    task = model_folder.task_named(course.task)
    order = WarmUp(
        folder="", task=task.name, task_version=task.version, steps=course.lessons, noise=0.35, batch=16,
        learning_rate=2e-4,
    )  # fmt: skip
    loss = supervise(network, order, tokenizer.load(folder / "tokenizer.json", model_folder.facts(folder).eos))
    save(network, tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), folder)
    return loss


def reward(task: Task, index: int, text: Tokenizer, transcript: Transcript) -> float:
    """Return the task's reward for a transcript of prompt `index`."""
    return replay(task.episode("train", index, text), transcript, ends=text.ends, limit=LIMIT).reward


def bits_of(snapshot: Snapshot) -> Words:
    """Return the bits of all weights, tensor by tensor in the snapshot's order."""
    return np.concatenate([snapshot.bits(entry.name) for entry in snapshot.tensors])


def spread(weights: Path) -> None:
    """Rewrite a bfloat16 safetensors file in float32: move each weight at random within the cell that rounds to it, and
    the quantiser's zeros within their cells (differences 3 and 4)."""
    chance = np.random.default_rng(0)
    tensors = load_file(weights)
    spread = {name: _within_bf16(_without_zeros(tensor.float(), chance), chance) for name, tensor in tensors.items()}
    save_file(spread, weights, {"format": "pt"})


def _without_zeros(tensor: torch.Tensor, chance: np.random.Generator) -> torch.Tensor:
    """Replace the zeros of a quantised matrix by values within half a quantiser's step. The step of a block of `BLOCK`
    weights is the least difference between two of them."""
    if tensor.ndim < 2 or tensor.numel() % BLOCK:
        return tensor
    blocks = tensor.reshape(-1, BLOCK)
    apart = blocks.sort(1).values.diff(dim=1)
    step = torch.where(apart > 0, apart, torch.inf).amin(1, keepdim=True)
    step = torch.where(step.isinf(), 0.0, step)
    within = step * torch.from_numpy(chance.random(blocks.shape, np.float32) - 0.5)
    return torch.where(blocks == 0, within, blocks).reshape(tensor.shape)


def _within_bf16(tensor: torch.Tensor, chance: np.random.Generator) -> torch.Tensor:
    """Move values at random within their bf16 cell. The upper half of a float32's bits is its bfloat16, so the cell is
    the bits plus or minus 0x7FFF. 0 stays 0."""
    bits: NDArray[np.uint32] = publishable(tensor).float().numpy().view(np.uint32)
    within = chance.integers(-0x7FFF, 0x7FFF, bits.shape, np.int32, endpoint=True)
    return torch.from_numpy((bits.view(np.int32) + within * (bits & 0x7FFFFFFF != 0)).view(np.float32))
