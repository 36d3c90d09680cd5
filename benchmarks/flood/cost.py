"""Measure the CPU of the main process per hostile request against an honest one's.

A whole coordinator runs without a network (benchmarks/load/bare.py), with a stand-in scorer that takes no time. Every
request is prepared before and goes to its handler, `AT_ONCE` at a time. The CPU for its consequences (the verdict, the
receipt) counts too.

The honest request is the mean over a group's requests, by known nodes: the lease request with the verdicts request for
the last group beside it, and the submission with the confirmation of the last receipt. Each kind of hostile request
runs between two rounds of honest ones, and is compared with these; the round after one kind is the round before the
next.
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.attacks.groups import made_up, nothing
from benchmarks.attacks.light_node import lease_of, opened
from benchmarks.flood.engine import StandInScorer, honest
from benchmarks.load.bare import Bare, bare, until
from benchmarks.load.folder import make_run
from benchmarks.load.light import LightNode
from echo2.coordinator.verification.verification import submission_limit
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease, Rollout, Segment, Submission, VerdictsRequest
from echo2.protocol.requests import DocumentsRequest

AT_ONCE: Final = 16
NODES: Final = 16
"""Number of honest nodes."""
BATCH: Final = 200
SECTIONS: Final[dict[str, dict[str, Any]]] = {
    "run": {"group_size": 4, "limit": 40, "batch_groups": BATCH, "staleness": 8},
    "leases": {"minimum_seconds": 600.0, "per_node": 64},
}


class Ask(NamedTuple):
    """A prepared request. `peer`: the connection by which it arrives."""

    peer: str
    method: str
    data: bytes


class RequestCost(NamedTuple):
    """CPU milliseconds of a hostile request of one kind and of an honest request. `requests`: hostile ones measured."""

    kind: str
    hostile: float
    honest: float
    requests: int

    @property
    def ratio(self) -> float:
        return self.hostile / self.honest


def measured(requests: int) -> list[RequestCost]:
    """Measure every kind of hostile request, each by `requests` of them."""
    with tempfile.TemporaryDirectory(prefix="echo2-flood-") as folder:
        run = make_run(Path(folder) / "run", now=time.time_ns() // 1_000_000, **SECTIONS)

        async def main() -> list[RequestCost]:
            async with bare(run, scorers=[StandInScorer(0.0)]) as coordinator:
                return await _Bench(coordinator, submission_limit(run.runspec)).measured(requests)

        return asyncio.run(main())


class _Bench:
    def __init__(self, coordinator: Bare, most: int) -> None:
        """`most`: bytes of the largest submission that the coordinator decodes."""
        self._at, self._most = coordinator, most
        self._nodes = [LightNode(coordinator.terms(40)) for _ in range(NODES)]
        self._known: dict[int, list[bytes]] = {number: [] for number in range(NODES)}
        self._introduced_so_far = 0

    async def measured(self, requests: int) -> list[RequestCost]:
        await self._ask([Ask(f"honest {n}", "hello", node.hello()) for n, node in enumerate(self._nodes)])
        await self._honest(10 * NODES)  # warm up, and make the nodes known
        kinds: dict[str, Callable[[int], Awaitable[float]]] = {
            # first, as it needs a lease: the asks of fresh keys fill the newcomers' share
            "other bytes for a lease that has ended": self._other_bytes,
            "hello of a fresh key": self._hellos,
            "ask of a fresh key": self._asks,
            "ask of a fresh key without room, again and again": self._refused,
            "made-up group": self._forged,
            "group without rollouts": self._empty,
            "largest group, for no lease": self._largest,
            "question about 256 leases that are none": self._questions,
            "confirmation of 256 receipts that are none": self._confirmations,
            "question about 64 documents that are none": self._documents,
            "request that is not signed by its key": self._unsigned,
        }
        costs, before = [], await self._honest(requests // 4)
        for kind, hostile in kinds.items():
            spent = await hostile(requests)
            after = await self._honest(requests // 4)
            costs.append(RequestCost(kind, 1000 * spent, 1000 * statistics.mean((before, after)), requests))
            before = after
        return costs

    async def _honest(self, requests: int) -> float:
        """Return the mean CPU seconds per request of honest groups, over about `requests` requests."""
        spent, rounds = 0.0, max(1, requests // (2 * NODES))
        for _ in range(rounds):
            await self._drawn()
            for node in self._nodes:
                node.terms = self._at.terms(40)
            asks = [
                Ask(f"honest {n}", "lease", node.ask(VerdictsRequest(leases=self._known[n])))
                for n, node in enumerate(self._nodes)
            ]
            seconds, answers = await self._ask(asks)
            leases = [_lease(answer) for answer in answers]
            groups = [
                Ask(f"honest {n}", "submit", _sealed(node, honest(lease), self._known[n]))
                for n, (node, lease) in enumerate(zip(self._nodes, leases, strict=True))
            ]
            self._known = {n: [lease.id] for n, lease in enumerate(leases)}
            spent += seconds + (await self._ask(groups))[0]
        return spent / (2 * NODES * rounds)

    async def _hellos(self, requests: int) -> float:
        asks = [Ask("strangers", "hello", self._stranger().hello()) for _ in range(requests)]
        return (await self._ask(asks))[0] / requests

    async def _asks(self, requests: int) -> float:
        keys = await self._introduced(requests)
        return (await self._ask([Ask(peer, "lease", key.ask()) for peer, key in keys]))[0] / requests

    async def _refused(self, requests: int) -> float:
        ((_, key),) = await self._introduced(1)
        await self._ask([Ask("strangers", "lease", key.ask()) for _ in range(64)])
        return (await self._ask([Ask("strangers", "lease", key.ask()) for _ in range(requests)]))[0] / requests

    async def _forged(self, requests: int) -> float:
        return await self._brought(requests, made_up)

    async def _empty(self, requests: int) -> float:
        return await self._brought(requests, nothing)

    async def _brought(self, requests: int, group: Callable[[Lease], Submission]) -> float:
        """Return the CPU seconds per request, where each fresh key requests a lease and, if it gets one, submits a
        group."""
        keys = await self._introduced(requests // 2)
        asked, answers = await self._ask([Ask(peer, "lease", key.ask()) for peer, key in keys])
        groups = [
            Ask(peer, "submit", _sealed(key, group(lease_of(body)), []))
            for (peer, key), answer in zip(keys, answers, strict=True)
            if isinstance(body := opened(answer), bytes)
        ]
        brought, _ = await self._ask(groups)
        return (asked + brought) / (len(keys) + len(groups))

    async def _largest(self, requests: int) -> float:
        ((peer, key),) = await self._introduced(1)
        ids = self._most // 4 - 300
        rollout = Rollout(
            tokens=[2] * (ids - 1) + [200],  # one token above 127: else all could be read as single bytes
            turns=[ids],
            logprobs=bytes(160),
            segments=[Segment(version=0, root=bytes(32), first=0)],
        )
        group = encode(Submission(lease=bytes(16), era=0, version=0, root=bytes(32), rollouts=[rollout] * 4))
        asks = [Ask(peer, "submit", key.sealed("submit", group)) for _ in range(requests)]
        return (await self._ask(asks))[0] / requests

    async def _other_bytes(self, requests: int) -> float:
        ((peer, key),) = await self._introduced(1)
        _, (answer,) = await self._ask([Ask(peer, "lease", key.ask())])
        lease = _lease(answer)
        await self._ask([Ask(peer, "submit", _sealed(key, nothing(lease), []))])
        asks = [Ask(peer, "submit", _sealed(key, made_up(lease), [])) for _ in range(requests)]
        return (await self._ask(asks))[0] / requests

    async def _questions(self, requests: int) -> float:
        ((peer, key),) = await self._introduced(1)
        asks = [Ask(peer, "verdicts", key.verdicts([os.urandom(16) for _ in range(256)], [])) for _ in range(requests)]
        return (await self._ask(asks))[0] / requests

    async def _confirmations(self, requests: int) -> float:
        ((peer, key),) = await self._introduced(1)
        asks = [Ask(peer, "verdicts", key.verdicts([], [os.urandom(16) for _ in range(256)])) for _ in range(requests)]
        return (await self._ask(asks))[0] / requests

    async def _documents(self, requests: int) -> float:
        data = encode(DocumentsRequest(hashes=[os.urandom(32) for _ in range(64)]))
        return (await self._ask([Ask("strangers", "documents", data)] * requests))[0] / requests

    async def _unsigned(self, requests: int) -> float:
        ((peer, key),) = await self._introduced(1)
        asks = [Ask(peer, "lease", key.ask()[:-1] + b"\x00") for _ in range(requests)]
        return (await self._ask(asks))[0] / requests

    async def _drawn(self) -> None:
        """Let the learner draw the waiting groups, so that the cost of a request does not depend on the length of the
        run."""
        group_service = self._at.coordinator.group_service
        while group_service.count_buffered() >= BATCH:
            version = self._at.terms().version + 1
            self._at.learner.let.set()
            await until(partial(self._stands_at, version))

    def _stands_at(self, version: int) -> bool:
        progress = self._at.coordinator.group_service.progress
        return progress is not None and progress.version >= version

    def _stranger(self) -> LightNode:
        return LightNode(self._at.terms(40), key=Ed25519PrivateKey.generate())

    async def _introduced(self, keys: int) -> list[tuple[str, LightNode]]:
        """Introduce fresh keys, each with a connection of its own."""
        self._introduced_so_far += 1
        visitors = [(f"stranger {self._introduced_so_far} {number}", self._stranger()) for number in range(keys)]
        await self._ask([Ask(peer, "hello", key.hello()) for peer, key in visitors])
        return visitors

    async def _ask(self, asks: Sequence[Ask]) -> tuple[float, list[bytes]]:
        """Send requests; return the CPU seconds of all of them and of the verdicts that follow, and the answers."""
        spent, answers, handlers = time.process_time(), list[bytes](), self._at.handlers
        for start in range(0, len(asks), AT_ONCE):
            part = asks[start : start + AT_ONCE]
            answers += await asyncio.gather(*(handlers[one.method](one.peer, one.data) for one in part))
            await until(lambda: not self._at.database.value("SELECT count(*) FROM leases WHERE state = 'received'"))
        return time.process_time() - spent, answers


def _sealed(node: LightNode, group: Submission, confirmed: list[bytes]) -> bytes:
    return node.sealed("submit", encode(group), VerdictsRequest(leases=[], confirmed=confirmed))


def _lease(answer: bytes) -> Lease:
    body = opened(answer)
    assert isinstance(body, bytes), f"no lease: {body}"
    return lease_of(body)
