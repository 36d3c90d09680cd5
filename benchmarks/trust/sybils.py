"""Let an owner of 1,000 keys attack a run of 50 honest nodes for 24 hours: what it gets, and what that costs it.

Whole runs in simulated time on a real coordinator's tables (tests/support/group_world.py): hellos, leases, canaries,
budgets, shares, verdicts, ledger and peer lists are the product's own. The honest nodes have worked `BEFORE` hours
when the attack begins. The keys are of `SUBNETS` subnets and ask as they are told to, at most every `PATIENCE`
seconds. Their strategies:

    idle        each key takes leases and brings nothing
    junk        each key brings tokens that it did not generate
    a group     each key brings one good group, the price of an identity, and is idle from then on
    work        all keys work honestly, on `MACHINES` machines

Shares are of all leases, of those that are no canaries and so take room, of accepted work in milli-RE, and of the
records in the answer to a newcomer's hello, in the mean over the hours of the attack. The cost is the owner's:
`TURNAROUND` seconds of one core for each group that it generates. The learner's steps are divided by those of the same
run in calm.
"""

import itertools
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.plays.simulated_clock import SimulatedClock
from benchmarks.trust.stepping_learner import SteppingLearner
from echo2.coordinator.metrics.canary_counts import canary_view
from echo2.coordinator.nodes.trusted_parties import trusted_nodes
from echo2.engines.engine import SampleScore
from echo2.p2p.discovery.peer_records import RecordIssuer, decode_own
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease
from echo2.protocol.requests import Refusal
from tests.support.group_world import HELLO, RUN, World, group, opened

HONEST: Final = 50
SYBILS: Final = 1_000
SUBNETS: Final = 32
MACHINES: Final = 10
TURNAROUND: Final = 1800.0
"""Seconds of a group on one core."""
CV: Final = 0.25
STEP: Final = 3600.0
"""Seconds of a step: honest supply is 1.25 times what the learner needs."""
BATCH: Final = 80
BEFORE: Final = 26.0
"""Hours, after which the honest keys are proven."""
PATIENCE: Final = 3600.0
OFTEN: Final = 120.0
"""Least seconds between two requests of an honest node that was refused."""
REACH: Final = 60.0
"""Most seconds until a version is with a node."""
TICK: Final = 300.0
RENEWED: Final = 8 * 3600.0
STRATEGIES: Final = ("idle", "junk", "a group", "work")


class Machine:
    """A machine that generates one group after another. `free`: seconds from when on it is."""

    def __init__(self) -> None:
        self.free = 0.0


class Node:
    """A key with its machine. `strategy`: of a sybil; empty: an honest node."""

    def __init__(self, number: int, subnet: str, machine: Machine, strategy: str) -> None:
        self.private = Ed25519PrivateKey.from_private_bytes(number.to_bytes(32))
        self.key = public_bytes(self.private)
        self.address = f"{subnet}.0.{1 + number % 250}"
        self.origin = Origin(peer_id(self.key), f"{subnet}.0.0/24")
        self.machine = machine
        self.strategy = strategy
        self.version = 0
        self.asks = False
        self.good = 0
        """Groups that it generated."""


class Outcome(NamedTuple):
    """The shares of the sybils, and the learner's steps during the attack. `groups`: that they generated."""

    leases: float
    room: float
    work: float
    told: float
    steps: int
    groups: int
    canaries: int


class SybilRun:
    """A run with `SYBILS` keys of one strategy among `HONEST` honest nodes; an empty strategy: without them."""

    def __init__(self, folder: Path, strategy: str, seed: int, keys: int | None = None) -> None:
        """`keys`: of the strategy; None: `SYBILS`."""
        self.clock, self.chance = SimulatedClock(), random.Random(seed)
        self.world = World(
            folder, batch_groups=BATCH, per_node=2, canaries=0.005, audits=0.01,
            least_ms=int(2_000 * TURNAROUND), first_ms=int(4_000 * TURNAROUND), most_ms=int(8_000 * TURNAROUND),
        )  # fmt: skip
        self.honest = [Node(1 + number, f"8.{number}", Machine(), "") for number in range(HONEST)]
        machines = [Machine() for _ in range(MACHINES)]
        self.sybils = [
            Node(10_000 + number, f"9.{number % SUBNETS}", machines[number % MACHINES], strategy)
            for number in range((SYBILS if keys is None else keys) if strategy else 0)
        ]
        self.given: Counter[bool] = Counter()
        """Leases of the attack, by whether a sybil got them."""
        self.normal: Counter[bool] = Counter()
        """Those of them that are no canaries: only they take room."""
        self.told: list[float] = []
        self.learner = SteppingLearner(self.world, self.clock, self.chance, STEP, self._published)
        self.junk: set[bytes] = set()
        for node in self.honest:
            self.clock.after(self.chance.random() * 60, self._join, node)
        self.clock.after(TICK, self._tick)

    def play(self, hours: float) -> Outcome:
        """Simulate `BEFORE` hours of calm and so many of the attack."""
        self.clock.run(lambda: False, 3600 * BEFORE)
        self.given.clear()
        self.normal.clear()
        before, steps = self._work(), self.learner.step
        for node in self.sybils:
            self.clock.after(self.chance.random() * 3600, self._join, node)
        for hour in range(int(hours)):
            self.clock.after(3600.0 * (hour + 1) - 1, self._newcomer)
        self.clock.run(lambda: False, 3600 * (BEFORE + hours))
        after = self._work()
        honest, sybil = (after[one] - before[one] for one in (False, True))
        canaries = canary_view(self.world.group_service.database, 1, self.learner.step).given
        return Outcome(
            _share(self.given), _share(self.normal), sybil / max(1, honest + sybil), statistics.fmean(self.told),
            self.learner.step - steps, sum(node.good for node in self.sybils), canaries,
        )  # fmt: skip

    def _work(self) -> dict[bool, int]:
        """Return the accepted work by whether it is a sybil's."""
        keys = {node.key for node in self.sybils}
        query = "SELECT node, sum(weight) FROM sums WHERE verdict = 'accepted' AND node != x'' GROUP BY node"
        work = Counter[bool]()
        for node, weight in self.world.group_service.database.all(query):
            work[node in keys] += weight
        return work

    def _tick(self) -> None:
        self.learner.tell()
        service = self.world.group_service
        while service.tick(self.world.now):
            pass
        service.registry.keep(one.node for one in trusted_nodes(service.database))
        self.clock.after(TICK, self._tick)

    def _join(self, node: Node) -> None:
        """Say hello, and again when the record is old."""
        self.learner.tell()
        address = f"/ip4/{node.address}/tcp/4310/p2p/{node.origin.connection}"
        record = decode_own(RecordIssuer(node.private, RUN).issue([address], self.world.now))
        self.world.group_service.registry.register(node.key, HELLO, record, self.world.now)
        self.clock.after(RENEWED, self._join, node)
        node.version = self.learner.step
        self._ask_after(node, 0.0)

    def _newcomer(self) -> None:
        """Count the sybils in what a newcomer is told."""
        self.learner.tell()
        told = self.world.group_service.registry.records(self.world.now)
        names = {node.origin.connection for node in self.sybils}
        self.told.append(sum(one.peer in names for one in told) / max(1, len(told)))

    def _ask_after(self, node: Node, seconds: float) -> None:
        if not node.asks:
            node.asks = True
            self.clock.after(seconds, self._ask, node)

    def _ask(self, node: Node) -> None:
        node.asks = False
        works = node.strategy in ("", "work") or (node.strategy == "a group" and not node.good)
        if works and node.machine.free > self.clock.now:
            wait = node.machine.free - self.clock.now
            self._ask_after(node, wait if not node.strategy else max(PATIENCE, wait))
            return
        self.learner.tell()
        node.version = self.learner.step if node.strategy else node.version
        answer = self.world.group_service.lease(node.key, self.world.ask(node.version), self.world.now, node.origin)
        if isinstance(answer, Refusal):
            wait = (answer.retry_after or 60_000) / 1000 * self.chance.uniform(1.0, 1.2)
            self._ask_after(node, max(PATIENCE if node.strategy else OFTEN, wait))
            return
        lease: Lease = opened("lease", answer, Lease)
        self.given[bool(node.strategy)] += 1
        self.normal[bool(node.strategy)] += not self.world.group_service.leases.twins.is_canary(lease.id)
        self._begin(node, lease, works)

    def _begin(self, node: Node, lease: Lease, works: bool) -> None:
        takes = TURNAROUND * self.chance.lognormvariate(-(CV**2) / 2, CV)
        if works:
            node.machine.free = self.clock.now + takes
            node.good += 1
            self.clock.after(takes, self._submit, node, lease)
        elif node.strategy == "junk":
            self.junk.add(lease.id)
            self.clock.after(1.0, self._submit, node, lease)
        self._ask_after(node, takes if works else PATIENCE)

    def _submit(self, node: Node, lease: Lease) -> None:
        self.learner.tell()
        texts = ["7", "8"] if lease.id in self.junk else None
        self.world.group_service.submissions.submit(node.key, encode(group(lease, texts)), self.world.now)
        for waiting in self.world.group_service.list_undecided(1_000):
            if waiting.lease.id in self.junk:
                lengths = [len(one.logprobs) // 4 for one in waiting.submission.rollouts]
                wrong = [SampleScore(logprobs=[-0.5] * tokens, margins=[2.0] * tokens) for tokens in lengths]
                self.world.decide(waiting, wrong)
            else:
                self.world.decide_one(waiting)
        self.learner.draw()

    def _published(self, version: int) -> None:
        for node in self.honest:
            self.clock.after(REACH * self.chance.random(), self._hear, node, version)

    def _hear(self, node: Node, version: int) -> None:
        node.version = version
        self._ask_after(node, 0.0)


def _share(given: Counter[bool]) -> float:
    return given[True] / max(1, given.total())


def sybil_table(hours: float, strategies: Sequence[str] = STRATEGIES, seed: int = 0) -> list[Claim]:
    """Play each strategy beside calm; print the table, and return the claim on the learner's steps."""
    names = ["", *strategies]
    with ProcessPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        outcomes = pool.map(_played, names, itertools.repeat(hours), itertools.repeat(seed))
        played: Mapping[str, Outcome] = dict(zip(names, outcomes, strict=True))
    calm, rows = played[""].steps, list[list[object]]()
    for name, one in itertools.islice(played.items(), 1, None):
        cpu = one.groups * TURNAROUND / 3600
        rows.append([name, one.leases, one.room, one.work, one.told, cpu, one.canaries, one.steps / max(1, calm)])
    print(f"{SYBILS} keys of {SUBNETS} subnets, {HONEST} honest nodes, {hours:g} h")
    shares = ["leases", "of room", "accepted work", "peer list"]
    bench.table(["sybils", *shares, "CPU h, groups", "canaries", "learner"], rows)
    worst = min(one.steps for name, one in played.items() if name) / max(1, calm)
    return [Claim("learner beside sybils", worst, "its steps in calm", 0.9)]


def _played(strategy: str, hours: float, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        run = SybilRun(Path(folder), strategy, seed)
        began = time.monotonic()
        outcome = run.play(hours)
        run.world.close()
    print(
        f"{strategy or 'calm'}: {msgspec.json.encode(outcome._asdict()).decode()}, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return outcome
