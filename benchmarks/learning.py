"""Measure learning of the tiny demo model from rollouts S steps old: `python -m benchmarks.learning [--quick]`.

Claim: with the demo's settings, at staleness S = 4, the share of 512 held-out prompts that are answered exactly rises
by more than 0.30. It does so for every seed, sampled at T = 1 and greedy, in well under a minute of one core. Anchors
in the same run: on-policy (S = 0), and the same loop without importance weights.

Everything runs in this process on one thread: a warmed-up model of Qwen3's shape, rollouts under the weights of S steps
ago, and the product's own training step. There is no network and no verification.

A second claim: with AdamW's moments in 8 bits (`learner.optimiser_state`) the demo ends as far from its mean as its own
seeds do from one another, at most.
"""

import argparse
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from echo2.coordinator.learner import step
from echo2.coordinator.learner.batches.batch_groups import TrainBatch, TrainGroup, TrainSample
from echo2.coordinator.learner.messages import Hyper, WarmUp
from echo2.coordinator.learner.optimiser import Optimiser
from echo2.coordinator.learner.warmup import build, supervise
from echo2.tasks import registry
from echo2.tasks.task import Score, Split, Task
from echo2.tasks.tokenizer import EOS, FileTokenizer, char_tokenizer

TASK = "reverse"
DEMO, CODED = "demo, S = 4", "demo, moments in 8 bits"
CLAIM = 0.30
HELDOUT = 512
LIMIT = 6  # sampled tokens: four digits, eos, and one to spare for errors


class Setting(NamedTuple):
    """One row of the table. The defaults are the demo's. `hidden`, `layers`, `heads`: of the model; `noise`, `slip`,
    `warm_steps`, `warm_batch`: of the warm-up; `rate`: learning rate; `groups`: per step; `staleness`: age of every
    rollout in steps; `objective`: the loss; `state`: `learner.optimiser_state`."""

    hidden: int = 96
    layers: int = 2
    heads: int = 8
    noise: float = 0.1
    slip: float = 0.7
    warm_steps: int = 250
    warm_batch: int = 64
    rate: float = 3e-4
    groups: int = 16
    group_size: int = 16
    steps: int = 40
    staleness: int = 4
    objective: str = "decoupled"
    state: str = "float32"

    @property
    def shape(self) -> dict[str, int]:
        """Return the model's shape in the form of `WarmUp.shape` (coordinator/learner/messages.py)."""
        return {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads // 2,
            "head_dim": 16,
            "intermediate_size": 3 * self.hidden,
        }


class Outcome(NamedTuple):
    """Result of one seed: held-out exact match before and after, sampled and greedy; CPU seconds of the warm-up, the
    rollouts and the steps. `curve`: sampled exact match in between."""

    before: float
    after: float
    greedy_before: float
    greedy_after: float
    warm_seconds: float
    generate_seconds: float
    learn_seconds: float
    curve: list[float]


class Rollouts(NamedTuple):
    """Sampled rollouts, as tensors of [rows, LIMIT]. `logprobs`: of the tokens. `live`: True up to and with eos."""

    tokens: Tensor
    logprobs: Tensor
    live: Tensor


@torch.no_grad()
def sample(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], count: int, chance: torch.Generator | None
) -> Rollouts:
    """Sample `count` rollouts per prompt at temperature 1; greedily where `chance` is None. All prompts are of
    one length."""
    cache = DynamicCache(config=model.config)
    logits = model(torch.tensor(prompts), past_key_values=cache, use_cache=True).logits[:, -1]
    if count > 1:
        cache.batch_repeat_interleave(count)
        logits = logits.repeat_interleave(count, 0)
    tokens, logprobs, live = [], [], []
    going = torch.ones(len(logits), dtype=torch.bool)
    for place in range(LIMIT):
        logs = torch.log_softmax(logits, -1)
        chosen = logs.argmax(-1, True) if chance is None else torch.multinomial(logs.exp(), 1, generator=chance)
        tokens.append(chosen[:, 0])
        logprobs.append(logs.gather(1, chosen)[:, 0])
        live.append(going)
        going = going & (chosen[:, 0] != EOS)
        if place + 1 < LIMIT:
            logits = model(chosen, past_key_values=cache, use_cache=True).logits[:, -1]
    return Rollouts(torch.stack(tokens, 1), torch.stack(logprobs, 1), torch.stack(live, 1))


def grade(task: Task, text: FileTokenizer, split: Split, index: int, tokens: Sequence[int]) -> Score:
    """Return the task's score for `tokens` as the reply to prompt `index`."""
    episode = task.episode(split, index, text)
    episode.reply(tokens)
    return episode.score()


def heldout(model: PreTrainedModel, task: Task, text: FileTokenizer, seed: int | None = 99) -> float:
    """Return the share of held-out prompts that are answered exactly: by one sample each at T = 1, or greedily where
    `seed` is None."""
    indices = range(min(HELDOUT, task.size("heldout")))
    prompts = [task.episode("heldout", index, text).prompt for index in indices]
    samples = sample(model, prompts, 1, None if seed is None else torch.Generator().manual_seed(seed))
    rows = zip(indices, samples.tokens.tolist(), samples.live.sum(1).tolist(), strict=True)
    return sum(grade(task, text, "heldout", index, row[:length]).success for index, row, length in rows) / len(indices)


def samples_of(sampled: Rollouts, size: int, score: Callable[[int, Sequence[int]], Score]) -> list[list[TrainSample]]:
    """Return the samples of each prompt as the learner reads them. `size`: of them per prompt, one behind the other.
    `score`: by the place of the prompt and the tokens of a sample."""
    rows = zip(sampled.tokens.tolist(), sampled.logprobs.tolist(), sampled.live.sum(1).tolist(), strict=True)
    samples = [
        TrainSample(
            tokens=np.array(tokens[:length], np.int32),
            turns=[length],
            behaviour=np.array(logprobs[:length], np.float32),
            reward=scored.reward,
            success=scored.success,
        )
        for number, (tokens, logprobs, length) in enumerate(rows)
        for scored in [score(number // size, tokens[:length])]
    ]
    return [samples[first : first + size] for first in range(0, len(samples), size)]


def collect(
    model: PreTrainedModel,
    task: Task,
    text: FileTokenizer,
    setting: Setting,
    number: int,
    version: int,
    chance: torch.Generator,
) -> TrainBatch:
    """Generate the batch of step `number` by `model`, whose version is `version`."""
    indices = torch.randint(0, task.size("train"), (setting.groups,), generator=chance).tolist()
    prompts = [list(task.episode("train", index, text).prompt) for index in indices]
    samples = samples_of(
        sample(model, prompts, setting.group_size, chance),
        setting.group_size,
        lambda place, tokens: grade(task, text, "train", indices[place], tokens),
    )
    groups = [
        TrainGroup(id=b"%d-%d" % (number, place), version=version, prompt=np.array(prompt, np.int32), samples=of_prompt)
        for place, (prompt, of_prompt) in enumerate(zip(prompts, samples, strict=True))
    ]
    return TrainBatch(step=number, groups=groups)


def warmed(setting: Setting, seed: int) -> PreTrainedModel:
    """Make the model from which the demo starts."""
    model = build(setting.shape, seed)
    order = WarmUp(
        folder="",
        task=TASK,
        task_version=1,
        steps=setting.warm_steps,
        noise=setting.noise,
        slip=setting.slip,
        batch=setting.warm_batch,
        seed=seed,
        shape=setting.shape,
    )
    supervise(model, order, FileTokenizer(char_tokenizer(), EOS))
    return model


def run(setting: Setting, seed: int, *, every: int = 0) -> Outcome:
    """Warm a model up, then train it for `setting.steps` steps on rollouts `setting.staleness` steps old. `every`:
    steps from one evaluation of the curve to the next (0: no curve)."""
    started = time.process_time()
    model = warmed(setting, seed)
    warm = time.process_time() - started
    return learn(model, setting, seed, every=every)._replace(warm_seconds=warm)


def learn(model: PreTrainedModel, setting: Setting, seed: int, *, every: int = 0) -> Outcome:
    """Train `model` in place. `every`: see `run`. In the result `warm_seconds` is 0."""
    task, text = registry.get(TASK, 1), FileTokenizer(char_tokenizer(), EOS)
    hyper = Hyper(learning_rate=setting.rate, objective=setting.objective, optimiser_state=setting.state)
    optimiser, behaviour = Optimiser(model, hyper), build(setting.shape, seed)
    before, greedy, curve = heldout(model, task, text), heldout(model, task, text, None), []
    generated = learned = 0.0
    history: deque[dict[str, Tensor]] = deque(maxlen=setting.staleness + 1)
    chance = torch.Generator().manual_seed(seed)
    for done in range(setting.steps):
        history.append({name: tensor.detach().clone() for name, tensor in model.state_dict().items()})
        at = time.process_time()
        behaviour.load_state_dict(history[0])
        batch = collect(behaviour, task, text, setting, done + 1, done + 1 - len(history), chance)
        middle = time.process_time()
        step.train_step(model, optimiser, batch, hyper, steps=done)
        learned += time.process_time() - middle
        generated += middle - at
        if every and (done + 1) % every == 0:
            curve.append(heldout(model, task, text))
    after, greedy_after = heldout(model, task, text), heldout(model, task, text, None)
    return Outcome(before, after, greedy, greedy_after, 0.0, generated, learned, curve)


ROWS: dict[str, Setting] = {
    DEMO: Setting(),
    CODED: Setting(state="8bit"),
    "demo, 8 groups x 8": Setting(groups=8, group_size=8),
    "S = 0": Setting(staleness=0),
    "S = 8": Setting(staleness=8),
    "S = 8, no weights": Setting(staleness=8, objective="uncorrected"),
    "demo, 100 steps": Setting(steps=100),
    "init --model tiny": Setting(noise=0.35, slip=0.0, warm_steps=350),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if the demo's row rises by more than `CLAIM` for every seed, sampled and greedy, else 1."""
    parser = argparse.ArgumentParser(description="held-out exact match of the demo's model, before and after learning")
    parser.add_argument("--quick", action="store_true", help="the demo's rows alone, three seeds: about two minutes")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, help="of the warm-up and of learning, in place of each row's")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    seeds = range(min(3, chosen.seeds) if chosen.quick else chosen.seeds)
    print(f"task {TASK}, {HELDOUT} held-out prompts; one thread; means over the seeds, CPU seconds per seed\n")
    print("| setting | seeds | sampled | least rise | greedy | least rise | warm-up s | rollouts s | learner s |")
    print("|---|---|---|---|---|---|---|---|---|")
    done: dict[str, list[Outcome]] = {}
    for name, setting in ROWS.items():
        if chosen.quick and name not in (DEMO, CODED):
            continue
        if chosen.steps is not None:
            setting = setting._replace(steps=chosen.steps, warm_steps=chosen.steps)
        done[name] = [run(setting, seed) for seed in seeds]
        print(outcome_line(name, done[name]), flush=True)
    print()
    rises = zip(("sampled", "greedy"), least_rises(done[DEMO]), strict=True)
    return bench.close([
        *(Claim(f"least rise of `{DEMO}`, {kind}", rise, "the warm-up", CLAIM) for kind, rise in rises),
        Claim("accuracy with moments in 8 bits", distance(done[CODED], done[DEMO]), "spread of the demo's seeds", 1.0,
              at_most=True),
    ])  # fmt: skip


def distance(outcomes: Sequence[Outcome], others: Sequence[Outcome]) -> float:
    """Return how far the mean accuracies of two settings are apart, in parts of the others' spread over the seeds."""
    ends = [one.after for one in others]
    apart = abs(statistics.mean(one.after for one in outcomes) - statistics.mean(ends))
    return apart / max(max(ends) - min(ends), 1 / HELDOUT)


def least_rises(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Return the least rise over the seeds: sampled, greedy."""
    return (
        min(outcome.after - outcome.before for outcome in outcomes),
        min(outcome.greedy_after - outcome.greedy_before for outcome in outcomes),
    )


def outcome_line(name: str, outcomes: Sequence[Outcome]) -> str:
    """Return the setting's row of the table, in Markdown."""
    mean = statistics.mean
    sampled, greedy = least_rises(outcomes)
    cells = [
        name,
        str(len(outcomes)),
        f"{mean(one.before for one in outcomes):.3f} to {mean(one.after for one in outcomes):.3f}",
        f"{sampled:+.3f}",
        f"{mean(one.greedy_before for one in outcomes):.3f} to {mean(one.greedy_after for one in outcomes):.3f}",
        f"{greedy:+.3f}",
        f"{mean(one.warm_seconds for one in outcomes):.1f}",
        f"{mean(one.generate_seconds for one in outcomes):.1f}",
        f"{mean(one.learn_seconds for one in outcomes):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
