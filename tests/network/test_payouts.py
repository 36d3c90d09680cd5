"""In a whole network: nodes make a head count as published, payments wait for them after each start, also after a
rollback of the whole machine, and the coordinator writes entries about payments."""

import shutil
from pathlib import Path

import anyio
import msgspec
import pytest

from echo2.coordinator.accounts.fork_evidence import evidence
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.payouts import payment_witnesses, payout_approvals, payout_book, payout_commands
from echo2.coordinator.payouts.payment_witnesses import Witnessed
from echo2.ledger.payout_facts import (
    PLANNED,
    SENT,
    UNITS_PER_HUNDREDTH,
    PayoutPlanned,
    PayoutSent,
    paid_account,
    payment_id,
)
from echo2.runtime.errors import LocalFault
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.payout_world import add_payout_role, fund, set_payout, write_payees
from tests.support.swarm import Swarm, accepted, finished, make_swarm, wall, working


def now() -> int:
    return int(wall() * 1000)


def newest(coordinator: Coordinator) -> int:
    head = coordinator.ledger_heads.newest()
    return 0 if head is None else head.head.number


@pytest.mark.slow
@on_fake_clock
async def test_a_node_that_tells_its_head_makes_it_count_as_published_and_payments_become_entries(
    tmp_path: Path,
) -> None:
    swarm = make_swarm(tmp_path, steps=4000, ledger={"head_seconds": 60})
    alice = swarm.node("alice")
    async with working(alice), swarm.coordinating() as coordinator:
        await until(lambda: accepted(alice) >= 2, 120)
        peer = alice.peer_id
        fund(coordinator.group_service.ledger, {peer: 100})
        await until(lambda: coordinator.payments_wait() == ("", newest(coordinator)), 900)
        plan = PayoutPlanned(
            plan=1, rail="csv", currency="USD", payments=1, total=100 * UNITS_PER_HUNDREDTH, file=bytes(32), head=1,
            head_hash=bytes(32),
        )  # fmt: skip
        send = PayoutSent(
            payment=payment_id(swarm.run.id, 1, peer), plan=1, node=peer, rail="csv", provider=bytes(16),
            account=bytes(32), amount=100 * UNITS_PER_HUNDREDTH,
        )  # fmt: skip
        with pytest.raises(LocalFault, match="newest plan"):
            await coordinator.pay(SENT, msgspec.msgpack.encode(send).hex())
        await coordinator.pay(PLANNED, msgspec.msgpack.encode(plan).hex())
        await coordinator.pay(SENT, msgspec.msgpack.encode(send).hex())
        with Database.read(swarm.run.folder.database) as database:
            assert Ledger(database).balance(paid_account("csv")) == 100 * UNITS_PER_HUNDREDTH


@on_fake_clock
async def test_a_node_that_comes_to_a_finished_run_tells_the_newest_head_before_it_ends(tmp_path: Path) -> None:
    """The last pay vests once the nodes have gone: one start of one node is enough for its payment."""
    swarm = make_swarm(tmp_path, steps=2, ledger={"head_seconds": 60})
    alice = swarm.node("alice")
    async with swarm.coordinating() as coordinator:
        await alice.daemon.run()
        assert finished(coordinator)
        left_with = coordinator.payments_wait()[1]
        fund(coordinator.group_service.ledger, {alice.peer_id: 100})
        await until(lambda: newest(coordinator) > left_with, 900)
        await swarm.node("alice").daemon.run()
        assert coordinator.payments_wait() == ("", newest(coordinator))


class Machine:
    """The machine of a run's coordinator, which can be put back as a whole: the run folder, and its learner."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm, self._copy = swarm, swarm.folder / "snapshot"
        self._kept = list(swarm.learner.kept)
        for name in ("run", "learner"):
            shutil.copytree(swarm.folder / name, self._copy / name)

    def put_back(self) -> None:
        self._swarm.learner.kept = list(self._kept)
        for name in ("run", "learner"):
            shutil.rmtree(self._swarm.folder / name)
            shutil.copytree(self._copy / name, self._swarm.folder / name)


async def pay_out(swarm: Swarm, *, to: str) -> None:
    """Plan, approve and send all that is payable to a node, while no coordinator runs and all nodes were heard. Raises
    `LocalFault`."""
    home = swarm.run.folder.path
    write_payees(home, {to: "alice@example.org"})
    await payout_commands.plan(home, now, do=True)
    payout_approvals.approve(home / "payouts" / "1", swarm.folder / "safe", None, do=True)
    await payout_commands.send(home, now, do=True)


@pytest.mark.slow
@on_fake_clock
async def test_after_a_rollback_of_the_whole_machine_nothing_is_paid_a_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot knows of no payment, and its tables say of the head on which the plan rests that nodes hold it."""
    waits = [Witnessed("", 0)]

    async def ask(home: Path) -> Witnessed:
        return waits[0]

    monkeypatch.setattr(payment_witnesses, "ask", ask)
    swarm = make_swarm(tmp_path, steps=40_000, ledger={"head_seconds": 60})
    home = swarm.run.folder.path
    add_payout_role(home, tmp_path / "safe", now=now())
    set_payout(home, rail="csv", minimum=100)
    nodes = [swarm.node(name) for name in ("alice", "bob", "carol")]
    async with working(*nodes):
        async with swarm.coordinating() as coordinator:
            await until(lambda: min(map(accepted, nodes)) >= 1, 900)
            fund(coordinator.group_service.ledger, {nodes[0].peer_id: 5000})
            await until(lambda: coordinator.payments_wait() == ("", newest(coordinator)), 900)
        snapshot = Machine(swarm)
        async with swarm.coordinating() as coordinator:
            assert "hears its nodes" in coordinator.payments_wait()[0]
            await until(lambda: coordinator.payments_wait()[0] == "", 900)
            await until(lambda: coordinator.payments_wait()[1] == newest(coordinator), 900)
        waits[0] = Witnessed("", 1 << 53)  # also of the head that it signed as it ended
        await pay_out(swarm, to=nodes[0].peer_id)
        written = (home / "payouts" / "csv" / "payments-1.csv").read_bytes()
        assert b"50.00" in written
        async with swarm.coordinating() as coordinator:
            before = newest(coordinator)
            await until(lambda: coordinator.payments_wait()[1] > before, 900)
        snapshot.put_back()
        assert not (home / "payouts" / "csv").exists()
        refused = set[str]()
        async with swarm.coordinating() as coordinator:
            for _ in range(120):
                waits[0] = Witnessed(*coordinator.payments_wait())
                for unwitnessed in (False, bool(evidence(coordinator.group_service.database))):
                    with pytest.raises(LocalFault, match="nothing is planned") as caught:
                        await payout_commands.plan(home, now, do=True, unwitnessed=unwitnessed)
                    refused.add(str(caught.value).split(": ")[1][:30])
                await anyio.sleep(30)
            assert "it is an older copy" in coordinator.payments_wait()[0]
        with Database.read(swarm.run.folder.database) as database:
            assert payout_book.read(Ledger(database)).payments == {}
        assert not (home / "payouts" / "csv").exists()
        assert len(refused) >= 2, "at first nodes are heard, and then one shows a later head"
