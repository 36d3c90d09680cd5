"""In a whole network: nodes make a head count as published, and the coordinator writes entries about payments."""

from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.publishing.foreign_heads import newest_held
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
from tests.support.clock import run_fake
from tests.support.fake_coordinator import until
from tests.support.payout_world import fund
from tests.support.swarm import accepted, finished, make_swarm, working


@pytest.mark.slow
def test_a_node_that_tells_its_head_makes_it_count_as_published_and_payments_become_entries(tmp_path: Path) -> None:
    async def main() -> None:
        swarm = make_swarm(tmp_path, steps=4000, ledger={"head_seconds": 60})
        alice = swarm.node("alice")
        async with working(alice), swarm.coordinating() as coordinator:
            await until(lambda: accepted(alice) >= 2, 120)
            peer = alice.peer_id
            fund(coordinator.group_service.ledger, {peer: 100})
            with Database.read(swarm.run.folder.database) as database:
                await until(lambda: newest_held(database) >= 1, 900)
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

    run_fake(main)


def test_a_node_that_comes_to_a_finished_run_tells_the_newest_head_before_it_ends(tmp_path: Path) -> None:
    """The last pay vests once the nodes have gone: one start of one node is enough for its payment."""

    async def main() -> None:
        swarm = make_swarm(tmp_path, steps=2, ledger={"head_seconds": 60})
        alice = swarm.node("alice")
        async with swarm.coordinating() as coordinator:
            await alice.daemon.run()
            assert finished(coordinator)
            with Database.read(swarm.run.folder.database) as database:
                left_with = newest_held(database)
                fund(coordinator.group_service.ledger, {alice.peer_id: 100})
                await until(lambda: newest(database) > left_with, 900)
                await swarm.node("alice").daemon.run()
                assert newest_held(database) == newest(database)

    def newest(database: Database) -> int:
        return int(database.value("SELECT max(number) FROM ledger_heads") or 0)

    run_fake(main)
