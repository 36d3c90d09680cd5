"""Compare runs in simulated time: the fleet as it is, and with single rules of echo2 left out. Pure.

    all rules          as the product has them
    without law        leases by `room` alone, so that groups are learned as old as S allows
    any nodes          activation by lottery instead of by cost
    everybody          no activation: all nodes are active and paid
    no hedges          leases that are overdue are not covered (coordinator/rollouts/hedging.py)
    star               the coordinator sends each version to each node itself, one after the other
    by signal          batches take the groups of most signal first, not the oldest (`run.draw`)
    no moves           what lost nodes have begun is not finished by others (coordinator/rollouts/moving.py)
    by length          prompts differ in length, and long ones go to quick nodes (`leases.by_length`, elsewhere off)

After Table 2 of ECHO-2 (arXiv 2602.02192), which leaves out the broadcast between peers and the choice by cost. Prices
are those of the caller; a step costs the learner's time, idle time included, and the nodes' hours.
"""

import math
import random
import statistics
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from coordinator.simulation.simulated_run import RunResult, RunScene, SimulatedRun, StepRecord, fleet

NANO: Final = 1_000_000_000
PRICE_SPREAD: Final = 0.35
"""Standard deviation of the logarithm of asks."""
ALL: Final = "all rules"


class FleetTerms(NamedTuple):
    """A fleet and its run. `supply`: over what the learner consumes. `spread`: whether nodes differ tenfold in speed.
    `life`, `away`, `step_seconds`, `broadcast`: seconds; `broadcast` between peers, `star` of one copy after the other,
    0: not compared. `price`: median ask per hour. `learner_price`: per hour. `length_spread`: of the prompts
    (simulated_run.py). `hedge_share`: of hedges in all leases. `moves`, `gives_back`: see `RunScene`."""

    nodes: int = 200
    supply: float = 1.5
    spread: bool = True
    batch: int = 64
    staleness: int = 4
    publish_every: int = 1
    at_once: int = 1
    step_seconds: float = 60.0
    life: float = math.inf
    away: float = 300.0
    broadcast: float = 12.0
    star: float = 0.0
    gamma: float = 1.1
    price: float = 0.0
    learner_price: float = 0.0
    length_spread: float = 0.0
    hedge_share: float = 0.0
    moves: bool = False
    gives_back: bool = False


class Compared(NamedTuple):
    """A row: means over the seeds. `hedges`, `lost`, `wasted`, `moved`: as in `RunResult`. `cost`: of a step.
    `records`: the steps of the first seed."""

    name: str
    steps: float
    idle: float
    age: float
    leases: float
    hedges: float
    lost: float
    wasted: float
    moved: float
    active: float
    cost: float
    records: list[StepRecord]


def compared(terms: FleetTerms, seconds: float, seeds: int, ablate: bool) -> Iterator[Compared]:
    """Simulate `seconds` with each of the seeds; with `ablate` also without single rules. Raises `ValueError` if the
    learner makes no step in that time."""
    for name, change in _variants(terms, ablate):
        runs = [_run(terms, change, seconds, seed) for seed in range(seeds)]
        yield _row(name, terms, runs, seconds)


class _Change(NamedTuple):
    scene: Callable[[RunScene], RunScene]
    paced: bool = True


def _variants(terms: FleetTerms, ablate: bool) -> Iterator[tuple[str, _Change]]:
    yield ALL, _Change(lambda scene: scene)
    if not ablate:
        return
    yield "without law", _Change(lambda scene: scene, paced=False)
    yield "by signal", _Change(lambda scene: scene._replace(by_signal=True))
    if terms.price:
        yield "any nodes", _Change(lambda scene: scene._replace(order="random"))
        yield "everybody", _Change(lambda scene: scene._replace(order=None))
    if terms.hedge_share:
        yield "no hedges", _Change(lambda scene: scene._replace(hedge_share=0.0))
    if terms.moves:
        yield "no moves", _Change(lambda scene: scene._replace(moves=False))
    if terms.star:
        yield "star", _Change(lambda scene: scene._replace(broadcast=terms.star / terms.step_seconds))
    if terms.length_spread:
        yield "by length", _Change(lambda scene: scene._replace(by_length=True))


def _run(terms: FleetTerms, change: _Change, seconds: float, seed: int) -> tuple[SimulatedRun, RunResult]:
    step, chances = terms.step_seconds, random.Random(seed)
    here = terms.life / (terms.life + terms.away) if math.isfinite(terms.life) else 1.0
    asks = [int(NANO * terms.price * chances.lognormvariate(0.0, PRICE_SPREAD)) for _ in range(terms.nodes)]
    scene = RunScene(
        fleet(terms.spread, terms.nodes, terms.supply / here, terms.batch, terms.at_once, seed),
        at_once=terms.at_once,
        batch=terms.batch,
        staleness=terms.staleness,
        publish_every=terms.publish_every,
        life=terms.life / step,
        away=terms.away / step,
        broadcast=terms.broadcast / step,
        asks=tuple(asks),
        gamma=terms.gamma,
        order="cheapest" if terms.price else None,
        step_seconds=step,
        length_spread=terms.length_spread,
        hedge_share=terms.hedge_share,
        moves=terms.moves,
        gives_back=terms.gives_back,
    )
    run = SimulatedRun(change.scene(scene), paced=change.paced, seed=seed)
    return run, run.run(seconds=seconds)


def _row(name: str, terms: FleetTerms, runs: list[tuple[SimulatedRun, RunResult]], seconds: float) -> Compared:
    def mean(of: Callable[[SimulatedRun, RunResult], float]) -> float:
        return statistics.fmean(of(run, result) for run, result in runs)

    return Compared(
        name=name,
        steps=mean(lambda run, result: run.step),
        idle=mean(lambda run, result: result.idle),
        age=mean(lambda run, result: result.age),
        leases=mean(lambda run, result: result.leases),
        hedges=mean(lambda run, result: result.hedges),
        lost=mean(lambda run, result: result.lost),
        wasted=mean(lambda run, result: result.wasted),
        moved=mean(lambda run, result: result.moved),
        active=mean(lambda run, result: statistics.fmean(record.active for record in run.records)),
        cost=mean(lambda run, result: result.paid / NANO + terms.learner_price * seconds / 3600 / run.step),
        records=runs[0][0].records,
    )
