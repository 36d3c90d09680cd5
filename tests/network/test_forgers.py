"""Forged groups, from submission to refusal: their cost to the scorer, and the groups that they delay."""

import secrets
from pathlib import Path
from typing import Any

import anyio
import pytest

from echo2.coordinator.daemon import Coordinator
from echo2.engines.engine import Job, Loaded, SampleScore
from echo2.p2p.discovery.peer_records import RecordIssuer
from echo2.p2p.envelope import decode_unverified, seal
from echo2.p2p.handlers import MethodHandler
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import TaskReference
from echo2.protocol.leases import Lease, LeaseRequest, Receipt, Rollout, Segment, Submission
from echo2.protocol.requests import Hello, Request, Response
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.swarm import BigramScorer, Swarm, make_swarm, wall

SAMPLES = 16
LENGTH = 40
CROWD = 12


class SlowScorer(BigramScorer):
    """A scorer that waits for its weights. `asked`: per call, the task's index and the number of samples. `open`: set
    once the weights are loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open = anyio.Event()
        self.asked: list[tuple[int, int]] = []

    async def load(self, model: Path, weights: Path) -> Loaded:
        await self.open.wait()
        return await super().load(model, weights)

    async def score(self, job: Job, samples: Any) -> list[SampleScore]:
        self.asked.append((job.index, len(samples)))
        return await super().score(job, samples)


class Forger:
    """A key that submits forged groups: the same token repeated. `peer`: the peer that it sends from."""

    def __init__(self, swarm: Swarm, handlers: dict[str, MethodHandler], peer: str) -> None:
        self.key, self.run, self.handlers, self.peer = generate_key(), swarm.run, handlers, peer

    async def ask(self, method: str, body: bytes) -> Response:
        recipient, expires = public_bytes(self.run.keys.channel), int(wall() * 1000) + 60_000
        request = Request(recipient=recipient, id=secrets.token_bytes(16), method=method, expires=expires, body=body)
        sealed = seal("request", self.run.id, encode(request), self.key)
        return decode(await self.handlers[method](self.peer, sealed), Response)

    async def hello(self) -> None:
        task = self.run.task
        hello = Hello(
            protocols=(1, 1),
            software="a forger",
            name="",
            engine="bigram/float32/cpu",
            device="a CPU",
            tasks=[TaskReference(name=task.name, version=task.version)],
            record=RecordIssuer(self.key, self.run.id).issue([], int(wall() * 1000)),
        )
        assert (await self.ask("hello", encode(hello))).refusal is None

    async def lease(self, coordinator: Coordinator) -> Lease | None:
        latest = coordinator.publisher.latest
        assert latest is not None
        nonce = secrets.token_bytes(16)
        ask = LeaseRequest(
            nonce=nonce, era=latest.era, version=latest.version, root=latest.root, engine="bigram/float32/cpu"
        )
        answer = await self.ask("lease", encode(ask))
        return None if answer.body is None else decode(decode_unverified(answer.body).payload, Lease)

    async def forge(self, coordinator: Coordinator) -> Lease | None:
        """Request a lease and submit a forged group; return the lease, None if none was given."""
        lease = await self.lease(coordinator)
        if lease is None:
            return None
        rollout = Rollout(
            tokens=[3] * LENGTH,
            turns=[LENGTH],
            logprobs=bytes(4 * LENGTH),
            segments=[Segment(version=lease.version, root=lease.root, first=0)],
        )
        group = Submission(
            lease=lease.id, era=lease.era, version=lease.version, root=lease.root, rollouts=[rollout] * SAMPLES
        )
        assert (await self.ask("submit", encode(group))).refusal is None
        await anyio.sleep(0.01)  # no two groups arrive at the same time
        return lease


def receipts(coordinator: Coordinator) -> list[Receipt]:
    rows = coordinator.group_service.database.all("SELECT receipt FROM verdicts ORDER BY entry")
    return [decode(decode_unverified(sealed).payload, Receipt) for (sealed,) in rows]


def slow_swarm(folder: Path) -> tuple[Swarm, SlowScorer]:
    swarm = make_swarm(folder, group_size=SAMPLES, limit=LENGTH, batch_groups=100, evaluate_every=1000)
    scorer = swarm.scorer = SlowScorer()
    return swarm, scorer


@on_fake_clock
async def test_a_made_up_group_costs_the_scorer_one_sample_and_the_key_its_leases(
    tmp_path: Path, handlers: dict[str, MethodHandler]
) -> None:
    """One key submits forged groups without end."""
    swarm, scorer = slow_swarm(tmp_path)
    scorer.open.set()
    async with swarm.coordinating() as coordinator:
        forger = Forger(swarm, handlers, "forger")
        await forger.hello()
        forged = 0
        for _ in range(20):
            if await forger.forge(coordinator) is None:
                break
            forged += 1
            await until(lambda: len(receipts(coordinator)) == forged)  # noqa: B023
        samples = sum(samples for _, samples in scorer.asked)
        codes = [receipt.code for receipt in receipts(coordinator)]
        assert samples <= forged, f"{samples} samples scored for {forged} made-up groups of {SAMPLES}"
        assert forged <= 3, f"{forged} made-up groups were taken from one key"
        assert set(codes) == {"not-generated"}


@pytest.mark.slow
@on_fake_clock
async def test_many_groups_of_one_party_delay_another_partys_group_by_one(
    tmp_path: Path, handlers: dict[str, MethodHandler]
) -> None:
    """Groups wait until the scorer has its weights; then the scorer's order applies."""
    swarm, scorer = slow_swarm(tmp_path)
    async with swarm.coordinating() as coordinator:
        crowd = [Forger(swarm, handlers, f"crowd {number}") for number in range(CROWD)]
        other = Forger(swarm, handlers, "other")
        for number in range(CROWD):
            one_party(swarm, f"crowd {number}", "crowd")
        for forger in (*crowd, other):
            await forger.hello()
        before = [await forger.forge(coordinator) for forger in crowd]
        assert len([lease for lease in before if lease is not None]) >= CROWD // 2
        lease = await other.forge(coordinator)
        assert lease is not None
        scorer.open.set()
        await until(lambda: len(receipts(coordinator)) == CROWD + 1)
        place = [index for index, _ in scorer.asked].index(lease.index)
        assert place <= 1, f"{place} groups of another party were looked at first"


def one_party(swarm: Swarm, peer: str, party: str) -> None:
    """Have the network assign a peer to a party."""
    swarm.network.origins[peer] = Origin(peer, party)
