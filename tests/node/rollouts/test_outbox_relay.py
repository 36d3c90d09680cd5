"""The delivery of the outbox: restarts, later Roots, verdicts."""

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio

from p2p.identity import generate_key
from protocol.requests import Refusal
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import Keys, until
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working


@on_fake_clock
async def test_a_restarted_node_goes_on_where_it_was_and_resubmits_the_same_bytes(
    small_run: SmallRun, tmp_path: Path
) -> None:
    coordinator = small_run.coordinator
    key = generate_key()
    async with small_run.serving():
        await coordinator.publish(1)
        node = small_run.node(key=key)
        coordinator.refusals["submit"] = Refusal(code="paused", sentence="not now", retry_after=100)
        async with working(node):
            await until(lambda: node.daemon.rollouts.done >= 2)
        assert not coordinator.submitted
        with closing(sqlite3.connect(next((tmp_path / "node").rglob("outbox.sqlite")))) as stored:
            submissions = dict(stored.execute("SELECT lease, body FROM submissions").fetchall())
        assert len(submissions) >= 2
        del coordinator.refusals["submit"]
        again = small_run.node(key=key)
        async with working(again):
            await until(lambda: set(submissions) <= set(coordinator.submitted))
            assert {lease: coordinator.submitted[lease] for lease in submissions} == submissions
            assert again.daemon.engine.current.version == 1
            assert "step_by" not in again.engine.log
            await until(lambda: accepted(again) >= 2)


@on_fake_clock
async def test_a_receipt_from_before_a_change_of_the_ledger_key_is_final(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    key = generate_key()
    async with small_run.serving():
        coordinator.refusals["verdicts"] = Refusal(code="paused", sentence="not now", retry_after=100)
        async with working(small_run.node(key=key)):
            await until(lambda: len(coordinator.submitted) >= 2)
        for lease, body in coordinator.submitted.items():
            coordinator.decided[lease] = coordinator.judge(coordinator.leases[lease], body)
        old = coordinator.keys
        coordinator.keys = Keys(root=old.root, policy=old.policy, channel=old.channel)
        coordinator.roots.append(coordinator.sealed_root(1, coordinator.keys, old.root))
        del coordinator.refusals["verdicts"]
        before = len(coordinator.submitted)
        again = small_run.node(key=key)
        async with working(again):
            await anyio.sleep(60)
            assert again.coordinator_client.lies == [], "the run's own receipts are taken for lies"
            assert accepted(again) >= before
