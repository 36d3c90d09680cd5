"""A run in simulated time: nodes, leases, a buffer and a learner, around the product's own pure rules.

`room` is `free_slots` of coordinator/rollouts/lease_table.py, `fresh` adds `is_due` of coordinator/rollouts/pacing.py,
and its summary is kept up by the same events. Durations come from this simulation: a step varies by `STEP_CV`, the
groups of one node by `GROUP_CV`. The law knows what the coordinator would measure: turnarounds of groups that came, the
learner's steps and waits, and the share of leases that brought a group. A node that leaves says nothing: its leases
stay open until they expire.

Not simulated: the queue of the scorer (a verdict takes `VERDICT`), and groups that are refused.
"""

import math
import random
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from benchmarks.broadcast.simulated_time import Clock
from coordinator.learner.age import fresh
from coordinator.rollouts.lease_summary import LeaseCell, LeaseSummary, lease_cell
from coordinator.rollouts.lease_terms import InFlight, LeaseTerms, Progress, free_slots
from coordinator.rollouts.pacing import STEPS_KEPT, PacedSituation, is_due, learner_pace, retry_after

STEP: Final = 60.0
"""Mean seconds of a step. All other times are in steps."""
STEP_CV: Final = 0.1
GROUP_CV: Final = 0.25
VERDICT: Final = 0.02
BROADCAST: Final = 0.2
RETRY: Final = 0.25
"""Steps after which a node refused by `room` alone asks again."""
LIFETIME: Final = 4.0
"""Turnarounds that a lease lasts, at least one step."""
MEASURED: Final = 64
"""Leases over which the fleet is measured."""
OWN: Final = 20
"""Groups over which a node is measured."""
UNMEASURED_CV: Final = 0.5
FEWEST: Final = 8
"""Turnarounds from which their spread is measured."""


class Scene(NamedTuple):
    """A setting of the simulation. `turnarounds`: of the nodes, in steps. `at_once`: c, groups under way in each node.
    `batch`: groups per step. `life`, `away`: mean time until a node leaves, and until it is back, in steps."""

    turnarounds: tuple[float, ...]
    at_once: int = 1
    batch: int = 16
    staleness: int = 4
    publish_every: int = 1
    life: float = math.inf
    away: float = 5.0


class RunResult(NamedTuple):
    """Means over a run, its first fifth left out but for `leases`. `age`: of the groups learned. `idle`: the learner's
    idle share. `leases`: given per group learned."""

    age: float
    idle: float
    leases: float


@dataclass
class SimulatedNode:
    """A node. `loaded`, `newest`: the version that it works under and the newest one that it knows."""

    key: bytes
    turnaround: float
    loaded: int = 0
    newest: int = 0
    here: bool = True
    waits: bool = False
    running: set[int] = field(default_factory=set)
    measured: deque[float] = field(default_factory=lambda: deque(maxlen=OWN))


class OpenLease(NamedTuple):
    """A lease that has not ended."""

    node: SimulatedNode
    cell: LeaseCell
    expires: float


class World:
    """One run. `paced`: under the law of leases; else under `room` alone."""

    def __init__(self, scene: Scene, *, paced: bool, seed: int) -> None:
        self.scene, self.paced = scene, paced
        self.random = random.Random(seed)
        self.clock = Clock()
        self.terms = LeaseTerms(
            staleness=scene.staleness, batch_groups=scene.batch, group_size=8, limit=64, engines=[""]
        )
        self.step = self.published = self.given = 0
        self.summary = LeaseSummary(-scene.staleness)
        self.open: dict[int, OpenLease] = {}
        self.undecided = 0
        self.buffer: list[int] = []
        """Versions of the groups that may be drawn."""
        self.began: float | None = None
        self.drew = self.waits_since = 0.0
        self.steps, self.spans, self.waits = (deque[float](maxlen=STEPS_KEPT) for _ in range(3))
        self.supplies: deque[float] = deque(maxlen=STEPS_KEPT)
        self.ages: list[tuple[int, float]] = []
        self.idle: list[float] = []
        self.outcomes: deque[float] = deque(maxlen=MEASURED)
        self.ratios: deque[float] = deque(maxlen=MEASURED)
        self.nodes = [SimulatedNode(bytes([n // 256, n % 256]), d * STEP) for n, d in enumerate(scene.turnarounds)]
        for node in self.nodes:
            self.clock.after(self.random.random() * 0.1 * STEP, self._ask, node)
            if scene.life < math.inf:
                self.clock.after(self.random.expovariate(1 / scene.life) * STEP, self._leave, node)

    def run(self, steps: int) -> RunResult:
        """Run until the learner has made so many steps."""
        self.clock.run(lambda: self.step >= steps, math.inf)
        warm = steps // 5
        waited = sum(self.idle[warm:])
        began = sum(step >= warm for step, _ in self.ages) // self.scene.batch
        learned = statistics.mean(age for step, age in self.ages if step >= warm)
        return RunResult(learned, waited / (waited + began * STEP), self.given / (steps * self.scene.batch))

    # nodes

    def _ask(self, node: SimulatedNode) -> None:
        while node.here and len(node.running) < self.scene.at_once:
            node.loaded, node.waits = node.newest, False
            again = self._refused(node)
            if again is not None:
                node.waits = True
                self.clock.after(again * self.random.uniform(1, 1.2), self._ask_again, node)
                return
            self._give(node)

    def _ask_again(self, node: SimulatedNode) -> None:
        if node.waits:
            self._ask(node)

    def _give(self, node: SimulatedNode) -> None:
        self.given += 1
        lease, mean = self.given, self._mean(node)
        lasts = max(LIFETIME * node.turnaround, STEP)
        place = lease_cell(node.loaded, mean, self._now())
        self.open[lease] = OpenLease(node, place, self.clock.now + lasts)
        self.summary.lease_given(place)
        node.running.add(lease)
        self._note(node, self.clock.now + 1.5 * mean / 1000)
        takes = node.turnaround * self.random.lognormvariate(-(GROUP_CV**2) / 2, GROUP_CV)
        self.clock.after(takes, self._returned, node, lease, takes)
        self.clock.after(lasts, self._expired, lease)

    def _mean(self, node: SimulatedNode) -> float:
        """Return the node's turnaround as measured, or that of the nodes here, ms."""
        if node.measured:
            return 1000 * statistics.fmean(node.measured)
        known = [statistics.fmean(other.measured) for other in self.nodes if other.measured]
        return 1000 * (statistics.harmonic_mean(known) if known else STEP)

    def _note(self, node: SimulatedNode, until: float) -> None:
        if node.measured:
            known = self.summary.nodes.get(node.key)
            latest = max(known.until if known else 0, int(1000 * until))
            self.summary.node_here(node.key, self._mean(node), self.scene.at_once, latest)

    def _returned(self, node: SimulatedNode, lease: int, takes: float) -> None:
        if lease not in node.running:
            return
        node.running.remove(lease)
        node.measured.append(takes)
        self.ratios.append(takes / statistics.fmean(node.measured))
        if (ended := self._end(lease)) is not None:
            self.undecided += 1
            self.clock.after(VERDICT * STEP, self._decided, ended.cell.version)
        self._ask(node)

    def _end(self, lease: int) -> OpenLease | None:
        ended = self.open.pop(lease, None)
        if ended is not None:
            self.summary.lease_ended(ended.cell)
        return ended

    def _expired(self, lease: int) -> None:
        if self._end(lease) is not None:
            self.outcomes.append(0.0)

    def _decided(self, version: int) -> None:
        self.undecided -= 1
        self.outcomes.append(1.0)
        if fresh(self.step, version, self.scene.staleness):
            self.buffer.append(version)
            self._draw()

    def _leave(self, node: SimulatedNode) -> None:
        node.here = node.waits = False
        node.running.clear()
        self.clock.after(self.random.expovariate(1 / self.scene.away) * STEP, self._come_back, node)

    def _come_back(self, node: SimulatedNode) -> None:
        node.here, node.newest = True, self.published
        self.clock.after(self.random.expovariate(1 / self.scene.life) * STEP, self._leave, node)
        self._ask(node)

    def _hear(self, node: SimulatedNode, version: int) -> None:
        node.newest = max(node.newest, version)
        if node.waits:
            self._ask(node)

    # coordinator

    def _now(self) -> int:
        return int(1000 * self.clock.now)

    def _refused(self, node: SimulatedNode) -> float | None:
        """Return after how many seconds a node may ask again; None: it gets a lease."""
        scene = self.scene
        self._note(node, self.clock.now + 2.5 * RETRY * STEP)
        self.summary.forget(self._now())
        at = Progress(era=1, step=self.step, version=self.published, root=b"")
        load = InFlight(self.undecided, self.summary.running)
        fits = fresh(self.step, node.loaded, scene.staleness)
        if not fits or free_slots(at, self.terms, node.loaded, len(self.buffer), load) <= 0:
            return RETRY * STEP
        if not self.paced:
            return None
        situation = self.situation()
        if is_due(self.summary, situation, node.loaded, self._mean(node)):
            return None
        assert situation is not None
        return retry_after(situation) / 1000

    def situation(self) -> PacedSituation | None:
        """Return what the law knows; None before the first step."""
        pace = learner_pace(list(self.steps), list(self.spans), list(self.waits))
        if pace is None:
            return None
        measured = len(self.ratios) >= FEWEST
        return PacedSituation(
            now=1000 * self.clock.now,
            step=self.step,
            training_since=None if self.began is None else 1000 * self.began,
            newest=self.published,
            publish_every=self.scene.publish_every,
            staleness=self.scene.staleness,
            batch=self.scene.batch,
            buffered=len(self.buffer),
            undecided=self.undecided,
            verdict=1000 * VERDICT * STEP,
            broadcast=1000 * BROADCAST * STEP,
            kept=statistics.fmean(self.outcomes) if self.outcomes else 1.0,
            cv=float(np.std(list(self.ratios))) if measured else UNMEASURED_CV,
            least_supply=min(self.supplies, default=math.inf),
            pace=pace,
        )

    # learner

    def _draw(self) -> None:
        scene = self.scene
        self.buffer = sorted(version for version in self.buffer if fresh(self.step, version, scene.staleness))
        if self.began is not None or len(self.buffer) < scene.batch:
            return
        drawn, self.buffer = self.buffer[: scene.batch], self.buffer[scene.batch :]
        now = self.clock.now
        self.ages += [(self.step, self.step - version) for version in drawn]
        self.idle.append(now - self.waits_since)
        self.waits.append(1000 * self.idle[-1])
        self.supplies.append(self.summary.supply)
        if self.step:
            self.spans.append(1000 * (now - self.drew))
        self.began = self.drew = now
        self.clock.after(STEP * max(0.3, self.random.gauss(1.0, STEP_CV)), self._stepped)

    def _stepped(self) -> None:
        assert self.began is not None
        self.steps.append(1000 * (self.clock.now - self.began))
        self.step, self.began, self.waits_since = self.step + 1, None, self.clock.now
        self.summary.set_oldest(self.step - self.scene.staleness)
        if self.step % self.scene.publish_every == 0:
            self.published = self.step
            for node in self.nodes:
                if node.here:
                    late = BROADCAST * self.random.uniform(0.7, 1.3)
                    self.clock.after(late * STEP, self._hear, node, self.published)
        self._draw()


def fleet(spread: bool, nodes: int, ratio: float, batch: int, at_once: int, seed: int) -> tuple[float, ...]:
    """Return the turnarounds, in steps, of a fleet that makes `ratio` batches per step. `spread`: tenfold."""
    chances = random.Random(seed)
    raw = [10 ** chances.random() if spread else 1.0 for _ in range(nodes)]
    rate = at_once * sum(1 / turnaround for turnaround in raw)
    return tuple(turnaround * rate / (ratio * batch) for turnaround in raw)
