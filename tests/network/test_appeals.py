"""An honest node's group is refused by a fault of the coordinator's scorer: it asks why, appeals, and is paid."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from echo2.engines.engine import Job, SampleScore
from echo2.node.errors import BadConfig, RefusedByRun
from echo2.runtime.errors import LocalFault
from tests.support.clock import run_fake
from tests.support.fake_coordinator import Node, until
from tests.support.swarm import BigramScorer, Swarm, accepted, make_swarm, working


class FaultyScorer(BigramScorer):
    """A scorer whose process may have bad memory: it is wrong about one group."""

    def __init__(self) -> None:
        super().__init__()
        self.faulty = False

    async def score(self, job: Job, samples: Any) -> list[SampleScore]:
        scores = await super().score(job, samples)
        if not self.faulty:
            return scores
        self.faulty = False
        return [SampleScore(logprobs=one.logprobs, margins=[0.01] * len(one.margins), gaps=one.gaps) for one in scores]


def refused(node: Node) -> list[bytes]:
    return [row.lease for row in node.daemon.outbox.rows() if row.state == "refused"]


async def life(swarm: Swarm, scorer: FaultyScorer) -> dict[str, Any]:
    async with swarm.coordinating() as coordinator:
        node, service = swarm.node("alice"), coordinator.group_service
        async with working(node):
            await until(lambda: accepted(node) >= 3, 600)
            scorer.faulty = True
            await until(lambda: refused(node), 600)
            (lease,) = refused(node)
            why = await node.daemon.commands.verdict({"lease": lease.hex()})
            assert (why["code"], why["checks"], why["stored"], why["reversed"]) == (
                "seeded-choice", "none", "group", "no",
            )  # fmt: skip
            assert "0.0005 nats" in why["threshold"]
            renewed = scorer.renewed
            asked = await node.daemon.commands.verdict({"lease": lease.hex(), "ask": True})
            assert asked["checks"] in ("waiting", "answered")
            await until(lambda: service.reviews.of(lease)[0].state == "answered", 600)
            told = await node.daemon.commands.verdict({"lease": lease.hex()})
            assert (told["reversed"], told["answers"][0]["code"]) == ("paid after all", "ok")
            assert scorer.renewed == renewed + 1
            with pytest.raises(RefusedByRun, match="There is no such lease"):
                await node.daemon.commands.verdict({"lease": "00" * 16})
            with pytest.raises(BadConfig, match="32 hexadecimal digits"):
                await node.daemon.commands.verdict({"lease": "my lease"})
            good = next(row.lease for row in node.daemon.outbox.rows() if row.state == "accepted")
            with pytest.raises(RefusedByRun, match="cannot be appealed: the group was accepted"):
                await node.daemon.commands.verdict({"lease": good.hex(), "ask": True})
            await coordinator.on_verdict("rerun", good.hex(), "")
            await until(lambda: [one.state for one in service.reviews.of(good)] == ["answered"], 600)
            before = service.ledger.balances()
            said = await coordinator.on_verdict("reverse", good.hex(), "copied by hand")
            assert "milli-RE are taken back" in said
            after = service.ledger.balances()
            account = next(name for name in before if name.startswith("node:"))
            assert after[account] < before[account]
            assert after["escrow:run"] > before["escrow:run"]
            with pytest.raises(LocalFault, match="reversed before"):
                await coordinator.on_verdict("reverse", good.hex(), "once more")
            service.ledger.verify()
            return told


def test_an_honest_node_learns_why_appeals_and_is_paid(tmp_path: Path) -> None:
    scorer = FaultyScorer()
    swarm = dataclasses.replace(make_swarm(tmp_path), scorer=scorer)
    told = run_fake(lambda: life(swarm, scorer))
    assert told["checks"] == "answered"
