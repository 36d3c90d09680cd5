"""A coordinator under load: a whole run in one process, on a fake clock, whose nodes submit at the same time."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.submissions.request_handler import RequestHandler
from echo2.engines.engine import Job, SampleScore
from echo2.engines.process.messages import PackedSample
from echo2.p2p.discovery.peer_records import RecordIssuer
from echo2.p2p.envelope import seal
from echo2.p2p.handlers import MethodHandler
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import TaskReference
from echo2.protocol.leases import LeaseRequest
from echo2.protocol.requests import Hello, Request, Response
from echo2.runtime.errors import DiskFull
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import Node, until
from tests.support.full_disk import refusing
from tests.support.swarm import BigramScorer, Swarm, accepted, make_swarm, wall, whole, working

ASKS = 48


class WatchedScorer(BigramScorer):
    """A scorer that counts its calls. `most`: groups in work at the same time."""

    def __init__(self) -> None:
        super().__init__(seconds=5.0)
        self.here = self.most = 0

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]:
        self.here += 1
        self.most = max(self.most, self.here)
        try:
            return await super().score(job, samples)
        finally:
            self.here -= 1


@pytest.mark.slow
@on_fake_clock
async def test_groups_of_one_version_are_at_the_scorer_together(tmp_path: Path) -> None:
    """At commit 439044d the scorer gets one group at a time, however many wait."""
    swarm = make_swarm(tmp_path, batch_groups=64)
    swarm.scorer = scorer = WatchedScorer()
    nodes = [swarm.node(f"node{number}") for number in range(6)]
    async with swarm.coordinating() as coordinator, working(*nodes):
        await until(lambda: sum(map(accepted, nodes)) >= 24, 600)
        assert scorer.most >= 6
        assert coordinator.view_builder.build().refused == {}


class Volunteer:
    """A client that signs requests as a node does, and calls a coordinator's handlers directly."""

    def __init__(self, swarm: Swarm, handlers: dict[str, MethodHandler]) -> None:
        self.key, self.run, self.handlers = generate_key(), swarm.run, handlers

    async def ask(self, method: str, body: bytes) -> Response:
        recipient, expires = public_bytes(self.run.keys.channel), int(wall() * 1000) + 60_000
        request = Request(recipient=recipient, id=secrets.token_bytes(16), method=method, expires=expires, body=body)
        sealed = seal("request", self.run.id, encode(request), self.key)
        return decode(await self.handlers[method](peer_id(public_bytes(self.key)), sealed), Response)

    async def hello(self) -> Response:
        task = self.run.task
        hello = Hello(
            protocols=(1, 1),
            software="a test",
            name="",
            engine="bigram/float32/cpu",
            device="a CPU",
            tasks=[TaskReference(name=task.name, version=task.version)],
            record=RecordIssuer(self.key, self.run.id).issue([], int(wall() * 1000)),
        )
        return await self.ask("hello", encode(hello))

    async def lease(self, coordinator: Coordinator) -> Response:
        latest = coordinator.publisher.latest
        assert latest is not None
        ask = LeaseRequest(
            nonce=secrets.token_bytes(16),
            era=latest.era,
            version=latest.version,
            root=latest.root,
            engine="bigram/float32/cpu",
        )
        return await self.ask("lease", encode(ask))


@contextmanager
def statements(coordinator: Coordinator) -> Iterator[list[str]]:
    """Record every statement that SQLite runs for the coordinator within the block."""
    connection = coordinator.group_service.database._connection
    seen: list[str] = []
    connection.set_trace_callback(seen.append)
    yield seen
    connection.set_trace_callback(None)


@pytest.mark.slow
@on_fake_clock
async def test_what_many_nodes_ask_at_once_is_a_few_commits(tmp_path: Path, handlers: dict[str, MethodHandler]) -> None:
    """At commit 439044d each request takes two commits: one for the node's last-seen time, one for its lease."""
    swarm = make_swarm(tmp_path, batch_groups=64)
    async with swarm.coordinating() as coordinator:
        volunteers = [Volunteer(swarm, handlers) for _ in range(ASKS)]
        for volunteer in volunteers:
            assert (await volunteer.hello()).refusal is None
        await anyio.sleep(1.5)  # after this time, another request is worth a write of the last-seen time
        with statements(coordinator) as seen:
            answers = await asyncio.gather(*(volunteer.lease(coordinator) for volunteer in volunteers))
        assert [answer.refusal for answer in answers if answer.refusal] == []
        begun = sum(statement.startswith("BEGIN") for statement in seen)
        assert begun <= 4, f"{begun} transactions for {ASKS} asks"


@on_fake_clock
async def test_a_commit_that_finds_no_room_ends_the_coordinator_and_the_next_goes_on(tmp_path: Path) -> None:
    """No answer precedes its commit: every receipt at a node is in the ledger afterwards."""

    async def until_full(swarm: Swarm, node: Node) -> None:
        async with swarm.coordinating() as coordinator:
            await until(lambda: accepted(node) >= 2, 600)
            refusing(coordinator.group_service.database).full = True
            await anyio.sleep(600)

    swarm = make_swarm(tmp_path)
    node = swarm.node("alice")
    async with working(node):
        with pytest.raises(ExceptionGroup) as ended:
            await until_full(swarm, node)
        assert ended.group_contains(DiskFull, match="free disk space, then start again")
        async with swarm.coordinating():
            before = accepted(node)
            await until(lambda: accepted(node) >= before + 2, 600)
            whole(swarm)


async def test_a_loop_that_is_only_busy_gives_no_lease_more_time(
    tmp_path: Path, handlers: dict[str, MethodHandler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commit 439044d takes a blocked event loop for a suspended machine."""
    monkeypatch.setattr("echo2.coordinator.leases.absence.ABSENCE_MS", 1_500)
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating() as coordinator:
        volunteer = Volunteer(swarm, handlers)
        assert (await volunteer.hello()).refusal is None
        assert (await volunteer.lease(coordinator)).refusal is None
        database = coordinator.group_service.database
        (before,) = database.all("SELECT expires FROM leases")
        time.sleep(2.0)  # noqa: ASYNC251 (what holds the loop)
        await anyio.sleep(1.2)  # beyond the next tick
        assert database.all("SELECT expires FROM leases") == [before]


@pytest.mark.slow
@on_fake_clock
async def test_a_group_takes_two_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At commit 439044d verdicts and confirmations have requests of their own, which are repeated many times."""
    asked: Counter[str] = Counter()
    answer = RequestHandler.answer

    def counting(self: RequestHandler, method: str, *rest: Any) -> bytes:
        asked[method] += 1
        return answer(self, method, *rest)

    monkeypatch.setattr(RequestHandler, "answer", counting)
    swarm = make_swarm(tmp_path, batch_groups=64)
    node = swarm.node("alice")
    async with swarm.coordinating(), working(node):
        await until(lambda: accepted(node) >= 2, 600)
        before, groups = asked.total(), accepted(node)
        await until(lambda: accepted(node) >= groups + 20, 600)
        requests = asked.total() - before
        assert requests <= 2.2 * (accepted(node) - groups), asked
        confirmed = "SELECT count(*) FROM verdicts WHERE confirmed = 1"
        database = swarm.coordinator.group_service.database
        assert database.value(confirmed) >= accepted(node) - 3
        # No other request follows that could carry the last confirmations: they get a request of their own.
        node.daemon.run_state.finish("enough")
        await until(lambda: database.value("SELECT count(*) FROM leases WHERE state != 'decided'") == 0, 60)
        await until(lambda: database.value("SELECT count(*) FROM verdicts WHERE confirmed = 0") == 0, 60)
