"""Measure what is learned from equal rollouts under different rules of selection: `python -m benchmarks.selection`.

A tiny model learns from rollouts S steps old, on one thread, as in benchmarks.learning: the product's own training
step, and the product's own choice of prompts over a real run.sqlite. All runs have one base model, and all rows the
same seeds and number of generated rollouts. There is no network and no verification.

Of the 900 training prompts of four digits three in ten ask for the digits as they stand, which the base model does at
once, three in ten for the digits reversed, which it does at times, and four in ten have an answer that cannot be known.
So seven in ten teach little or nothing, as in a set of problems that are too easy, too hard or wrong.

    python -m benchmarks.selection run --seed 1 --folder FOLDER   # adds what is missing in docs/results/selection
    python -m benchmarks.selection draw                           # makes docs/results/selection.svg and selection.md

A report without a bar: each figure stands beside its standard error over the seeds.
"""

import argparse
import hashlib
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.harness import bench, picture
from benchmarks.harness.figure_mark import figure_mark
from benchmarks.harness.picture import Linear
from benchmarks.learning import Setting, grade, heldout, sample, samples_of
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner import step
from echo2.coordinator.learner.batches.batch_groups import TrainBatch, TrainGroup
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.objective.advantages import signal_of
from echo2.coordinator.learner.optimiser import Optimiser
from echo2.coordinator.learner.warmup import build
from echo2.coordinator.prompts.prompt_choice import candidates, choose_prompt
from echo2.coordinator.prompts.prompt_records import PromptRecords, figures_of
from echo2.coordinator.prompts.prompts import PromptOrder
from echo2.coordinator.verdicts.replay_buffer import ReplayBuffer
from echo2.tasks.arithmetic import Arithmetic
from echo2.tasks.task import Score
from echo2.tasks.tokenizer import EOS, FileTokenizer, char_tokenizer

EVERY: Final = 10
"""Steps between two evaluations."""
LAST: Final = 3
"""Evaluations at the end whose mean is a run's result."""
NODES: Final = 8
"""Nodes, each a party of its own, that bring the groups in turn."""
RESULTS: Final = Path(__file__).parents[1] / "docs" / "results"
TEXT: Final = FileTokenizer(char_tokenizer(), EOS)


PLAIN: Final = "012"
REVERSED: Final = "345"
"""First digits of questions, by kind; those of all others cannot be answered."""
NOISE: Final = {**dict.fromkeys(PLAIN, 0.02), **dict.fromkeys(REVERSED, 0.3)}
"""Share of wrong digits in demonstrations, by the first digit of the question; else `UNKNOWN`: any digit at all."""
UNKNOWN: Final = 0.9


def _pose(number: int) -> tuple[str, str]:
    """Return question and answer. The question's first digit tells its kind."""
    digest = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=4).digest()
    digits, unknown = (f"{int.from_bytes(part, 'big') % 10_000:04d}" for part in (digest[:2], digest[2:]))
    kind = str(number % 10)
    return f"{kind}{digits}>", digits if kind in PLAIN else digits[::-1] if kind in REVERSED else unknown


TASK: Final = Arithmetic("mixed", 1, 1_200, _pose, lambda question, answer: question[1:5], share=4)


class Rule(NamedTuple):
    """A row. `prompts`, `draw`: as the settings. `supply`: groups generated per group learned from; above 1 the steps
    are fewer, the rollouts as many, and the groups wait in a replay buffer."""

    prompts: str = "order"
    draw: str = "oldest"
    supply: float = 1.0


ROWS: Final[Mapping[str, Rule]] = {
    "prompts in order": Rule(),
    "prompts by variance": Rule(prompts="variance"),
    "of 1.5, oldest": Rule(supply=1.5),
    "of 1.5, by signal": Rule(supply=1.5, draw="signal"),
}


class Scene(NamedTuple):
    """The small run. `warm`: of the base model. `groups`: learned from per step."""

    warm: Setting = Setting(hidden=64, heads=4, warm_steps=2_500, warm_batch=32)
    steps: int = 60
    groups: int = 12
    group_size: int = 8
    staleness: int = 4
    rate: float = 5e-4


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A run with one seed. `accuracy`: held out, sampled at T = 1, before the first step and after every `EVERY`.
    `signal`: share of the groups learned from whose rewards differ, per step. `seconds`: CPU."""

    row: str
    seed: int
    rollouts: int
    accuracy: list[float]
    signal: list[float]
    seconds: float

    @property
    def result(self) -> float:
        """The mean of the last evaluations."""
        return statistics.fmean(self.accuracy[-LAST:])


def warmed(scene: Scene, seed: int) -> PreTrainedModel:
    """Return the base model of a seed, after supervised steps on noisy demonstrations. All are of one length, so a
    batch needs no packing."""
    warm = scene.warm
    model, size = build(warm.shape, seed), TASK.size("train")
    optimiser, chance = torch.optim.AdamW(model.parameters(), lr=2e-3), np.random.default_rng(seed)
    for _ in range(warm.warm_steps):
        indices = chance.integers(0, size, warm.warm_batch).tolist()
        rows = torch.tensor([[*_prompt(index), *_demonstration(index, chance)] for index in indices])
        answer = len(_prompt(0))
        logits = model(rows).logits[:, answer - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, answer:].flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    return model


def _prompt(index: int) -> list[int]:
    return list(TASK.episode("train", index, TEXT).prompt)


def _demonstration(index: int, chance: np.random.Generator) -> Sequence[int]:
    """Return a demonstration: digits as they stand with few mistakes, reversed ones with many, others at random."""
    question, _ = TASK.question("train", index)
    return TASK.demonstration("train", index, TEXT, int(chance.integers(1 << 31)), NOISE.get(question[0], UNKNOWN))


class Prompts:
    """The prompts of a run's positions, by a rule."""

    def __init__(self, rule: Rule, seed: int, database: Database) -> None:
        self._by_variance = rule.prompts == "variance"
        self._order = PromptOrder(TASK.size("train"), seed)
        self._records = PromptRecords(database)
        self._position = self._groups = 0

    def next(self) -> int:
        """Return the index of the next position's prompt."""
        position, self._position = self._position, self._position + 1
        if not self._by_variance:
            return self._order.index(position)
        summary = self._records.summary(TASK.name, TASK.version, candidates(self._order, position))
        return choose_prompt(self._order, position, summary)

    def group_id(self) -> bytes:
        """Return an id of its own for a group."""
        self._groups += 1
        return self._groups.to_bytes(16, "big")

    def came(self, index: int, node: int, rewards: Sequence[float]) -> None:
        """Note a group of a prompt."""
        figures = figures_of(f"party {node}", bytes([node]), rewards)
        self._records.add(TASK.name, TASK.version, index, figures)


def score_success(score: Score) -> Score:
    """Return a score whose reward is 1 or 0."""
    return Score(float(score.success), score.success)


def generated(
    model: PreTrainedModel, prompts: Prompts, count: int, scene: Scene, version: int, chance: torch.Generator
) -> list[TrainGroup]:
    """Generate `count` groups by `model`, whose version is `version`. The reward is 1 or 0."""
    indices = [prompts.next() for _ in range(count)]
    texts = [_prompt(index) for index in indices]
    samples = samples_of(
        sample(model, texts, scene.group_size, chance),
        scene.group_size,
        lambda place, tokens: score_success(grade(TASK, TEXT, "train", indices[place], tokens)),
    )
    groups = []
    for place, (index, text, group) in enumerate(zip(indices, texts, samples, strict=True)):
        prompts.came(index, place % NODES, [one.reward for one in group])
        prompt = np.array(text, np.int32)
        groups.append(TrainGroup(id=prompts.group_id(), version=version, prompt=prompt, samples=group))
    return groups


class WaitingGroups:
    """The product's replay buffer over generated groups."""

    def __init__(self, rule: Rule, scene: Scene, database: Database) -> None:
        database.do("PRAGMA foreign_keys = OFF")  # its rows have no leases here
        self._database, self._groups = database, dict[bytes, TrainGroup]()
        self._buffer = ReplayBuffer(database, scene.staleness, by_signal=rule.draw == "signal")
        self._size = scene.groups

    def put(self, groups: Sequence[TrainGroup]) -> None:
        """Add groups."""
        for one in groups:
            rewards = [sample.reward for sample in one.samples]
            row = (one.id, one.version, len(self._groups), len(set(rewards)) > 1, round(1e6 * signal_of(rewards)))
            query = "INSERT INTO buffer (lease, era, version, at, varied, signal) VALUES (?, 1, ?, ?, ?, ?)"
            self._database.do(query, row)
            self._groups[one.id] = one

    def draw(self, step_number: int) -> list[TrainGroup] | None:
        """Return the batch of the learner at a step; None: there are too few groups."""
        drawn = self._buffer.draw(step_number, 1, self._size)
        return None if drawn is None else [self._groups[one.id] for one in drawn]


def learn(name: str, model: PreTrainedModel, scene: Scene, seed: int) -> Curve:
    """Train a base model by a row's rules. With supply to spare groups are made by the newest policy, else by that of S
    steps ago."""
    rule, began = ROWS[name], time.process_time()
    hyper = Hyper(learning_rate=scene.rate)
    optimiser, behaviour = Optimiser(model, hyper), build(scene.warm.shape, seed)
    history: deque[dict[str, Tensor]] = deque(maxlen=scene.staleness + 1 if rule.supply == 1 else 1)
    chance, accuracy, signal = torch.Generator().manual_seed(seed), [heldout(model, TASK, TEXT)], []
    rollouts, whole = 0, scene.steps * scene.groups * scene.group_size
    with tempfile.TemporaryDirectory() as folder, Database.open(Path(folder) / "run.sqlite") as database:
        database.do("PRAGMA synchronous = OFF")
        prompts, waiting, done = Prompts(rule, seed, database), WaitingGroups(rule, scene, database), 0
        while rollouts < whole:
            history.append({key: tensor.detach().clone() for key, tensor in model.state_dict().items()})
            behaviour.load_state_dict(history[0])
            count = round(rule.supply * scene.groups)
            waiting.put(generated(behaviour, prompts, count, scene, done + 1 - len(history), chance))
            rollouts += count * scene.group_size
            groups = waiting.draw(done)
            assert groups is not None
            metrics = step.train_step(model, optimiser, TrainBatch(step=done + 1, groups=groups), hyper, steps=done)
            done, due = done + 1, len(accuracy) * EVERY * scene.groups * scene.group_size
            signal.append(1 - metrics["zero_variance"])
            if rollouts >= due:
                accuracy.append(heldout(model, TASK, TEXT))
    return Curve(
        row=name, seed=seed, rollouts=whole, accuracy=accuracy, signal=signal, seconds=time.process_time() - began
    )


def base_of(scene: Scene, folder: Path) -> dict[str, Tensor]:
    """Return the weights of the base model, which are made once in a folder."""
    path = folder / "base.safetensors"
    if not path.exists():
        model = warmed(scene, 0)
        save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, path)
    return load_file(path)


def run(scene: Scene, rows: Sequence[str], seed: int, folder: Path, out: Path) -> None:
    """Make those runs of a seed that are missing, a file for each."""
    base, model = base_of(scene, folder), build(scene.warm.shape, 0)
    for name in rows:
        path = out / f"{name.replace(' ', '-').replace(',', '')}-{seed}.json"
        if path.exists():
            continue
        model.load_state_dict(base)
        curve = learn(name, model, scene, seed)
        path.write_bytes(msgspec.json.encode(curve) + b"\n")
        print(f"seed {seed}, {name}: {curve.result:.3f}, {curve.seconds:.0f} CPU seconds", flush=True)


def read(folder: Path) -> list[Curve]:
    """Return the curves of a folder."""
    return [msgspec.json.decode(path.read_bytes(), type=Curve) for path in sorted(folder.glob("*.json"))]


class Mean(NamedTuple):
    """A mean over seeds, and its standard error."""

    value: float
    error: float


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of one value per seed."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return Mean(statistics.fmean(values), error)


def table(curves: Sequence[Curve]) -> str:
    """Return the rows as Markdown. Differences are between runs of one seed."""
    names = [name for name in ROWS if any(one.row == name for one in curves)]
    first = {one.seed: one for one in curves if one.row == names[0]}
    lines = [
        "# Selection: what is learned from equal rollouts",
        "",
        f"{len(first)} seeds, {curves[0].rollouts:,} rollouts each.",
        f"Accuracy is that on 300 held-out prompts, of which 0.6 can be known: the mean of the last {LAST}",
        "evaluations, with its standard error over the seeds; then the difference from the first row, seed by seed.",
        "",
        figure_mark("python -m benchmarks.selection run --seed 1 --folder FOLDER", "selection"),
        "",
        "| row | base | accuracy | against the first row | groups with signal | CPU seconds |",
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        some = [one for one in curves if one.row == name and one.seed in first]
        result, signal = mean_of([one.result for one in some]), mean_of([statistics.fmean(one.signal) for one in some])
        against = mean_of([one.result - first[one.seed].result for one in some])
        cells = [
            name,
            f"{statistics.fmean(one.accuracy[0] for one in some):.3f}",
            f"{result.value:.3f} ± {result.error:.3f}",
            "" if name == names[0] else f"{against.value:+.3f} ± {against.error:.3f}",
            f"{signal.value:.2f} ± {signal.error:.2f}",
            f"{statistics.fmean(one.seconds for one in some):.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", "![held-out accuracy against rollouts](selection.svg)", ""])


def drawing(curves: Sequence[Curve]) -> str:
    """Return the SVG: means over the seeds, with bars of one standard error."""
    names = [name for name in ROWS if any(one.row == name for one in curves)]
    points = max(len(one.accuracy) for one in curves)
    every = curves[0].rollouts / (points - 1)
    across, up = Linear(0, curves[0].rollouts, picture.LEFT, picture.RIGHT), Linear(0, 0.6, picture.BOTTOM, picture.TOP)
    columns = {tick: f"{tick:,.0f}" for tick in across.ticks()}
    parts = picture.grid(across, up, columns, {tick / 10: f"{tick / 10:g}" for tick in range(7)}, "rollouts")
    ends = dict[str, float]()
    for number, name in enumerate(names):
        style = ("c1", "c5", "c4", "c3", "c2")[number % 5]
        some = [one for one in curves if one.row == name]
        means = [mean_of([one.accuracy[place] for one in some]) for place in range(points)]
        places = [(across.at(place * every) + 2 * number, one) for place, one in enumerate(means)]
        parts.append(picture.polyline([(x, up.at(one.value)) for x, one in places], style))
        parts += [
            picture.polyline([(x, up.at(one.value - one.error)), (x, up.at(one.value + one.error))], style)
            for x, one in places
        ]
        ends[name] = up.at(means[-1].value)
    for name, height in picture.apart(ends).items():
        parts.append(picture.text(picture.RIGHT + 16, height + 4, name, "small"))
    seeds = len({one.seed for one in curves})
    below = f"held-out accuracy of a tiny model; {seeds} seeds, bars of one standard error"
    return picture.svg("Selection", "What is learned from equal rollouts", below, parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or draw; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selection", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run_parser = commands.add_parser("run")
    run_parser.add_argument("--seed", type=int, required=True)
    run_parser.add_argument("--folder", type=Path, required=True, help="for the base model")
    run_parser.add_argument("--steps", type=int, default=Scene().steps)
    run_parser.add_argument("--warm-steps", type=int, default=Scene().warm.warm_steps, help="of the base model")
    run_parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    for one in (run_parser, commands.add_parser("draw")):
        one.add_argument("--out", type=Path, default=RESULTS, help="docs/results unless told otherwise")
    order = parser.parse_args(arguments)
    if order.command == "run":
        (order.out / "selection").mkdir(parents=True, exist_ok=True)
        scene = Scene(steps=order.steps, warm=Scene().warm._replace(warm_steps=order.warm_steps))
        run(scene, order.rows, order.seed, order.folder, order.out / "selection")
        return 0
    curves = read(order.out / "selection")
    (order.out / "selection.md").write_text(table(curves))
    (order.out / "selection.svg").write_text(drawing(curves))
    print(table(curves))
    return 0


if __name__ == "__main__":
    bench.one_thread()
    sys.exit(main())
