"""The drill: a copy, more groups, a lost run.sqlite, the copy in its place. No honest node stops."""

from pathlib import Path

import pytest

from coordinator.accounts import foreign_heads
from coordinator.accounts.foreign_heads import evidence
from coordinator.accounts.ledger_backup import backup, restore
from tests.support.clock import run_fake
from tests.support.fake_coordinator import Node, until
from tests.support.swarm import Swarm, accepted, make_swarm, wall, working


def now() -> int:
    return int(wall() * 1000)


def heads_of(node: Node) -> int:
    newest = node.daemon.ledger_store.newest()
    return 0 if newest is None else newest.head.number


def named(node: Node, after: int) -> list[bytes]:
    """Return the leases of a node's receipts that name an entry after `after`."""
    return sorted(row.lease for row in node.daemon.outbox.rows() if row.entry > after)


async def lost(swarm: Swarm, copy: Path, *nodes: Node) -> None:
    """Restore the copy where run.sqlite was lost with its disk."""
    for path in swarm.run.folder.path.glob("run.sqlite*"):
        path.unlink()
    restore(swarm.run.folder, copy, now())
    assert not any(node.daemon.run_state.finishing for node in nodes)


def test_after_a_restore_without_a_later_head_the_run_goes_on_and_every_lost_receipt_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_heads, "QUIET", 120_000)

    async def main() -> None:
        swarm = make_swarm(tmp_path, steps=4000, ledger={"head_seconds": 60})
        alice, bob = swarm.node("alice"), swarm.node("bob")
        async with working(alice, bob):
            async with swarm.coordinating() as coordinator:
                await until(lambda: min(heads_of(alice), heads_of(bob)) >= 2, 900)
                coordinator.ledger_heads.holds = lambda now: True
                copied = backup(swarm.run.folder, tmp_path / "copy.sqlite", now())
                done = accepted(alice)
                await until(lambda: accepted(alice) >= done + 10, 120)
            claims = [(node, named(node, copied.entries)) for node in (alice, bob)]
            assert all(leases for _, leases in claims)
            await lost(swarm, tmp_path / "copy.sqlite", alice, bob)
            async with swarm.coordinating() as coordinator:
                await until(lambda: min(heads_of(alice), heads_of(bob)) > copied.head, 900)
                for node, leases in claims:
                    await until(lambda: node.daemon.ledger_store.lost() == leases, 900)  # noqa: B023
                    assert node.daemon.ledger_store.fork() is None
                    shown = (await node.daemon.commands.why({}))["lost_receipts"]
                    assert shown == [lease.hex() for lease in leases][:16]
                assert evidence(coordinator.group_service.database) == ""
                done = alice.daemon.rollouts.done
                await until(lambda: alice.daemon.rollouts.done > done, 60)

    run_fake(main)


def test_a_copy_older_than_a_head_that_a_node_holds_signs_none_and_pauses_the_run(tmp_path: Path) -> None:
    async def main() -> None:
        swarm = make_swarm(tmp_path, steps=4000, ledger={"head_seconds": 60})
        alice, bob = swarm.node("alice"), swarm.node("bob")
        async with working(alice, bob):
            async with swarm.coordinating():
                await until(lambda: min(heads_of(alice), heads_of(bob)) >= 1, 900)
                copied = backup(swarm.run.folder, tmp_path / "copy.sqlite", now())
                await until(lambda: min(heads_of(alice), heads_of(bob)) > copied.head, 900)
            reached = heads_of(alice)
            await lost(swarm, tmp_path / "copy.sqlite", alice, bob)
            async with swarm.coordinating() as coordinator:
                await until(lambda: evidence(coordinator.group_service.database), 300)
                paused = coordinator.learning.training.watch.pause
                assert paused is not None
                assert "an older copy; restore a later one" in paused.why
                assert coordinator.ledger_heads.sign(now()) is None
                newest = coordinator.ledger_heads.newest()
                assert newest is not None
                assert newest.head.number == copied.head
            assert (heads_of(alice), heads_of(bob)) >= (reached, reached)
            assert alice.daemon.ledger_store.fork() is None

    run_fake(main)
