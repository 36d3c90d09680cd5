"""Let an owner of k keys stall and copy, against the product's own leases: what it gains over working honestly.

Whole runs in simulated time on a real coordinator's tables (tests/support/group_world.py): nodes ask, generate and
submit, the learner draws and publishes. Hedges are on. The owner's keys are of different subnets and share one table of
answers: a key that is given a lease whose seeds another one had submits a copy, without generating. Its strategies:

    all           each lease is withheld until the lot of its hedge must have fallen, or until it is about to expire
    the budget    three leases of each key per hour, and one in 20: all that a node's budget of expired leases
                  (expiry_budgets.py) forgives
    one machine   the budget, with all keys on one machine, which generates one group after another

The gain is that in accepted work over the same owner's honest work, in the same run with the same chances. An owner who
saves work by copies has generated less: that is printed beside it.
"""

import math
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.plays.simulated_clock import SimulatedClock
from benchmarks.trust.stepping_learner import SteppingLearner
from echo2.coordinator.leases.kinds.hedging import SPREAD, overdue_after
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease, SubmitResponse
from echo2.protocol.requests import Refusal
from tests.support.group_world import T0, World, group, name, opened

STEP: Final = 60.0
"""Seconds that the learner takes for a step."""
BATCH: Final = 16
TURNAROUND: Final = 12.0
"""Mean seconds of a group: five within a step, so that a lease is overdue before its version is."""
CV: Final = 0.25
HONEST: Final = 12
KEYS: Final = (2, 6)
REACH: Final = 6.0
"""Seconds until a version is with the nodes."""
GOES: Final = 0.01
"""Chance of an honest node to lose a group: someone else's stalls are not all that is hedged."""
AFTER: Final = 0.25
"""Share of the time that is not counted, while nodes become proven. The owner works honestly then."""
MARGIN: Final = 1.0


class Strategy(NamedTuple):
    """`share`: of leases that are withheld. `hourly`: more of them per hour and key. `together`: all keys on one
    machine."""

    share: float = 0.0
    hourly: int = 0
    together: bool = False


STRATEGIES: Final[Mapping[str, Strategy]] = {
    "all": Strategy(1.0),
    "the budget": Strategy(0.05, 3),
    "one machine": Strategy(0.05, 3, together=True),
}


class Machine:
    """A machine that generates one group after another. `free`: seconds from when on it is."""

    def __init__(self) -> None:
        self.free = 0.0


class Node:
    """A key with its machine."""

    def __init__(self, number: int, machine: Machine, strategy: Strategy | None) -> None:
        self.key = name("node", number, 32)
        self.origin = Origin(f"node {number}", f"10.0.{number}.0/24")
        self.machine = machine
        self.strategy = strategy
        """None: an honest node."""
        self.version = 0
        self.takes: list[int] = []
        """Turnarounds of its groups, ms."""
        self.leases = 0
        self.stalled: list[float] = []
        self.asks = False


class Outcome(NamedTuple):
    """An owner's groups. `paid`: accepted. `copied`: submitted without generating. `hedges`: of the whole run."""

    paid: int
    generated: int
    copied: int
    hedges: int


class StalledRun:
    """A run with an owner of `keys` keys among `HONEST` honest nodes."""

    def __init__(self, folder: Path, keys: int, strategy: Strategy, seed: int) -> None:
        self.clock = SimulatedClock()
        self.chance = random.Random(seed)
        self.world = World(
            folder, batch_groups=BATCH, hedge_share=0.05, per_node=2, least_ms=int(2000 * TURNAROUND),
            first_ms=int(8000 * TURNAROUND),
        )  # fmt: skip
        one = Machine()
        self.nodes = [Node(number, Machine(), None) for number in range(HONEST)]
        self.nodes += [
            Node(HONEST + number, one if strategy.together else Machine(), strategy) for number in range(keys)
        ]
        self.answers: dict[bytes, Lease] = {}
        """The owner's generated groups, by their first seed."""
        self.withheld: dict[bytes, tuple[Node, Lease]] = {}
        self.learner = SteppingLearner(self.world, self.clock, self.chance, STEP, self._published)
        self.begun = False
        """Whether the owner stalls by now."""
        self.generated: Counter[bytes] = Counter()
        self.copied = 0
        self.counted_from: dict[bytes, int] = {}
        for node in self.nodes:
            self.clock.after(self.chance.random() * TURNAROUND, self._ask, node)

    def run(self, seconds: float) -> None:
        """Simulate so many seconds; figures count from `AFTER` of them on."""
        self.clock.run(lambda: False, AFTER * seconds)
        self.begun = True
        self.counted_from = {node.key: self._paid(node) for node in self.nodes}
        self.generated.clear()
        self.copied = 0
        self.clock.run(lambda: False, seconds)

    def outcome(self) -> Outcome:
        """Return the owner's groups since the figures count."""
        keys = [node for node in self.nodes if node.strategy is not None]
        paid = sum(self._paid(node) - self.counted_from[node.key] for node in keys)
        hedges = self.world.group_service.database.value("SELECT count(*) FROM leases WHERE twin = 'hedge'")
        return Outcome(paid, sum(self.generated[node.key] for node in keys), self.copied, hedges)

    def _paid(self, node: Node) -> int:
        query = "SELECT coalesce(sum(groups), 0) FROM sums WHERE node = ? AND verdict = 'accepted'"
        return int(self.world.group_service.database.value(query, (node.key,)))

    def _ask(self, node: Node) -> None:
        """Request a lease for a node whose machine is free."""
        node.asks = False
        if node.machine.free > self.clock.now:
            self._ask_after(node, node.machine.free - self.clock.now)
            return
        self.learner.tell()
        self.world.group_service.tick(self.world.now)
        answer = self.world.group_service.lease(node.key, self.world.ask(node.version), self.world.now, node.origin)
        if isinstance(answer, Refusal):
            self._ask_after(node, (answer.retry_after or 1_000) / 1000 * self.chance.uniform(1.0, 1.2))
            return
        lease: Lease = opened("lease", answer, Lease)
        self._begin(node, lease)

    def _ask_after(self, node: Node, seconds: float) -> None:
        if not node.asks:
            node.asks = True
            self.clock.after(seconds, self._ask, node)

    def _begin(self, node: Node, lease: Lease) -> None:
        takes = TURNAROUND * self.chance.lognormvariate(-(CV**2) / 2, CV)
        node.leases += 1
        strategy = node.strategy
        if strategy is not None and lease.seeds[0] in self.answers:
            self.copied += 1
            self.clock.after(takes, self._submit, node, lease)
            self._hand_in_withheld(lease.seeds[0])
            self._ask_after(node, 0.0)
            return
        node.machine.free = self.clock.now + takes
        self.generated[node.key] += 1
        if strategy is None and self.chance.random() < GOES:
            self._ask_after(node, takes)
            return
        if strategy is not None:
            self.answers[lease.seeds[0]] = lease
        self.clock.after(takes, self._generated, node, lease)
        self._ask_after(node, takes)

    def _generated(self, node: Node, lease: Lease) -> None:
        strategy = node.strategy
        if strategy is None or not self._stalls(node, strategy):
            self._submit(node, lease)
            return
        after = overdue_after(node.takes[-20:])
        last = (lease.expires - T0) / 1000 - MARGIN
        until = last if after is None else min(last, (lease.sent + (1 + SPREAD) * after - T0) / 1000 + STEP / 4)
        node.stalled.append(self.clock.now)
        self.withheld[lease.seeds[0]] = node, lease
        self.clock.after(max(0.0, until - self.clock.now), self._hand_in_withheld, lease.seeds[0])

    def _stalls(self, node: Node, strategy: Strategy) -> bool:
        if not self.begun:
            return False
        lately = sum(at > self.clock.now - 3600 for at in node.stalled)
        if strategy.hourly and lately < strategy.hourly:
            return True
        return self.chance.random() < strategy.share

    def _hand_in_withheld(self, seed: bytes) -> None:
        if (withheld := self.withheld.pop(seed, None)) is not None:
            self._submit(*withheld)

    def _submit(self, node: Node, lease: Lease) -> None:
        self.learner.tell()
        service = self.world.group_service
        answer = service.submissions.submit(node.key, encode(group(lease)), self.world.now)
        assert isinstance(answer, SubmitResponse), answer
        if answer.received is None:
            return
        node.takes.append(self.world.now - lease.sent)
        self.world.decide_all()
        self.learner.draw()

    def _published(self, version: int) -> None:
        for node in self.nodes:
            self.clock.after(REACH * self.chance.uniform(0.5, 1.5), self._hear, node, version)

    def _hear(self, node: Node, version: int) -> None:
        node.version = version
        self._ask_after(node, 0.0)


def stalled(hours: float, seeds: int) -> list[Claim]:
    """Play each strategy with each number of keys beside honest work; return the claims."""
    claims, rows = [], list[list[object]]()
    for keys in KEYS:
        honest = {
            together: [_played(keys, Strategy(together=together), hours, seed) for seed in range(seeds)]
            for together in (False, True)
        }
        for label, strategy in STRATEGIES.items():
            played = [_played(keys, strategy, hours, seed) for seed in range(seeds)]
            anchor = honest[strategy.together]
            gains = [one.paid / own.paid - 1 for one, own in zip(played, anchor, strict=True)]
            error = statistics.stdev(gains) / math.sqrt(seeds) if seeds > 1 else 0.0
            gain = statistics.fmean(gains)
            generated = sum(one.generated for one in played) / sum(own.generated for own in anchor) - 1
            copied = sum(one.copied for one in played) / sum(one.paid for one in played)
            hedges = statistics.fmean(one.hedges for one in played)
            rows.append([f"{keys} keys of {HONEST + keys}", label, gain, error, generated, copied, hedges])
            claims.append(Claim(f"{keys} keys, {label}", gain, "honest work", 0.0, at_most=True))
    bench.table(["owner", "strategy", "gain", "+-", "generated", "copied", "hedges"], rows)
    return claims


def _played(keys: int, strategy: Strategy, hours: float, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        run = StalledRun(Path(folder), keys, strategy, seed)
        run.run(3600 * hours)
        outcome = run.outcome()
        run.world.close()
    return outcome
