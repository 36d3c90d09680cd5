"""The parties for whose connections the network reserves places."""

from coordinator.accounts.trusted_parties import parties_with_accepted_work
from p2p.limits.origin import Origin
from protocol.leases import Lease
from tests.support.group_world import ALICE, BOB, World, group, opened


def submit_from(world: World, node: bytes, party: str, *, good: bool) -> None:
    answer = world.group_service.lease(node, world.ask(), world.now, Origin(party, party))
    assert isinstance(answer, bytes)
    lease: Lease = opened("lease", answer, Lease)
    (world.submit if good else world.refused)(group(lease) if good else group(lease, rollouts=[]), node)
    world.decide_all()
    world.now += 1_000


def test_each_party_with_accepted_work_is_listed_once(world: World) -> None:
    for party in ("10.0.0.0/24", "10.0.1.0/24", "10.0.0.0/24"):
        submit_from(world, ALICE, party, good=True)
    submit_from(world, BOB, "10.0.2.0/24", good=False)
    database = world.group_service.database
    assert parties_with_accepted_work(database) == ["10.0.0.0/24", "10.0.1.0/24"]
    assert parties_with_accepted_work(database, looked_at=1) == ["10.0.0.0/24"]
