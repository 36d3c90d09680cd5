"""Tokens that a node of a 16-bit class writes by itself: how seldom the bound on a token refuses honest rounding, how
soon it refuses a forced token, and what an attacker gains that knows the bound and its own E.

The model and the task are the demo's (`reverse`, groups of 16, five tokens each). The Calibration has the fewest tokens
that `fit` admits, of `MACHINES` machines. The attacker rounds nothing, so it spends what E grants to rounding on right
answers: in each group it writes those that cost least, and as many as leave E below `STOP`. Nearly each token of this
task decides its reward, and the first one is nearly a coin flip between the right answer and the usual mistake, which
is the attacker's best case. Its gain is the mean over `CALIBRATIONS` Calibrations: one by itself differs by a tenth.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.trust.machines import TRAIN
from benchmarks.trust.scaled_noise import CHOSEN, ComparedRollout, ModelPair, seeds_of
from benchmarks.trust.streams import beyond_bound
from echo2.coordinator.demo.demo_settings import TINY_DEMO
from echo2.coordinator.learner.messages import WarmUp
from echo2.coordinator.learner.model import evaluating
from echo2.coordinator.learner.warmup import warm_up
from echo2.coordinator.verification.calibration import MARGIN_ALLOWANCE, TOKENS_LEAST, fit
from echo2.coordinator.verification.evidence import BOUND, NodeEvidence, Stake, Tables, exceeding, products
from echo2.coordinator.verification.token_evidence import DIFFERS, ONE, RAISING, TokenArray
from echo2.engines.engine import Dtype
from echo2.engines.transformers.tf32 import Tf32
from echo2.tasks import registry
from echo2.tasks.tokenizer import EOS, FileTokenizer, char_tokenizer

TASK: Final[Any] = registry.get("reverse", 1)
TEXT: Final = FileTokenizer(char_tokenizer(), EOS)
SIZE: Final = 16
"""Rollouts of a group."""
LIMIT: Final = 6
AT_ONCE: Final = 128
"""Groups that are generated together."""
MACHINES: Final = 9
NOISES: Final = (1.0, 1.35, 1.7)
"""Noise of honest nodes, over that of the Calibration; a third of them has each."""
TRIES: Final = 300
FACTORS: Final = (4.0, 5.0, 7.5, 10.0, 13.0, 20.0)
"""Factors of the bound (coordinator/verification/calibration.py, rule 6) that are compared."""
STOP: Final = 900
"""Least E at which an attacker stops: below doubt."""
CALIBRATIONS: Final = 4
MOST_WRITTEN: Final = 4
"""Most answers that the attacker writes into a group: E stops it before."""
GAINS: Final[dict[Dtype, float]] = {"bfloat16": 0.008, "float16": 0.005}
"""Most gain in mean reward. bfloat16 grants more than 0.005 by itself (docs/adr/0071-a-bound-on-each-token.md)."""
GROUPS: Final = 1_000
TURNS: Final = 5
"""Groups of an attacker, and how often it gets them, on one day."""
SHAPE_LIMIT: Final = 8
SHAPE_ROWS: Final = 334
SMOLLM2_SHAPE: Final[dict[str, Any]] = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 512, "tie_word_embeddings": True,
    "bos_token_id": None, "eos_token_id": 0, "initializer_range": 1 / 24,
}  # fmt: skip
"""SmolLM2-135M's."""


class ForgeableGroup(NamedTuple):
    """A group of honest rollouts, and what the right answer in the place of each would be seen as."""

    number: int
    honest: list[ComparedRollout]
    right: list[ComparedRollout]

    def rewards(self, written: Sequence[int]) -> NDArray[np.float64]:
        """Return the rewards of a group in which these rollouts are the right answer."""
        own = [_reward(self.number, one.ids) for one in self.honest]
        return np.array([1.0 if row in written else reward for row, reward in enumerate(own)])

    def tokens(self, written: Sequence[int]) -> TokenArray:
        """Return the tokens of such a group as its verdict compares them."""
        rewards = self.rewards(written)
        rollouts = [self.right[row] if row in written else one for row, one in enumerate(self.honest)]
        return _joined(rollouts, rewards)


def make_pair(folder: Path, dtype: Dtype, tf32: Tf32 | None = None, steps: int | None = None) -> ModelPair:
    """Make the demo's base model in a folder, once, and return it with its copy. `tf32`: see `ModelPair`. `steps`: of
    its warm-up; None: the demo's."""
    from transformers import AutoModelForCausalLM

    if not folder.exists():
        order = {**TINY_DEMO.warm_up, **({} if steps is None else {"steps": steps})}
        warm_up(WarmUp(folder=str(folder), task=TASK.name, task_version=TASK.version, **order))
    return ModelPair.of(evaluating(AutoModelForCausalLM.from_pretrained(folder, dtype="float32")), dtype, EOS, tf32)


class BoundTrial(NamedTuple):
    """Groups that try the bound. `machines`: tokens of the machines of each Calibration. `honest`: groups of each
    noise. `forced`: groups with one arbitrary token. `own`: groups of a node that rounds nothing."""

    machines: list[dict[str, TokenArray]]
    honest: dict[float, list[TokenArray]]
    forced: list[list[ComparedRollout]]
    own: list[ForgeableGroup]

    @classmethod
    def generate(cls, pair: ModelPair, rollouts: int) -> "BoundTrial":
        """Generate it. `rollouts`: honest ones."""
        least, count = MACHINES * TOKENS_LEAST, rollouts // SIZE // len(NOISES)
        calibrated = np.concatenate(honest_groups(pair, "calibration", 1.0, CALIBRATIONS * least // SIZE // 4))
        draws = [calibrated[draw * least : (draw + 1) * least] for draw in range(CALIBRATIONS)]
        machines = [{str(number): draw[number::MACHINES] for number in range(MACHINES)} for draw in draws]
        honest = {noise: honest_groups(pair, f"noise {noise}", noise, count) for noise in NOISES}
        return cls(machines, honest, _forced_groups(pair), _groups(pair, GROUPS))

    def fitted(self, factor: float = MARGIN_ALLOWANCE) -> list[Tables]:
        """Return the tables of each Calibration. `factor`: factor of the bound."""
        return [fit(machines, factor) for machines in self.machines]

    def share_refused(self, tables: Tables) -> float:
        """Return the share of groups that are refused for one arbitrary token, of a node that rounds nothing."""
        refused = [any(exceeding(one.tokens, tables).any() for one in group) for group in self.forced]
        return sum(refused) / len(refused)

    def gains(self, fitted: Sequence[Tables]) -> list[float]:
        """Return what an attacker gains in mean reward under each Calibration."""
        return [_gain(self.own, tables) for tables in fitted]


def bound_claims(
    folder: Path, dtype: Dtype, rollouts: int, tf32: Tf32 | None = None, *, factors: bool = False
) -> list[Claim]:
    """Measure the bound in a 16-bit format; return the claims. `rollouts`: honest ones. `tf32`: see `ModelPair`.
    `factors`: whether other factors of the bound are compared too."""
    trial = BoundTrial.generate(make_pair(folder, dtype, tf32), rollouts)
    if factors:
        _compare_factors(trial, dtype)
    fitted = trial.fitted()
    claims = [_refused(f"honest groups beyond the bound in {dtype}", trial.honest, fitted[0])]
    gains = trial.gains(fitted)
    print(f"gain under each Calibration: {', '.join(f'{gain:.4f}' for gain in gains)}\n")
    forced, gain = trial.share_refused(fitted[0]), float(np.mean(gains))
    return [
        *claims,
        Claim(f"groups with one forced token refused in {dtype}", forced, f"{TRIES} tries", 0.99),
        Claim(f"gain inside the bound in {dtype}", gain, "mean reward", GAINS[dtype], at_most=True),
    ]


def _compare_factors(trial: BoundTrial, dtype: Dtype) -> None:
    """Print what each of `FACTORS` refuses of honest groups and of forced tokens, and what it leaves to an attacker."""
    rows: list[list[object]] = []
    for factor in FACTORS:
        fitted = trial.fitted(factor)
        beyond = [sum(beyond_bound(groups, fitted[0])) for groups in trial.honest.values()]
        gain = float(np.mean(trial.gains(fitted)))
        rows.append([factor, fitted[0][BOUND][0] / 2**14, *beyond, trial.share_refused(fitted[0]), gain])
    noises = [f"honest beyond, {noise:g} x" for noise in trial.honest]
    bench.table([f"factor, {dtype}", "bound, nats", *noises, "forced refused", "gain"], rows)


def shape_claims(dtype: Dtype, rollouts: int, tf32: Tf32 | None = None) -> list[Claim]:
    """Measure honest rounding of a model with random weights and SmolLM2-135M's shape; return the claim. The
    Calibration is by one machine's least tokens. `tf32`: see `ModelPair`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    pair = ModelPair.of(evaluating(LlamaForCausalLM(LlamaConfig(**SMOLLM2_SHAPE))), dtype, 0, tf32)
    tables = fit({"one": np.concatenate(_shaped(pair, "calibration", 1.0, TOKENS_LEAST // SHAPE_LIMIT))})
    honest = {noise: _shaped(pair, f"noise {noise}", noise, rollouts // len(NOISES) + 1) for noise in NOISES}
    return [_refused(f"rollouts of SmolLM2's shape beyond the bound in {dtype}", honest, tables)]


def _refused(name: str, honest: Mapping[float, Sequence[TokenArray]], tables: Tables) -> Claim:
    """Print how honest tokens compare with the bound; return the claim that none is beyond it. `honest`: groups or
    rollouts of each noise."""
    rows, refused = [], 0
    for noise, parts in honest.items():
        tokens = np.concatenate(parts)
        differ, margin = float((tokens["flags"] & DIFFERS > 0).mean()), float(tokens["margin"].max()) / 2**14
        beyond = sum(beyond_bound(list(parts), tables))
        rows.append([f"{noise:g} x", len(parts), len(tokens), differ, margin, tables[BOUND][0] / 2**14, beyond])
        refused += beyond
    bench.table([name, "parts", "tokens", "differ", "greatest margin", "bound, nats", "beyond"], rows)
    return Claim(name, float(refused), f"0 of {sum(map(len, honest.values()))}", 0, at_most=True)


def _shaped(pair: ModelPair, name: str, noise: float, count: int) -> list[TokenArray]:
    """Return the tokens of `count` rollouts of random prompts."""
    parts: list[TokenArray] = []
    for first in range(0, count, SHAPE_ROWS):
        rows = range(first, min(count, first + SHAPE_ROWS))
        prompts = [[5 + (row * 7 + place * place * 13) % 49_000 for place in range(4)] for row in rows]
        played = pair.play(prompts, seeds_of(f"{name}/{first}", len(prompts)), SHAPE_LIMIT, noise)
        parts += [one.tokens for one in played]
    return parts


def honest_groups(pair: ModelPair, name: str, noise: float, groups: int) -> list[TokenArray]:
    """Return the tokens of honest groups."""
    parts: list[TokenArray] = []
    for first in range(0, groups, AT_ONCE):
        indices = [number % TRAIN for number in range(first, min(groups, first + AT_ONCE))]
        rollouts = pair.play(*_work(indices, f"{name}/{first}"), LIMIT, noise)
        for place, index in enumerate(indices):
            group = rollouts[place * SIZE : (place + 1) * SIZE]
            parts.append(_joined(group, np.array([_reward(index, one.ids) for one in group])))
    return parts


def _groups(pair: ModelPair, groups: int) -> list[ForgeableGroup]:
    """Return the groups of a node that rounds nothing, with the right answers."""
    generated: list[ForgeableGroup] = []
    for first in range(0, groups, AT_ONCE):
        indices = range(first, min(groups, first + AT_ONCE))
        work = _work(indices, f"attack/{first}")
        answers = [[*TEXT.encode(TASK.question("train", index)[1]), EOS] for index in indices for _ in range(SIZE)]
        right = pair.play(*work, len(answers[0]), 0.0, np.array(answers))
        honest = pair.play(*work, LIMIT, 0.0)
        for place, index in enumerate(indices):
            rows = slice(place * SIZE, (place + 1) * SIZE)
            generated.append(ForgeableGroup(index, honest[rows], right[rows]))
    return generated


def _gain(groups: Sequence[ForgeableGroup], tables: Tables) -> float:
    """Return what an attacker adds to the mean reward that stays inside the bound, and below `STOP`."""
    plans = [_plan(group, tables) for group in groups]
    evidence, gained = NodeEvidence(), 0.0
    for plan in plans * TURNS:
        for bets, gain in plan:
            after = evidence.after(bets, 0)
            if not gain or not after.daily.value().reaches(STOP):
                break
        evidence, gained = after, gained + gain
    return gained / (len(groups) * TURNS)


def _plan(group: ForgeableGroup, tables: Tables) -> list[tuple[list[Stake], float]]:
    """Return bets and gain of a group with the most answers of the node's own, with one less, down to none."""
    rewards, p = group.rewards(()), np.asarray(tables["differs"]) / ONE
    costs = {
        row: float(-np.log(p[one.tokens["gap"]][one.tokens["margin"] > 0]).sum()) / (1 - rewards[row])
        for row, one in enumerate(group.right)
        if rewards[row] < 1 and not exceeding(one.tokens, tables).any()
    }
    written = sorted(costs, key=costs.__getitem__)[:MOST_WRITTEN]
    parts = [written[:count] for count in range(len(written), -1, -1)]
    return [(products(group.tokens(part), tables), float((group.rewards(part) - rewards).mean())) for part in parts]


def _forced_groups(pair: ModelPair) -> list[list[ComparedRollout]]:
    """Return groups of a node that rounds nothing, each with one arbitrary token."""
    random, groups = np.random.default_rng(0), list[list[ComparedRollout]]()
    for first in range(0, TRIES, AT_ONCE):
        indices = range(first, min(TRIES, first + AT_ONCE))
        work = _work(indices, f"forced/{first}")
        own = pair.play(*work, LIMIT, 0.0)
        forced = np.full((len(own), LIMIT), CHOSEN)
        for start in range(0, len(own), SIZE):
            row = start + int(random.integers(SIZE))
            place = int(random.integers(len(own[row].ids)))
            forced[row, place] = random.choice([token for token in range(TEXT.size) if token != own[row].ids[place]])
        seen = pair.play(*work, LIMIT, 0.0, forced)
        groups += [seen[start : start + SIZE] for start in range(0, len(seen), SIZE)]
    return groups


def _work(indices: Sequence[int], name: str) -> tuple[list[list[int]], list[bytes]]:
    """Return prompt and seed of each rollout of the groups of these prompts."""
    prompts = [list(TASK.episode("train", index, TEXT).prompt) for index in indices for _ in range(SIZE)]
    return prompts, seeds_of(name, len(prompts))


def _joined(rollouts: Sequence[ComparedRollout], rewards: NDArray[np.float64]) -> TokenArray:
    """Return the tokens of a group, with `RAISING` set."""
    parts = [one.tokens.copy() for one in rollouts]
    for tokens, reward in zip(parts, rewards, strict=True):
        tokens["flags"] |= RAISING * bool(reward > rewards.mean())
    return np.concatenate(parts)


def _reward(index: int, ids: Sequence[int]) -> float:
    episode: Any = TASK.episode("train", index, TEXT)
    episode.reply(ids)
    return float(episode.score().reward)
