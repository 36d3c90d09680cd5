"""Describe a simulated run before it begins, its steps, and its end; and make fleets for it."""

import math
import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

from benchmarks.plays.simulated_prompts import PromptTerms, SelectionFigures


class RunScene(NamedTuple):
    """A setting of the simulation. `turnarounds`: of the nodes, in steps. `at_once`: c, groups under way in each node.
    `batch`: groups per step. `life`, `away`: mean time until a node leaves, and until it is back, in steps.
    `broadcast`: in steps. `scorers`: that verify groups, the first that came first, each as long; together they are at
    work for `scorer_load` of their time where no step waits. `asks`: of the nodes, nano units per hour; empty: nobody
    asks for money. `gamma`: reserve of the need. `order`: of activation; None: everybody is active. `step_seconds`:
    mean of a step; all other times are in steps. `star`: of a copy of a version to one node; above 0 the coordinator
    sends each version itself, one copy after the other. `copies`: that it sends of a version where peers pass it on.
    `length_spread`: standard deviation of the logarithm of a prompt's length, whose mean is 1. `by_signal`: batches
    take groups of most signal first, which is drawn by chance without `prompts`. `gives_back`: whether a node that
    comes back gives its open leases back. `prompts`: the training prompts and how they are selected; None: all are
    alike."""

    turnarounds: tuple[float, ...]
    at_once: int = 1
    batch: int = 16
    staleness: int = 4
    publish_every: int = 1
    life: float = math.inf
    away: float = 5.0
    scorers: int = 1
    scorer_load: float = 0.3
    broadcast: float = 0.2
    asks: tuple[int, ...] = ()
    gamma: float = 1.1
    order: Literal["cheapest", "random"] | None = None
    step_seconds: float = 60.0
    length_spread: float = 0.0
    by_signal: bool = False
    gives_back: bool = False
    star: float = 0.0
    copies: float = 1.0
    prompts: PromptTerms | None = None

    @property
    def verdict(self) -> float:
        """The time in which a scorer verifies a group, in steps."""
        return self.scorer_load * self.scorers / self.batch


class StepRecord(NamedTuple):
    """A step: when it began, seconds; seconds of waiting before it; mean age of its groups; nodes that were active."""

    at: float
    waited: float
    age: float
    active: int


class RunResult(NamedTuple):
    """Means over a run, its first fifth left out but for `leases` and `paid`. `age`: of the groups learned. `idle`: the
    learner's idle share. `leases`: given per group learned. `paid`: to nodes per step, nano units. `lost`: prompts
    whose leases brought no group that could be drawn, of those leased. `wasted`: tokens that were sampled and never
    drawn, of all that were sampled. `copies`: of a version, sent by the coordinator per step. `scored`: the scorers'
    share of their time at work. `useful`: leases given per group learned from whose rewards differ, 0 without
    `prompts`. `selection`: of the prompts, over the whole run."""

    age: float
    idle: float
    leases: float
    paid: float
    lost: float = 0.0
    wasted: float = 0.0
    copies: float = 0.0
    scored: float = 0.0
    useful: float = 0.0
    selection: SelectionFigures = SelectionFigures()


def fleet(spread: bool, nodes: int, ratio: float, batch: int, at_once: int, seed: int) -> tuple[float, ...]:
    """Return the turnarounds, in steps, of a fleet that makes `ratio` batches per step. `spread`: tenfold."""
    chances = random.Random(seed)
    return scaled([10 ** chances.random() if spread else 1.0 for _ in range(nodes)], ratio, batch, at_once)


def scaled(raw: Sequence[float], ratio: float, batch: int, at_once: int) -> tuple[float, ...]:
    """Return turnarounds in the proportions of `raw`, in steps, that make `ratio` batches per step together."""
    rate = at_once * sum(1 / turnaround for turnaround in raw)
    return tuple(turnaround * rate / (ratio * batch) for turnaround in raw)
