"""Runs that die, each of one of twelve causes, and healthy ones: does the guard name the cause, and pause these alone?

    python -m benchmarks.guards                   # twelve causes and three healthy tasks
    python -m benchmarks.guards deaths sparse     # parts of it: deaths, reverse, add, sparse
    python -m benchmarks.guards --quick           # one seed of each cause, and one healthy run per task

Each run is the product's own training step and guard on the demo's tiny model, in this process, on rollouts `STALENESS`
steps old. It learns for `HEALTHY_STEPS` steps, and then its cause of death is put in; where the held-out prompts are of
another kind than those of training, it is there from the start. Steps are counted from there.

Claims: every cause is named within `NAMED_STEPS` steps or, where held-out results alone show it, `NAMED_EXAMS`
evaluations, and the run is paused within `PAUSED_STEPS` or `PAUSED_EXAMS`; no healthy run is paused.
"""

import argparse
import copy
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec

from benchmarks.harness import bench

bench.one_thread()  # sums in another order lead to other policies

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from benchmarks import learning  # noqa: E402
from benchmarks.harness.bench import Claim  # noqa: E402
from echo2.coordinator.learner import step  # noqa: E402
from echo2.coordinator.learner.batches.batch_groups import TrainBatch, TrainSample, cut_answers  # noqa: E402
from echo2.coordinator.learner.messages import Hyper, WarmUp  # noqa: E402
from echo2.coordinator.learner.optimiser import Optimiser  # noqa: E402
from echo2.coordinator.learner.warmup import build, supervise  # noqa: E402
from echo2.coordinator.training.run_guard import EXAM_RULES, Exam, Guard, GuardLimits, TaskResult, share_error  # noqa: E402
from echo2.tasks import registry  # noqa: E402
from echo2.tasks.task import Score, Task  # noqa: E402
from echo2.tasks.tokenizer import EOS, FileTokenizer, char_tokenizer  # noqa: E402

NAMED_STEPS, PAUSED_STEPS = 10, 30
NAMED_EXAMS, PAUSED_EXAMS = 4, 8
EXAM_EVERY: Final = 4
"""Steps from one evaluation to the next."""
HEALTHY_STEPS: Final = 20
SEEDS: Final = 3
STALENESS: Final = 1
UPDATES: Final = 4
"""Updates a step of a run that dies of its rate, or learns what it should not."""
SETTING: Final = learning.Setting(hidden=64, layers=2, heads=4, groups=12, group_size=8, staleness=STALENESS)

Scoring = Callable[[TrainSample, str, random.Random], Score]
"""(a rollout with the task's own score, its text, chance) -> its score."""


class Cause(NamedTuple):
    """A cause of death. `kind`: kind of the guard's rule. `score`: scores answers instead of the task. `rate`: learning
    rate. `heldout`: task of the held-out prompts."""

    kind: str
    words: str
    score: Scoring | None = None
    rate: float = SETTING.rate
    heldout: str = ""

    @property
    def by_exams(self) -> bool:
        """Whether held-out results alone show it."""
        return self.kind in EXAM_RULES


def _keep(sample: TrainSample, reward: float) -> Score:
    return Score(reward, sample.success)


def _begins(text: str, wanted: str) -> float:
    """Return the share of a wanted text that is at its place, whatever follows."""
    return sum(left == right for left, right in zip(text, wanted, strict=False)) / len(wanted)


def _is(text: str, wanted: str) -> float:
    """Return the share of characters that agree: a longer text is another answer."""
    return _begins(text, wanted) * len(wanted) / max(len(text), len(wanted))


CAUSES: Final = (
    Cause("gradient", "a rate of 1,000", rate=1e3),
    Cause("drift", "a rate of 0.01", rate=0.01),
    Cause(
        "entropy-high",
        "unlikely answers are paid",
        lambda sample, text, chance: _keep(sample, -float(sample.behaviour.mean())),
        rate=2e-3,
    ),
    Cause(
        "entropy-low",
        "answers that begin with 7777 are paid, by a score with noise",
        lambda sample, text, chance: _keep(sample, _begins(text, "7777") + 0.01 * chance.random()),
        rate=4e-3,
    ),
    Cause(
        "same-answer",
        "the answer 7777 is paid",
        lambda sample, text, chance: _keep(sample, _is(text, "7777")),
        rate=4e-3,
    ),
    Cause(
        "cut",
        "long answers are paid",
        lambda sample, text, chance: _keep(sample, len(sample.tokens) / learning.LIMIT),
        rate=4e-3,
    ),
    Cause("too-hard", "no answer is right", lambda sample, text, chance: Score(0.0, False)),
    Cause("too-easy", "any answer is right", lambda sample, text, chance: Score(1.0, True)),
    Cause("no-signal", "all answers are paid alike", lambda sample, text, chance: _keep(sample, 0.5)),
    Cause(
        "hacking",
        "the digit 7 is paid as well",
        lambda sample, text, chance: _keep(sample, sample.reward + text.count("7") / 2),
        rate=2e-3,
    ),
    Cause("held-out", "a rate of 0.03", rate=0.03),
    Cause("floor", "held-out prompts of another kind", heldout="add"),
)


class Healthy(NamedTuple):
    """A healthy run. `sparse`: one prompt in so many can be solved. `slip`: see `learning.Setting`."""

    task: str
    sparse: int = 1
    slip: float = SETTING.slip


HEALTHY: Final = {
    "reverse": Healthy("reverse"),
    "add": Healthy("add", slip=0.2),
    "sparse": Healthy("reverse", sparse=10),
}
DEATHS: Final = "deaths"


class Fate(NamedTuple):
    """The guard's answer to a run. `named`: first step at which it warned of the kind, by kind. `paused`: kind, step
    and sentence. `solved`: held-out result at the start and at the end."""

    named: dict[str, int]
    paused: tuple[str, int, str] | None
    solved: tuple[float, float]
    signal: float
    seconds: float


class Run:
    """A run in this process."""

    def __init__(self, model: PreTrainedModel, task: Task, seed: int, *, heldout: Task, sparse: int = 1) -> None:
        self.model, self._task, self._heldout, self._sparse = copy.deepcopy(model), task, heldout, sparse
        self._behaviour = copy.deepcopy(model)
        self._text = FileTokenizer(char_tokenizer(), EOS)
        self._history: deque[dict[str, Tensor]] = deque(maxlen=STALENESS + 1)
        self._sampling, self._chance = torch.Generator().manual_seed(seed), random.Random(seed)
        self.guard = Guard(GuardLimits(), {})
        self.signal = list[float]()
        self.learn_at(SETTING.rate)

    def learn_at(self, rate: float, updates: int = 1) -> None:
        """Begin a new optimiser, as a restart with another rate and so many updates a step does."""
        self._hyper = Hyper(learning_rate=rate, warmup_steps=1, minibatches=updates)
        self._optimiser, self._steps = Optimiser(self.model, self._hyper), 0

    def make_step(self, number: int, score: Scoring | None) -> dict[str, float]:
        """Make a step; return its metrics as the main process gets them."""
        self._history.append({name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()})
        self._behaviour.load_state_dict(self._history[0])
        batch = learning.collect(
            self._behaviour, self._task, self._text, SETTING, number, number - len(self._history), self._sampling
        )
        batch = self._scored(batch, score)
        metrics = step.train_step(self.model, self._optimiser, batch, self._hyper, steps=self._steps)
        self._steps += 1
        self.signal.append(1 - metrics["zero_variance"])
        return metrics | {"cut_answers": cut_answers(batch, (EOS,))}

    def _scored(self, batch: TrainBatch, score: Scoring | None) -> TrainBatch:
        groups = []
        for group in batch.groups:
            hopeless = self._chance.random() >= 1 / self._sparse
            samples = []
            for sample in group.samples:
                given = Score(0.0, False) if hopeless else Score(sample.reward, sample.success)
                if score is not None:
                    given = score(sample, self._text.decode(sample.tokens.tolist()), self._chance)
                samples.append(msgspec.structs.replace(sample, reward=given.reward, success=given.success))
            groups.append(msgspec.structs.replace(group, samples=samples))
        return msgspec.structs.replace(batch, groups=groups)

    def examine(self, number: int) -> Exam:
        """Return an evaluation."""
        solved = learning.heldout(self.model, self._heldout, self._text)
        prompts = min(learning.HELDOUT, self._heldout.size("heldout"))
        result = TaskResult(number, solved, share_error(solved, prompts), prompts)
        return Exam(era=1, version=number, root=b"%d" % number, results={self._heldout.name: result})


def live(run: Run, steps: int, cause: Cause | None = None) -> Fate:
    """Let a run make `steps` steps, or until it is paused; the cause of its death is put in behind `HEALTHY_STEPS`."""
    began, named, solved = time.process_time(), dict[str, int](), list[float]()
    paused = None
    exam = run.examine(0)
    run.guard.on_exam(exam)
    for number in range(1, steps + 1):
        dying = cause is not None and number > HEALTHY_STEPS
        if cause is not None and number == HEALTHY_STEPS + 1 and cause.rate != SETTING.rate:
            run.learn_at(cause.rate, UPDATES)
        alarms = [run.guard.on_step(1, number, run.make_step(number, cause.score if cause and dying else None))]
        if number % EXAM_EVERY == 0:
            exam = run.examine(number)
            alarms.append(run.guard.on_exam(exam))
        solved.append(next(iter(exam.results.values())).value)
        for kind in run.guard.warnings():
            named.setdefault(kind, number)
        alarm = next((one for one in alarms if one is not None), None)
        if alarm is not None:
            paused = (alarm.kind, number, alarm.why)
            break
    signal = sum(run.signal) / len(run.signal)
    return Fate(named, paused, (solved[0], solved[-1]), signal, time.process_time() - began)


@cache
def warmed(task: str, seed: int, slip: float = SETTING.slip) -> PreTrainedModel:
    """Return a model from which runs start; they copy it."""
    model = build(SETTING.shape, seed)
    order = WarmUp(
        folder="", task=task, task_version=1, steps=SETTING.warm_steps, noise=SETTING.noise, slip=slip,
        batch=SETTING.warm_batch, seed=seed, shape=SETTING.shape,
    )  # fmt: skip
    supervise(model, order, FileTokenizer(char_tokenizer(), EOS))
    return model


def die(cause: Cause, model: PreTrainedModel, seed: int) -> Fate:
    """Let a run die of a cause."""
    task = registry.get("reverse", 1)
    run = Run(model, task, seed, heldout=registry.get(cause.heldout, 1) if cause.heldout else task)
    return live(run, HEALTHY_STEPS + (PAUSED_EXAMS * EXAM_EVERY if cause.by_exams else PAUSED_STEPS), cause)


def delays(cause: Cause, fate: Fate) -> tuple[int | None, int | None]:
    """Return the steps, or evaluations, from the cause to its name and to the pause; None: none came."""
    since, unit = (0 if cause.heldout else HEALTHY_STEPS), EXAM_EVERY if cause.by_exams else 1
    steps = (fate.named.get(cause.kind), fate.paused and fate.paused[1])
    named, paused = (None if one is None else -(-(one - since) // unit) for one in steps)
    return named, paused


def deaths(seeds: Sequence[int]) -> list[Claim]:
    """Let runs die of each cause; return the claims about them."""
    rows, good = [], {"named": 0, "paused": 0}
    models = {seed: warmed("reverse", seed) for seed in seeds}
    for cause in CAUSES:
        fates = [die(cause, models[seed], seed) for seed in seeds]
        pairs = [delays(cause, fate) for fate in fates]
        bars = (NAMED_EXAMS, PAUSED_EXAMS) if cause.by_exams else (NAMED_STEPS, PAUSED_STEPS)
        for place, what in enumerate(good):
            good[what] += sum((late := pair[place]) is not None and 0 < late <= bars[place] for pair in pairs)
        kinds = sorted({fate.paused[0] for fate in fates if fate.paused})
        unit = "evaluations" if cause.by_exams else "steps"
        after = [" ".join("none" if one is None else str(one) for one in column) for column in zip(*pairs, strict=True)]
        rows.append([cause.kind, cause.words, unit, *after, ", ".join(kinds)])
        print("| " + " | ".join(map(str, rows[-1])) + " |", flush=True)
    runs = float(len(CAUSES) * len(seeds))
    return [
        Claim("runs whose cause is named in time", good["named"] / runs, "all", 1.0),
        Claim("dying runs paused in time", good["paused"] / runs, "all", 1.0),
    ]


def healthy_runs(names: Sequence[str], seeds: Sequence[int], steps: int) -> Claim:
    """Make healthy runs; return the claim about their pauses."""
    pauses = 0
    for name in names:
        one = HEALTHY[name]
        task = registry.get(one.task, 1)
        for seed in seeds:
            fate = live(Run(warmed(one.task, seed, one.slip), task, seed, heldout=task, sparse=one.sparse), steps)
            pauses += fate.paused is not None
            end = f"paused at step {fate.paused[1]}: {fate.paused[2]}" if fate.paused else f"{steps} steps"
            solved, warned = " to ".join(f"{share:.2f}" for share in fate.solved), ", ".join(fate.named) or "none"
            row = [name, seed, f"{fate.signal:.0%}", solved, warned, end, f"{fate.seconds:.0f}"]
            print(f"| {' | '.join(map(str, row))} |", flush=True)
    return Claim("healthy runs paused", float(pauses), f"none of {len(names) * len(seeds)}", 0.0, at_most=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where the claims hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guards")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join((DEATHS, *HEALTHY))}; none: all")
    parser.add_argument("--quick", action="store_true", help="one seed of each, and one healthy run per task")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="per cause")
    parser.add_argument("--healthy", type=int, default=10, help="healthy runs per task")
    parser.add_argument("--steps", type=int, default=60, help="of a healthy run")
    asked = parser.parse_args(arguments)
    seeds, healthy = (1, 1) if asked.quick else (asked.seeds, asked.healthy)
    torch.set_num_threads(1)
    bench.header("a guard that sees a dead run", ["torch", "transformers"])
    parts = asked.parts or [DEATHS, *HEALTHY]
    if unknown := set(parts) - {DEATHS, *HEALTHY}:
        parser.error(f"there is no part {', '.join(sorted(unknown))}: choose of {', '.join((DEATHS, *HEALTHY))}")
    return bench.close_each(measured(parts, range(seeds), range(healthy), asked.steps))


def measured(parts: Sequence[str], seeds: Sequence[int], healthy: Sequence[int], steps: int) -> Iterator[list[Claim]]:
    """Yield the claims about the runs that die, and about the healthy ones. `seeds`, `healthy`: seeds of each."""
    if DEATHS in parts:
        print("| kind | cause | counted in | named after | paused after | paused by |\n|---|---|---|---|---|---|")
        yield deaths(seeds)
    if names := [name for name in HEALTHY if name in parts]:
        print("| healthy | seed | with signal | held-out | warnings | end | CPU s |\n|---|---|---|---|---|---|---|")
        yield [healthy_runs(names, healthy, steps)]


if __name__ == "__main__":
    raise SystemExit(main())
