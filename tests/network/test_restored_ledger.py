"""The drill: a copy, more groups, a lost run.sqlite, the copy in its place. No honest node stops."""

from pathlib import Path

import pytest

from echo2.coordinator.accounts.fork_evidence import evidence
from echo2.coordinator.ledger_files import log_commands
from echo2.coordinator.ledger_files.ledger_backup import backup, restore
from echo2.coordinator.publishing import foreign_heads
from echo2.node.rollouts import receipts
from tests.support.clock import on_fake_clock, run_fake
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


@pytest.mark.slow
@on_fake_clock
async def test_after_a_restore_without_a_later_head_the_run_goes_on_and_every_lost_receipt_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_heads, "RESTORED_QUIET_MS", 120_000)
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
                await until(lambda: node.daemon.ledger_store.lost_leases() == leases, 900)  # noqa: B023
                assert node.daemon.ledger_store.fork() is None
                shown = (await node.daemon.commands.why({}))["lost_receipts"]
                assert shown == [lease.hex() for lease in leases][:16]
            assert evidence(coordinator.group_service.database) == ""
            done = alice.daemon.rollouts.done
            await until(lambda: alice.daemon.rollouts.done > done, 60)


def newest_log(node: Node) -> int:
    return node.daemon.ledger_store.logs(node.daemon.context.run).serial


async def drilled(tmp_path: Path, lost_groups: int, patience: float) -> None:
    """Copy, let nodes work on over further heads, lose run.sqlite, restore the copy, and begin a new log."""
    swarm = make_swarm(tmp_path, steps=40_000, ledger={"head_seconds": 60})
    alice, bob = swarm.node("alice"), swarm.node("bob")
    async with working(alice, bob):
        async with swarm.coordinating():
            await until(lambda: min(heads_of(alice), heads_of(bob)) >= 2, 900)
            copied = backup(swarm.run.folder, tmp_path / "copy.sqlite", now())
            done = accepted(alice) + accepted(bob)
            await until(lambda: accepted(alice) + accepted(bob) >= done + lost_groups, patience)
            await until(lambda: min(heads_of(alice), heads_of(bob)) > copied.head, 900)
        await lost(swarm, tmp_path / "copy.sqlite", alice, bob)
        claims = [(node, named(node, copied.entries)) for node in (alice, bob)]
        assert all(leases for _, leases in claims)
        reached = max(heads_of(alice), heads_of(bob))
        async with swarm.coordinating() as coordinator:
            await until(lambda: evidence(coordinator.group_service.database), 300)
            paused = coordinator.learning.training.watch.pause
            assert paused is not None
            assert "an older copy; restore a later one, or begin a new log" in paused.why
            assert coordinator.ledger_heads.sign(now()) is None
            newest = coordinator.ledger_heads.newest()
            assert newest.head.number == copied.head
            request = tmp_path / "elsewhere" / "request"
            request.parent.mkdir()
            log_commands.request(swarm.run.folder.path, request)
            log_commands.sign(request, swarm.run.folder.keys, None, lambda lines: "claims" in lines[-1])
            log_commands.install(swarm.run.folder.path, request.with_name("request.signed"))
            await until(lambda: min(newest_log(alice), newest_log(bob)) == 1, 300)
            for node, leases in claims:
                assert node.daemon.outbox.lost_leases() == leases
                assert node.daemon.ledger_store.fork() is None
                shown = (await node.daemon.commands.why({}))["lost_receipts"]
                assert shown == [lease.hex() for lease in leases][:16]
            assert coordinator.learning.training.watch.pause is None
            before, more = accepted(alice), accepted(bob)
            await until(lambda: accepted(alice) > before and accepted(bob) > more, 900)
            await until(lambda: min(heads_of(alice), heads_of(bob)) > copied.head + 1, 900)
            assert evidence(coordinator.group_service.database) == ""
            await until(lambda: not alice.daemon.outbox.unproved_receipts(copied.entries, 1), 300)
        assert not any(node.daemon.run_state.finishing for node in (alice, bob))
        assert reached > copied.head
    for node, leases in claims:
        checked = receipts.verify_receipts(swarm.on_disk(node), None)
        assert checked.faults == []
        assert checked.claims == len(leases)
        assert checked.evident > 0
        assert checked.proved > 0


@pytest.mark.slow
def test_a_copy_older_than_a_head_that_a_node_holds_goes_on_in_a_new_log_that_the_root_keys_sign(
    tmp_path: Path,
) -> None:
    run_fake(lambda: drilled(tmp_path, 10, 900))


@pytest.mark.slow
def test_after_a_thousand_groups_that_were_lost_no_node_stops_and_each_lists_exactly_its_own(tmp_path: Path) -> None:
    run_fake(lambda: drilled(tmp_path, 1_000, 100_000))
