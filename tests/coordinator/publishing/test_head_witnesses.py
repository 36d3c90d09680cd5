"""Payments wait for parties that tell, after the start, of a head that run.sqlite has."""

from echo2.coordinator.nodes.trusted_parties import trusted_nodes, works
from echo2.coordinator.publishing.head_witnesses import HeadWitnesses
from echo2.p2p.identity import peer_id
from echo2.p2p.limits.origin import Origin
from tests.support.group_world import ALICE, BOB, World, group

CAROL, DAVE, EVE = (bytes([number]) * 32 for number in (7, 8, 9))


def accept(world: World, node: bytes, party: str) -> None:
    """Accept a group of a node that it generated at a party's address."""
    lease = world.lease(node, origin=Origin(party, party))
    world.submit(group(lease), node)
    world.decide_all()
    world.now += 1_000


def tell(witnesses: HeadWitnesses, node: bytes, party: str, number: int) -> None:
    witnesses.on_own_head(Origin(peer_id(node), party), number)


def started(world: World) -> HeadWitnesses:
    """Return those of a process that has just started."""
    database = world.group_service.database
    return HeadWitnesses(lambda: trusted_nodes(database), lambda origin: works(database, origin, ()))


def witnesses_of(world: World, **parties: bytes) -> HeadWitnesses:
    for number, node in enumerate(parties.values()):
        accept(world, node, f"192.0.{number}.0/24")
    return started(world)


def test_three_parties_with_accepted_work_have_to_tell_whoever_else_does(world: World) -> None:
    witnesses = witnesses_of(world, a=ALICE, b=BOB, c=CAROL, d=DAVE)
    assert witnesses.lack().startswith("0 of 3 parties with accepted work")
    for number in range(9):
        tell(witnesses, EVE, f"198.51.{number}.0/24", 7)
    assert witnesses.newest == 7, "it is published, whoever tells"
    assert "0 of 3" in witnesses.lack(), "keys without work are free"
    for node in (ALICE, ALICE, BOB):
        tell(witnesses, node, "192.0.0.0/24", 6)
    assert "1 of 3" in witnesses.lack(), "nodes of one party are one"
    tell(witnesses, BOB, "192.0.1.0/24", 6)
    tell(witnesses, CAROL, "192.0.2.0/24", 8)
    assert (witnesses.lack(), witnesses.newest) == ("", 8)


def test_where_fewer_parties_work_all_of_them_do(world: World) -> None:
    witnesses = witnesses_of(world, a=ALICE, b=BOB)
    tell(witnesses, ALICE, "192.0.0.0/24", 1)
    assert "1 of 2 parties" in witnesses.lack()
    tell(witnesses, BOB, "192.0.1.0/24", 1)
    assert witnesses.lack() == ""


def test_one_node_that_moved_from_network_to_network_is_one_party(world: World) -> None:
    witnesses = witnesses_of(world, a=ALICE, b=ALICE, c=ALICE)
    assert "0 of 1 party" in witnesses.lack()
    tell(witnesses, ALICE, "203.0.113.0/24", 1)
    assert witnesses.lack() == ""


def test_what_was_told_to_an_earlier_process_counts_for_nothing(world: World) -> None:
    witnesses = witnesses_of(world, a=ALICE)
    tell(witnesses, ALICE, "192.0.0.0/24", 5)
    again = started(world)
    assert (again.newest, bool(again.lack())) == (0, True)
