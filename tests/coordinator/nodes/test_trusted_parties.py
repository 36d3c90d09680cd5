"""The parties for whose connections the network reserves places."""

import pytest

from echo2.coordinator.nodes.trusted_parties import LEAST_HIDDEN, describe_hidden, parties_of, trusted_nodes, works
from echo2.ledger import standing
from echo2.p2p.identity import peer_id
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.party import PRIVATE, Parties
from tests.support.group_world import ALICE, BOB, World, group


def submit_from(world: World, node: bytes, party: str, *, good: bool) -> None:
    lease = world.lease(node, origin=Origin(party, party))
    (world.submit if good else world.refused)(group(lease) if good else group(lease, rollouts=[]), node)
    world.decide_all()
    world.now += 1_000


def test_each_party_with_accepted_work_is_listed_once(world: World) -> None:
    for party in ("10.0.0.0/24", "10.0.1.0/24", "10.0.0.0/24"):
        submit_from(world, ALICE, party, good=True)
    submit_from(world, BOB, "10.0.2.0/24", good=False)
    database = world.group_service.database
    assert parties_of(trusted_nodes(database)) == ["10.0.0.0/24", "10.0.1.0/24"]
    assert {one.node for one in trusted_nodes(database)} == {ALICE}
    assert parties_of(trusted_nodes(database, looked_at=1)) == ["10.0.0.0/24"]


def test_once_a_node_is_proven_the_others_have_no_share(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "PROVEN_AUDITED_GROUPS", 2)
    submit_from(world, BOB, "10.0.2.0/24", good=True)
    submit_from(world, ALICE, "10.0.0.0/24", good=True)
    assert len(trusted_nodes(world.group_service.database)) == 2
    submit_from(world, ALICE, "10.0.0.0/24", good=True)
    assert trusted_nodes(world.group_service.database) == [(ALICE, "10.0.0.0/24")]


def test_a_worker_is_known_by_its_key_and_over_https_by_its_party(world: World) -> None:
    submit_from(world, ALICE, "10.0.0.0/24", good=True)
    submit_from(world, BOB, "10.0.2.0/24", good=False)
    database = world.group_service.database
    parties = parties_of(trusted_nodes(database))
    assert works(database, Origin(peer_id(ALICE), "10.0.9.0/24"), parties)
    assert works(database, Origin("https/10.0.0.7", "10.0.0.0/24"), parties)
    assert not works(database, Origin("https/10.0.2.7", "10.0.2.0/24"), parties)
    assert not works(database, Origin(peer_id(BOB), "10.0.2.0/24"), parties)


def test_at_private_addresses_and_behind_relays_a_key_is_known_and_not_what_it_shares_with_strangers(
    world: World,
) -> None:
    submit_from(world, ALICE, PRIVATE, good=True)
    submit_from(world, BOB, f"relay/{peer_id(BOB)}", good=True)
    assert parties_of(trusted_nodes(world.group_service.database)) == sorted([peer_id(ALICE), peer_id(BOB)])


def test_where_everybody_comes_from_private_addresses_of_a_public_run_a_sentence_says_so() -> None:
    parties = Parties(private_is_one=True)
    parties.tell_addresses(["/dns4/run.example.org/tcp/4310"])
    for _ in range(LEAST_HIDDEN):
        assert describe_hidden(parties) == ""
        parties.accept("172.17.0.1")
    assert f"all {LEAST_HIDDEN} connections came from private addresses" in describe_hidden(parties)
    assert describe_hidden(Parties()) == ""
    parties.accept("8.8.8.8")
    assert describe_hidden(parties) == ""
