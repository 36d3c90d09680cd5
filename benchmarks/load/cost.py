"""Measure the CPU of the coordinator's main process per group, against five bare rounds of its unavoidable work.

The anchor is five rounds. In each, a signature is verified, another is made, and 1 KiB is written by a commit of its
own in WAL mode with synchronous=FULL; the first round also writes the bytes of the submission. The five stand for a
lease, a submission, a verdict, its receipt and its confirmation.

The coordinator's cost: every request is prepared before and goes to its handler, 16 at a time as over 16 connections;
the stub scorer answers over its pipe. A node requests the verdict of its last group beside its next lease request, and
confirms that receipt beside its next submission, as node/rollouts/outbox_relay.py does. Sealing requests and reading
answers does not count.
"""

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.attacks.light_node import lease_of, opened
from benchmarks.load.bare import Bare, bare, until
from benchmarks.load.folder import make_run
from benchmarks.load.light import LightNode, submission
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease, VerdictsRequest
from echo2.protocol.requests import Response

ROUNDS: Final = 5
AT_ONCE: Final = 16
_ROW: Final = 1024  # bytes


class Size(NamedTuple):
    """A group of `rollouts` rollouts, each of `tokens` sampled tokens."""

    rollouts: int
    tokens: int

    @property
    def name(self) -> str:
        return f"{self.rollouts} x {self.tokens}"


class Cost(NamedTuple):
    """Milliseconds of CPU per group, of the main process and of the anchor: the median over `turns` measurements.
    `ratio`: the median of their ratios. `requests`: per group."""

    main: float
    anchor: float
    ratio: float
    requests: float


def measured(size: Size, groups: int, turns: int) -> Cost:
    """Measure `groups` groups of one size, `turns` times after one to warm up."""
    with tempfile.TemporaryDirectory(prefix="echo2-load-") as folder:
        return asyncio.run(_measured(Path(folder), size, groups, turns))


async def _measured(folder: Path, size: Size, groups: int, turns: int) -> Cost:
    settings = {
        "group_size": size.rollouts, "limit": size.tokens, "batch_groups": 9000, "staleness": 8, "heldout": 4,
    }  # fmt: skip
    run = make_run(folder / "run", now=time.time_ns() // 1_000_000, run=settings)
    mains, anchors = list[float](), list[float]()
    async with bare(run) as coordinator:
        await until(lambda: coordinator.coordinator.history.evaluations)
        crew = CostCrew(coordinator, size, groups)
        await crew.hello()
        for number in range(turns + 1):
            spent = await crew.work_once()
            bare_rounds = anchor(folder / f"anchor-{number}.sqlite", groups, crew.payload)
            if number:  # the first round warms up
                mains.append(1000 * spent / groups)
                anchors.append(1000 * bare_rounds / groups)
    ratios = [main / bare_rounds for main, bare_rounds in zip(mains, anchors, strict=True)]
    return Cost(_median(mains), _median(anchors), _median(ratios), crew.requests / (groups * (turns + 1)))


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


class CostCrew:
    """Nodes that make one group each per call of `work_once`. `requests`: so far. `payload`: bytes of a submission."""

    def __init__(self, coordinator: Bare, size: Size, groups: int) -> None:
        self._coordinator = coordinator
        self._nodes = [LightNode(coordinator.terms(size.tokens)) for _ in range(groups)]
        self._last: list[list[bytes]] = [[] for _ in self._nodes]
        self._tokens = size.tokens
        self.requests = self.payload = 0

    async def hello(self) -> None:
        """Introduce the nodes."""
        await _asked(self._coordinator, "hello", [node.hello() for node in self._nodes])

    async def work_once(self) -> float:
        """Make one group per node, up to its verdict; return the CPU seconds of the coordinator."""
        asks = [
            node.ask(VerdictsRequest(leases=last, confirmed=[]))
            for node, last in zip(self._nodes, self._last, strict=True)
        ]  # fmt: skip
        spent, answers = await self._asked("lease", asks)
        leases = [_lease(answer) for answer in answers]
        for last, answer in zip(self._last, answers, strict=True):
            told = decode(answer, Response).verdicts
            receipts = [] if told is None else told.receipts
            assert len(receipts) == len(last), "no answer beside the lease"
            assert all(receipts), "a group has no receipt"
        submissions = [
            node.submit(lease, VerdictsRequest(leases=[], confirmed=last))
            for node, lease, last in zip(self._nodes, leases, self._last, strict=True)
        ]
        before, cpu = _decided(self._coordinator), time.process_time()
        await self._asked("submit", submissions)
        await until(lambda: _decided(self._coordinator) >= before + len(leases))
        spent += time.process_time() - cpu
        refused = self._coordinator.database.all("SELECT code FROM verdicts WHERE verdict != 'accepted'")
        assert not refused, f"a group was refused: {refused[0]}"
        self._last = [[lease.id] for lease in leases]
        self.payload = len(encode(submission(leases[0], self._tokens)))
        return spent

    async def _asked(self, method: str, requests: Sequence[bytes]) -> tuple[float, list[bytes]]:
        self.requests += len(requests)
        return await _asked(self._coordinator, method, requests)


def _lease(answer: bytes) -> Lease:
    body = opened(answer)
    assert isinstance(body, bytes), f"no lease: {body}"
    return lease_of(body)


def _decided(coordinator: Bare) -> int:
    return int(coordinator.database.value("SELECT coalesce(max(rowid), 0) FROM verdicts"))


async def _asked(coordinator: Bare, method: str, requests: Sequence[bytes]) -> tuple[float, list[bytes]]:
    """Send requests to a handler; return the CPU seconds and the answers."""
    answers: list[bytes] = []
    cpu = time.process_time()
    for start in range(0, len(requests), AT_ONCE):
        some = requests[start : start + AT_ONCE]
        answers += await asyncio.gather(*(coordinator.ask(method, request) for request in some))
    return time.process_time() - cpu, answers


def anchor(path: Path, groups: int, payload: int) -> float:
    """Return the CPU seconds of the bare rounds of `groups` groups. `payload`: bytes of a submission."""
    key = Ed25519PrivateKey.generate()
    message, row, large = bytes(300), bytes(_ROW), bytes(_ROW + payload)
    signature, public = key.sign(message), key.public_key()
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT")
        cpu = time.process_time()
        for _ in range(groups):
            for number in range(ROUNDS):
                public.verify(signature, message)
                key.sign(message)
                connection.execute("INSERT INTO rows (data) VALUES (?)", (row if number else large,))
        return time.process_time() - cpu
    finally:
        connection.close()
