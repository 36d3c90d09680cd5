"""A run in simulated time: nodes, leases, a buffer and a learner, around the product's own pure rules.

The window of leases is that of coordinator/leases/lease_window.py, told by the events of this run what a coordinator
tells it: when the learner draws and ends a step, when a batch was complete, and how many groups were on their way when
a lease was given. A node's most leases, their lives and its share of the room follow from the product's own record of
its leases (delivery_record.py). With `windowed` False the room of the versions alone bounds the leases (`free_slots` of
lease_terms.py). Where nodes ask for money, coordinator/market/activation.py chooses among those that are here, each
quarter of an hour. Prompts may differ in length, and with `prompts` in difficulty (simulated_prompts.py); they are
leased in order. Durations come from this simulation: a step varies by `STEP_CV`, the groups of one node by `GROUP_CV`.
A node that leaves says nothing: its leases stay open until they expire. A node that starts again gives its leases back,
where `gives_back`; each of the others leaves for good, or for longer than its leases last. A refused node asks again
after its wait, or with the next version. A node changes its version by engines/process/change_time.py.

Not simulated: groups that are refused, new keys, the budgets of expired leases, and the measuring of rates for
activation, which knows them. A node is paid by the hour, as long as it is here, and active or still at work. Scorers
verify groups in the order in which they come, each group in the same time.
"""

import heapq
import math
import random
import statistics
from bisect import insort
from collections import Counter, deque
from fractions import Fraction
from typing import Final, NamedTuple

from benchmarks.plays.price_rules import placed_by_lot
from benchmarks.plays.run_scene import RunResult, RunScene, StepRecord
from benchmarks.plays.simulated_clock import SimulatedClock
from benchmarks.plays.simulated_node import GroupWork, OpenLease, SimulatedNode
from benchmarks.plays.simulated_prompts import LeasedPrompt, SelectionFigures, SimulatedPrompts
from benchmarks.plays.version_delivery import VersionDelivery
from echo2.coordinator.learner.age import fresh, oldest_fresh
from echo2.coordinator.leases.delivery_record import PastLease
from echo2.coordinator.leases.lease_lifetime import (
    ENOUGH_PROVEN_NODES,
    FleetTurnarounds,
    LeaseLifetime,
    LifetimeBounds,
    lease_duration,
    quick_turnaround,
)
from echo2.coordinator.leases.lease_terms import InFlight, LeaseTerms, Progress, free_slots
from echo2.coordinator.leases.lease_window import CompletedBatch, LeaseWindow
from echo2.coordinator.leases.open_lease_limit import most_open
from echo2.coordinator.leases.retry_times import RetryTimes, back_by
from echo2.coordinator.leases.room_shares import WAITING_CODES, Requester, Room, RoomShares, Share
from echo2.coordinator.market.activation import ActivationTerms, Offer, activate_offers
from echo2.coordinator.metrics.broadcast_stats import BroadcastStats
from echo2.coordinator.prompts.prompt_window import POSITIONS_AHEAD
from echo2.p2p.limits.origin import Origin
from echo2.protocol.broadcast_messages import Acknowledgement
from echo2.runtime.quantiles import quantile

STEP_CV: Final = 0.1
GROUP_CV: Final = 0.25
EPOCH: Final = 900.0
"""Seconds between two activations."""
FIRST_LIFETIME: Final = 5.0
"""Turnarounds of the slowest node that a lease lasts at least while too few nodes are proven: an operator's bound."""


class BufferedGroup(NamedTuple):
    """A group that may be drawn. `rank`: 0, or less by its signal. `number`: of its verdict, which came `at`, ms.
    `ahead`, `leased`: of its lease. `node`: key of the node that made it."""

    rank: float
    version: int
    number: int
    at: int
    ahead: int
    leased: int
    prompt: LeasedPrompt
    node: bytes


class SimulatedRun:
    """One run. `windowed`: under the window of leases; else under the room of the versions alone."""

    def __init__(self, scene: RunScene, *, windowed: bool, seed: int) -> None:
        self.scene, self.windowed, self.step_seconds = scene, windowed, scene.step_seconds
        self.random = random.Random(seed)
        self.clock = SimulatedClock()
        self.terms = LeaseTerms(
            staleness=scene.staleness, batch_groups=scene.batch, group_size=8, limit=64, engines=[""]
        )
        self.step = self.published = self.given = 0
        self.lease_window, self.shares = LeaseWindow(scene.staleness, scene.batch), RoomShares()
        slowest = max(scene.turnarounds, default=0.0)
        first = max(self.terms.first_ms, int(1000 * FIRST_LIFETIME * slowest * scene.step_seconds))
        self.bounds = LifetimeBounds(first, self.terms.least_ms, max(self.terms.most_ms, 2 * first))
        self.fleet_turnarounds = FleetTurnarounds()
        self.slow = Counter[int]()
        """Groups on their way in the room of slow nodes, by version."""
        self.open: dict[int, OpenLease] = {}
        self.running: Counter[int] = Counter()
        """Open leases, by version."""
        self._due: list[tuple[int, int]] = []
        """Heap of when leases will be late, and the leases."""
        self._late: dict[int, int] = {}
        """Open leases that are late, with their versions."""
        self.lost = 0
        self.work: dict[int, GroupWork] = {}
        """By lease that a node works on."""
        self.sampled, self.learned = 0.0, 0.0
        """Tokens that were sampled, and those of drawn groups, in mean groups."""
        self.undecided = 0
        self._scorers_free = [0.0] * scene.scorers
        """When each scorer has verified what it was given, seconds."""
        self.scored = 0.0
        """Seconds of the scorers at work."""
        self.buffer: list[BufferedGroup] = []
        """The groups that may be drawn, in the order of the draw."""
        self.drawn = Counter[bytes]()
        """Groups drawn, by node."""
        self.decided = 0
        """Verdicts."""
        self.began: float | None = None
        self.waits_since, self.published_at = 0.0, 0
        self.broadcasts, self.retries = BroadcastStats(), RetryTimes()
        self._reach = 0.0
        """See `BroadcastStats.reach`."""
        asks = scene.asks or (0,) * len(scene.turnarounds)
        self.nodes = [
            SimulatedNode(number.to_bytes(4), turnaround * self.step_seconds, ask)
            for number, (turnaround, ask) in enumerate(zip(scene.turnarounds, asks, strict=True))
        ]
        self.records: list[StepRecord] = []
        self.window = deque[LeasedPrompt]()
        """Prompts that are chosen ahead, in the order in which they are leased."""
        self._next_position = 0
        self.prompts = None if scene.prompts is None else SimulatedPrompts(scene.prompts, seed)
        self.paid = 0.0
        self.delivery = VersionDelivery(scene, self.clock, self.random, self._hear)
        self._begin()

    def _begin(self) -> None:
        """Let the active nodes ask, each after a moment."""
        if self.scene.order is not None:
            self._activate()
        for node in self.nodes:
            self._count_hours(node)
            self.clock.after(self.random.random() * 0.1 * self.step_seconds, self._ask, node)
        self.come_and_go()

    def run(self, steps: float = math.inf, seconds: float = math.inf) -> RunResult:
        """Run until the learner has made so many steps, or so many seconds have passed. Raises `ValueError` if it made
        none in them."""
        self.clock.run(lambda: self.step >= steps, seconds)
        if math.isfinite(seconds):
            self.clock.now = seconds
        if not self.step:
            raise ValueError("the learner has not made a step")
        counted = self.records[self.step // 5 :]
        waited = sum(record.waited for record in counted)
        if self.began is None and math.isfinite(seconds):
            waited += seconds - self.waits_since
        for node in self.nodes:
            self._count_hours(node)
        return RunResult(
            statistics.fmean(record.age for record in counted),
            waited / (waited + len(counted) * self.step_seconds),
            self.given / (self.step * self.scene.batch),
            self.paid / self.step,
            self.lost / max(1, self.given),
            1 - self.learned / max(1e-9, self.sampled - sum(one.prompt.length for one in self.buffer)),
            self.delivery.copies / self.step,
            self.scored / (self.clock.now * self.scene.scorers),
            self.given / max(1, self.prompts.useful) if self.prompts else 0.0,
            self.prompts.figures() if self.prompts else SelectionFigures(),
        )

    def least_part(self) -> float:
        """Return the least part that a node has of its rate's share of the groups drawn; 0 where one has none."""
        rates = {node.key: 1 / node.turnaround for node in self.nodes}
        whole, all_rates = self.drawn.total(), sum(rates.values())
        return min(self.drawn[key] / whole / (rate / all_rates) for key, rate in rates.items())

    # nodes

    def _ask(self, node: SimulatedNode) -> None:
        while node.here and node.active and len(node.running) < self.scene.at_once:
            if node.loaded < node.newest and self._changes(node) and not self._loads(node):
                return
            node.waits = False
            again = self._refused(node)
            if again is not None:
                node.waits = math.isfinite(again)
                if node.waits:
                    self.clock.after(again * self.random.uniform(1, 1.2), self._ask_again, node)
                return
            self._give(node)

    def _changes(self, node: SimulatedNode) -> bool:
        """Tell whether a node loads the newest version before it begins another group, from now on until it has."""
        if not node.changes and node.is_due(self.scene.staleness, self._now()):
            node.changes = True
            node.change_cost.begin(len(node.running), self.clock.now)
        return node.changes

    def _loads(self, node: SimulatedNode) -> bool:
        """Let a node load the newest version that it has, once its groups under way have ended
        (node/rollouts/worker.py, rule 1); return whether it did."""
        if node.running:
            return False
        node.loaded, node.changes, now = node.newest, False, self._now()
        node.change_cost.end(self.clock.now)
        applied = Acknowledgement(era=1, version=node.loaded, heard=0, complete=0, applied=0)
        self.broadcasts.on_acknowledgement(node.key.hex(), applied, now, here_since=node.here_since, admitted=True)
        self._reach = self.broadcasts.reach() or 0.0
        return True

    def _ask_again(self, node: SimulatedNode) -> None:
        if node.waits:
            self._ask(node)

    def _give(self, node: SimulatedNode) -> None:
        """Give a node a lease."""
        self.given += 1
        lease, now, ahead = self.given, self._now(), self.on_their_way() + 1
        prompt, turnarounds, lifetime = self._prompt(), node.record().turnarounds, self._lifetime(node)
        share = _share_of(node, lifetime)
        late = None if lifetime.late_after is None else now + lifetime.late_after
        self.open[lease] = OpenLease(node, node.loaded, now, now + lifetime.lasts, share, prompt, ahead, late)
        node.open_leases += 1
        if late is not None:
            heapq.heappush(self._due, (late, lease))
        self.slow[node.loaded] += share == "slow"
        if len(turnarounds) >= ENOUGH_PROVEN_NODES:
            self.fleet_turnarounds.note(node.key, int(quantile(turnarounds, 0.9)), now)
        self.running[node.loaded] += 1
        node.running.add(lease)
        takes = prompt.length * node.turnaround * self.random.lognormvariate(-(GROUP_CV**2) / 2, GROUP_CV)
        self.work[lease] = GroupWork(self.clock.now, takes, prompt)
        self.clock.after(takes, self._returned, node, lease)
        self.clock.after(lifetime.lasts / 1000, self._expired, lease)

    def _lifetime(self, node: SimulatedNode) -> LeaseLifetime:
        """Return the lifetime of a node's next lease (lease_lifetime.py)."""
        return lease_duration(node.record().turnarounds, self.fleet_turnarounds.p90(self._now()), self.bounds)

    def _prompt(self) -> LeasedPrompt:
        """Return the prompt of the next lease, chosen ahead (prompt_window.py, rule 1)."""
        spread, prompts = self.scene.length_spread, self.prompts
        if not spread and prompts is None:
            return LeasedPrompt()
        while len(self.window) < POSITIONS_AHEAD:
            length = self.random.lognormvariate(-(spread**2) / 2, spread) if spread else 1.0
            index = prompts.prompt_at(self._next_position) if prompts else 0
            self.window.append(LeasedPrompt(length, index))
            self._next_position += 1
        chosen = self.window.popleft()
        return chosen._replace(successes=prompts.successes(chosen.number)) if prompts else chosen

    def _returned(self, node: SimulatedNode, lease: int) -> None:
        if lease not in node.running:
            return
        node.running.remove(lease)
        work = self.work.pop(lease)
        self.sampled += work.prompt.length
        node.took.append(self.clock.now - work.began)
        node.change_cost.on_rows(len(node.running), self.clock.now)
        if not node.active:
            self._count_hours(node)
        ended = self._end(lease, came=self._now())
        if ended is not None:
            self.undecided, node.undecided = self.undecided + 1, node.undecided + 1
            self._score(node, ended)
        elif (row := node.ended.get(lease)) is not None:
            node.end(lease, row._replace(came=self._now()))
        if not node.waits or node.loaded < node.newest:
            self._ask(node)

    def _score(self, node: SimulatedNode, ended: OpenLease) -> None:
        """Let the scorer that is free first verify a group."""
        begins = max(self.clock.now, heapq.heappop(self._scorers_free))
        ends = begins + self.scene.verdict * self.step_seconds
        heapq.heappush(self._scorers_free, ends)
        self.scored += ends - begins
        self.clock.after(ends - self.clock.now, self._decided, node, ended)

    def _end(self, lease: int, came: int | None = None) -> OpenLease | None:
        ended = self.open.pop(lease, None)
        if ended is not None:
            self.running[ended.version] -= 1
            self._late.pop(lease, None)
            ended.node.open_leases -= 1
            ended.node.end(lease, PastLease(ended.sent, came, ended.expires))
        return ended

    def on_their_way(self) -> int:
        """Return the groups that are on their way to the learner (coordinator/leases/lease_window.py)."""
        return self._load().on_their_way(len(self.buffer))

    def _load(self) -> InFlight:
        while self._due and self._due[0][0] < self._now():
            lease = heapq.heappop(self._due)[1]
            if (one := self.open.get(lease)) is not None:
                self._late[lease] = one.version
        fresh_ones = self._fresh_versions()
        late = sum(version in fresh_ones for version in self._late.values())
        return InFlight(self.undecided, sum(self.running[version] for version in fresh_ones), late=late)

    def _fresh_versions(self) -> range:
        return range(max(0, oldest_fresh(self.step, self.scene.staleness)), self.published + 1)

    def _expired(self, lease: int) -> None:
        ended = self._end(lease)
        if ended is not None:
            self.slow[ended.version] -= ended.share == "slow"
            self.lost += 1

    def _decided(self, node: SimulatedNode, lease: OpenLease) -> None:
        self.undecided, self.decided = self.undecided - 1, self.decided + 1
        node.undecided -= 1
        self.slow[lease.version] -= lease.share == "slow"
        version, prompt = lease.version, lease.prompt
        if self.prompts:
            self.prompts.came(node.key, prompt)
        if fresh(self.step, version, self.scene.staleness):
            group = BufferedGroup(
                -self._signal(prompt), version, self.decided, self._now(), lease.ahead, lease.sent, prompt, node.key
            )
            insort(self.buffer, group)
            self._draw()
        else:
            self.lost += 1

    def _signal(self, prompt: LeasedPrompt) -> float:
        """Return the signal by which the draw orders a group; 0 where it does not."""
        if not self.scene.by_signal:
            return 0.0
        return self.prompts.signal(prompt) if self.prompts else self.random.random()

    def come_and_go(self) -> None:
        """Let the nodes leave after a while, if the scene says so."""
        for node in self.nodes:
            self._leave_later(node)

    def _leave_later(self, node: SimulatedNode) -> None:
        if math.isfinite(self.scene.life):
            self.clock.after(self.random.expovariate(1 / self.scene.life) * self.step_seconds, self._leave, node)

    def _leave(self, node: SimulatedNode) -> None:
        node.here = node.waits = False
        left = list(node.running)
        for lease in left:
            self._stop(lease)
        node.running.clear()
        self._count_hours(node)
        self.clock.after(self.random.expovariate(1 / self.scene.away) * self.step_seconds, self._come_back, node, left)

    def _stop(self, lease: int) -> None:
        """Count the tokens of a lease whose node leaves."""
        work = self.work.pop(lease)
        self.sampled += work.prompt.length * work.share_at(self.clock.now - work.began)

    def _come_back(self, node: SimulatedNode, left: list[int]) -> None:
        node.here, node.here_since = True, self._now()
        for lease in left if self.scene.gives_back else ():
            if (one := self.open.get(lease)) is not None:
                self.open[lease] = one._replace(expires=min(one.expires, self._now()))
            self._expired(lease)
        self.delivery.catch_up(node, self.published)
        self._count_hours(node)
        self._leave_later(node)
        self._ask(node)

    def _hear(self, node: SimulatedNode, version: int) -> None:
        node.newest = max(node.newest, version)
        node.pace.on_head(version, self.published_at)
        if node.waits:
            self._ask(node)

    def _count_hours(self, node: SimulatedNode) -> None:
        """Pay a node up to now, and from now on while it is here, and active or still at work."""
        if node.paid_since is not None:
            self.paid += node.ask * (self.clock.now - node.paid_since) / 3600
        works = node.here and (node.active or bool(node.running))
        node.paid_since = self.clock.now if works and node.ask else None

    # coordinator

    def _activate(self) -> None:
        """Choose the active nodes among those that are here (coordinator/market/activation.py), a group a reference
        rollout."""
        scene, here = self.scene, [node for node in self.nodes if node.here]
        need = 1000 * scene.gamma * scene.batch * 3600 / self.step_seconds
        offers = [
            Offer(node.key, node.ask, max(1, int(3_600_000 * scene.at_once / node.turnaround)), node.active)
            for node in here
        ]
        assert scene.order is not None
        epoch = int(self.clock.now / EPOCH).to_bytes(8)
        terms = ActivationTerms(int(need), None, Fraction(0), epoch)
        if scene.order == "random":
            offers = placed_by_lot(offers, epoch)
        chosen = set(activate_offers(offers, terms).active)
        for node in self.nodes:
            before, node.active = node.active, node.key in chosen
            if before != node.active:
                self._count_hours(node)
                if node.active:
                    self.clock.after(0.0, self._begin_again, node)
        self.clock.after(EPOCH, self._activate)

    def _begin_again(self, node: SimulatedNode) -> None:
        self.delivery.catch_up(node, self.published)
        self._ask(node)

    def _now(self) -> int:
        return int(1000 * self.clock.now)

    def _refused(self, node: SimulatedNode) -> float | None:
        """Return after how many seconds a node may ask again, infinity: once one of its groups has ended; None: it gets
        a lease."""
        now, requester = self._now(), self._requester(node)
        if node.open_leases >= requester.most_open:
            return math.inf if node.running else self.retries.after(node.key, now, party=requester.origin.party) / 1000
        load = self._load()
        left, newest = self._left(node.loaded, load), self._left(self.published, load)
        all_of_s = (self.scene.staleness + 1) * self.scene.batch
        whole = self.lease_window.groups(now, behind=False) if self.windowed else all_of_s
        waits = False
        if fresh(self.step, node.loaded, self.scene.staleness) and not left <= 0 < newest:
            slow = sum(self.slow[version] for version in self._fresh_versions())
            denial = self.shares.denial_for(requester, Room(whole, left, 0, slow, buffered=len(self.buffer)), now)
            if denial is None:
                self.shares.on_service(requester)
                self.retries.on_grant(node.key, now)
                return None
            waits = denial.code in WAITING_CODES
        node.refused_under = node.loaded
        again = self.retries.after(node.key, now, party=requester.origin.party)
        if waits:
            self.shares.waits(requester, back_by(now, again), now)
        return again / 1000

    def _requester(self, node: SimulatedNode) -> Requester:
        """Return a node as one whose key is known, in a subnet of its own (lease_admission.py)."""
        record, fleet = node.record(), self.fleet_turnarounds.p90(self._now())
        most = most_open(
            self.terms.per_node, self.scene.at_once, "proven", record, quick_turnaround(fleet, self.bounds)
        )
        origin = Origin(node.key.hex(), node.key.hex())
        share, on_their_way = _share_of(node, self._lifetime(node)), node.open_leases + node.undecided
        return Requester(node.key, share, origin, on_their_way, node.undecided, record.rate, most)

    def _left(self, version: int, load: InFlight) -> int:
        """Return the room that is left for a version, in groups."""
        at = Progress(era=1, step=self.step, version=self.published, root=b"")
        left = free_slots(at, self.terms, version, len(self.buffer), load)
        if self.windowed:
            spreads = self._now() - self.published_at < 1000 * self._reach
            behind = version < self.published and spreads
            left = min(left, self.lease_window.room(load, len(self.buffer), self._now(), behind=behind))
        return left

    # learner

    def _draw(self) -> None:
        scene = self.scene
        if self.began is not None:
            return
        if len(self.buffer) < scene.batch:
            self.lease_window.wait(self._now())
            return
        completed = sorted(self.buffer, key=lambda one: one.number)[scene.batch - 1]
        self.lease_window.draw(CompletedBatch(completed.ahead, completed.leased, completed.at), self._now())
        drawn, self.buffer = self.buffer[: scene.batch], self.buffer[scene.batch :]
        now = self.clock.now
        waited = now - self.waits_since
        age = self.step - statistics.fmean(one.version for one in drawn)
        self.learned += sum(one.prompt.length for one in drawn)
        self.drawn.update(one.node for one in drawn)
        if self.prompts:
            self.prompts.learn(one.prompt for one in drawn)
        self.records.append(StepRecord(now, waited, age, sum(node.here and node.active for node in self.nodes)))
        self.began = now
        self.clock.after(self.step_seconds * max(0.3, self.random.gauss(1.0, STEP_CV)), self._stepped)

    def _stepped(self) -> None:
        assert self.began is not None
        scene = self.scene
        self.lease_window.end_step(self._now())
        self.step, self.began, self.waits_since = self.step + 1, None, self.clock.now
        before = len(self.buffer)
        self.buffer = [one for one in self.buffer if fresh(self.step, one.version, scene.staleness)]
        self.lost += before - len(self.buffer)
        if self.step % scene.publish_every == 0:
            self.published, self.published_at = self.step, self._now()
            self.broadcasts.on_announcement(1, self.published, self.published_at)
            self.delivery.send(self.nodes, self.published)
        self._draw()


def _share_of(node: SimulatedNode, lifetime: LeaseLifetime) -> Share:
    return "slow" if node.record().lost or lifetime.slow else "known"
