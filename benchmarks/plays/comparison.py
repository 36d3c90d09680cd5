"""Compare runs in simulated time: the fleet as it is, and with single rules of echo2 left out. Pure.

    all rules          as the product has them
    without window     leases by `room` alone, so that groups are learned as old as S allows
    any nodes          activation by lottery instead of by cost
    everybody          no activation: all nodes are active and paid
    star               the coordinator sends each version to each active node itself, one copy after the other
    by signal          batches take the groups of most signal first, not the oldest (`run.draw`)
    room, signal       the same without the window, which leaves more groups to choose from
    by variance        prompts are chosen by the variance of their last groups (`run.prompts`, elsewhere in order)

After Table 2 of ECHO-2 (arXiv 2602.02192), which leaves out the broadcast between peers and the choice by cost. Prices
are those of the caller: of the learner and of nodes per hour, and of bytes that the coordinator sends. A step costs the
learner's time, idle time included, the nodes' hours while they are active, and those bytes.
"""

import math
import random
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from benchmarks.plays.run_scene import RunResult, RunScene, StepRecord, fleet, scaled
from benchmarks.plays.simulated_prompts import PromptTerms
from benchmarks.plays.simulated_run import SimulatedRun
from echo2.coordinator.training.run_plan import NodeTerms, RunTerms, broadcast_seconds, least_seconds

NANO: Final = 1_000_000_000
PRICE_SPREAD: Final = 0.35
"""Standard deviation of the logarithm of asks."""
ALL: Final = "all rules"


class NodeClass(NamedTuple):
    """Nodes that are alike. `number`: of them. `speed`: relative to other classes. `ask`: of each, per hour."""

    number: int
    speed: float
    ask: float


class VersionTerms(NamedTuple):
    """Cost of sending a version. `payload`: bytes. `uplink`: of the coordinator, `node_uplink`, `node_downlink`:
    bytes per second. `price`: per byte that the coordinator sends."""

    payload: float
    uplink: float
    node_uplink: float
    node_downlink: float
    price: float = 0.0


class FleetTerms(NamedTuple):
    """A fleet and its run. `supply`: over what the learner consumes. `spread`: whether nodes differ tenfold in speed.
    `life`, `away`, `step_seconds`, `broadcast`: seconds; `broadcast` between peers, `star` of one copy after the
    other to all nodes, 0: not compared. `price`: median ask per hour. `learner_price`: per hour. `length_spread`:
    of the prompts (simulated_run.py). `gives_back`: see `RunScene`. `classes`: the nodes, in place of `nodes`, `spread`
    and `price`. `version`: in place of `broadcast` and `star`. `scorers`: that verify; `scorer_load`: time of one for a
    step's groups, in steps. `prompts`: of the task, each with a difficulty of its own (simulated_prompts.py); 0: all
    are alike. `group_size`: rollouts per group, for `prompts`."""

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
    gives_back: bool = False
    classes: tuple[NodeClass, ...] = ()
    version: VersionTerms | None = None
    prompts: int = 0
    group_size: int = 8
    scorers: int = 1
    scorer_load: float = 0.3

    @property
    def asked(self) -> bool:
        """Whether any node asks for money."""
        return self.price > 0 or any(one.ask for one in self.classes)


class RunFigures(NamedTuple):
    """Of a run. `steps`: made. `lost`, `wasted`: as in `RunResult`. `copies`: of a version that the
    coordinator sent, per step. `of_nodes`, `of_uplink`: parts of `cost`, which is of a step. `useful`: as in
    `RunResult`; `scored` too; `signal`, `passed`, `strength`, `solved`: as in `SelectionFigures`; all 0 where
    prompts are alike."""

    steps: float
    idle: float
    age: float
    leases: float
    lost: float
    wasted: float
    active: float
    copies: float
    scored: float
    of_nodes: float
    of_uplink: float
    cost: float
    useful: float
    signal: float
    passed: float
    strength: float
    solved: float


class Compared(NamedTuple):
    """A row. `mean`, `error`: over the seeds, `error` the standard error of the mean. `records`: the steps of the first
    seed."""

    name: str
    mean: RunFigures
    error: RunFigures
    records: list[StepRecord]


def compared(
    terms: FleetTerms, seconds: float, seeds: int, ablate: bool, only: Collection[str] | None = None
) -> Iterator[Compared]:
    """Simulate `seconds` with each of the seeds; with `ablate` also without single rules. `only`: names of rows; None:
    all. Raises `ValueError` if the learner makes no step in that time."""
    for name, change in _variants(terms, ablate):
        if only is not None and name not in only:
            continue
        runs = [_run(terms, change, seconds, seed) for seed in range(seeds)]
        some = [_figures(terms, run, result, seconds) for run, result in runs]
        mean = RunFigures(*(statistics.fmean(values) for values in zip(*some, strict=True)))
        error = RunFigures(*(_error(values) for values in zip(*some, strict=True)))
        yield Compared(name, mean, error, runs[0][0].records)


class _Change(NamedTuple):
    scene: Callable[[RunScene], RunScene]
    windowed: bool = True


def _variants(terms: FleetTerms, ablate: bool) -> Iterator[tuple[str, _Change]]:
    yield ALL, _Change(lambda scene: scene)
    if not ablate:
        return
    yield "without window", _Change(lambda scene: scene, windowed=False)
    yield "by signal", _Change(lambda scene: scene._replace(by_signal=True))
    if terms.prompts:
        yield "room, signal", _Change(lambda scene: scene._replace(by_signal=True), windowed=False)
        yield "by variance", _Change(_by_variance)
    if terms.asked:
        yield "any nodes", _Change(lambda scene: scene._replace(order="random"))
        yield "everybody", _Change(lambda scene: scene._replace(order=None))
    nodes = sum(one.number for one in terms.classes) or terms.nodes
    copy = terms.star / nodes if terms.version is None else terms.version.payload / terms.version.uplink
    if copy:
        yield "star", _Change(lambda scene: scene._replace(star=copy / terms.step_seconds))


def _by_variance(scene: RunScene) -> RunScene:
    assert scene.prompts is not None
    return scene._replace(prompts=scene.prompts._replace(by_variance=True))


def _run(terms: FleetTerms, change: _Change, seconds: float, seed: int) -> tuple[SimulatedRun, RunResult]:
    step = terms.step_seconds
    turnarounds, asks = _nodes(terms, seed)
    wanted = min(1.0, terms.gamma / terms.supply) if terms.asked else 1.0
    broadcast, copies = _broadcast(terms, math.ceil(wanted * len(turnarounds)))
    scene = RunScene(
        turnarounds,
        at_once=terms.at_once,
        batch=terms.batch,
        staleness=terms.staleness,
        publish_every=terms.publish_every,
        life=terms.life / step,
        away=terms.away / step,
        broadcast=broadcast / step,
        asks=asks,
        gamma=terms.gamma,
        order="cheapest" if terms.asked else None,
        step_seconds=step,
        length_spread=terms.length_spread,
        gives_back=terms.gives_back,
        copies=copies,
        scorers=terms.scorers,
        scorer_load=terms.scorer_load / terms.scorers,
        prompts=PromptTerms(terms.prompts, terms.group_size) if terms.prompts else None,
    )
    run = SimulatedRun(change.scene(scene), windowed=change.windowed, seed=seed)
    return run, run.run(seconds=seconds)


def _nodes(terms: FleetTerms, seed: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return turnarounds, steps, and asks."""
    here = terms.life / (terms.life + terms.away) if math.isfinite(terms.life) else 1.0
    supply = terms.supply / here
    if terms.classes:
        alike = [one for one in terms.classes for _ in range(one.number)]
        turnarounds = scaled([1 / one.speed for one in alike], supply, terms.batch, terms.at_once)
        return turnarounds, tuple(int(NANO * one.ask) for one in alike)
    chances = random.Random(seed)
    asks = tuple(int(NANO * terms.price * chances.lognormvariate(0.0, PRICE_SPREAD)) for _ in range(terms.nodes))
    return fleet(terms.spread, terms.nodes, supply, terms.batch, terms.at_once, seed), asks


def _broadcast(terms: FleetTerms, nodes: int) -> tuple[float, float]:
    """Return the seconds of a version to so many nodes that pass it on, and the copies that the coordinator sends."""
    version = terms.version
    if version is None:
        return terms.broadcast, 1.0
    run = RunTerms(
        step_seconds=terms.step_seconds, rollouts=terms.batch, group_size=1, tokens=1.0, staleness=terms.staleness,
        payload=version.payload, uplink=version.uplink,
    )  # fmt: skip
    node = NodeTerms(tokens_per_second=1.0, uplink=version.node_uplink, downlink=version.node_downlink)
    return broadcast_seconds(run, node, nodes), copies_sent(run, node, nodes)


def copies_sent(run: RunTerms, node: NodeTerms, nodes: int) -> float:
    """Return how many copies of a version the coordinator sends at least, so that the nodes have it in the least time
    that lines allow."""
    best = least_seconds(run, node, nodes)
    return max(1.0, nodes - nodes * node.uplink * best / run.payload) if best else 1.0


def _figures(terms: FleetTerms, run: SimulatedRun, result: RunResult, seconds: float) -> RunFigures:
    of_nodes = result.paid / NANO
    of_uplink = 0.0 if terms.version is None else result.copies * terms.version.payload * terms.version.price
    return RunFigures(
        steps=run.step,
        idle=result.idle,
        age=result.age,
        leases=result.leases,
        lost=result.lost,
        wasted=result.wasted,
        active=statistics.fmean(record.active for record in run.records),
        copies=result.copies,
        scored=result.scored,
        of_nodes=of_nodes,
        of_uplink=of_uplink,
        cost=of_nodes + of_uplink + terms.learner_price * seconds / 3600 / run.step,
        useful=result.useful,
        **result.selection._asdict(),
    )


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
