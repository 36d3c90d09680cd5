"""The delivery of the outbox: restarts, later Roots, verdicts."""

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio

from p2p.identity import generate_key
from p2p.memory.transport import MemoryNetwork
from protocol.requests import Refusal
from tests.support.clock import run_fake
from tests.support.fake_coordinator import FakeCoordinator, Keys, make_node, until
from tests.support.swarm import working


def test_a_restarted_node_goes_on_where_it_was_and_resubmits_the_same_bytes(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        key = generate_key()
        async with coordinator.serving(network):
            await coordinator.publish(0)
            await coordinator.publish(1)
            node = make_node(network, tmp_path / "node", coordinator.invite(), key=key)
            coordinator.refusals["submit"] = Refusal(code="paused", sentence="not now", retry_after=100)
            async with working(node):
                await until(lambda: node.daemon.rollouts.done >= 2)
            assert not coordinator.submitted
            with closing(sqlite3.connect(next((tmp_path / "node").rglob("outbox.sqlite")))) as stored:
                submissions = dict(stored.execute("SELECT lease, body FROM submissions").fetchall())
            assert len(submissions) >= 2
            del coordinator.refusals["submit"]
            again = make_node(network, tmp_path / "node", coordinator.invite(), key=key)
            async with working(again):
                await until(lambda: set(submissions) <= set(coordinator.submitted))
                assert {lease: coordinator.submitted[lease] for lease in submissions} == submissions
                assert again.daemon.engine.current.version == 1
                assert "step_by" not in again.engine.log
                await until(lambda: again.daemon.outbox.counts().get("accepted", 0) >= 2)

    run_fake(main)


def test_a_receipt_from_before_a_change_of_the_ledger_key_is_final(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        key = generate_key()
        async with coordinator.serving(network):
            await coordinator.publish(0)
            coordinator.refusals["verdicts"] = Refusal(code="paused", sentence="not now", retry_after=100)
            async with working(make_node(network, tmp_path / "node", coordinator.invite(), key=key)):
                await until(lambda: len(coordinator.submitted) >= 2)
            for lease, body in coordinator.submitted.items():
                coordinator.decided[lease] = coordinator.judge(coordinator.leases[lease], body)
            old = coordinator.keys
            coordinator.keys = Keys(root=old.root, policy=old.policy, channel=old.channel)
            coordinator.roots.append(coordinator.sealed_root(1, coordinator.keys, old.root))
            del coordinator.refusals["verdicts"]
            before = len(coordinator.submitted)
            again = make_node(network, tmp_path / "node", coordinator.invite(), key=key)
            async with working(again):
                await anyio.sleep(60)
                assert again.coordinator_client.lies == [], "the run's own receipts are taken for lies"
                assert again.daemon.outbox.counts().get("accepted", 0) >= before

    run_fake(main)
