"""This process's memory of nodes: bounded, and in favour of nodes with accepted work."""

import pytest

from echo2.coordinator.nodes.sightings import HTTPS_CONNECTED_MS, Sightings
from echo2.p2p.identity import peer_id
from tests.support.group_world import ALICE, BOB, T0, name


@pytest.mark.parametrize("worked", [True, False])
def test_beyond_the_bound_the_node_seen_longest_ago_is_dropped(worked: bool) -> None:
    sightings = Sightings(most_worked=3, most_others=3)
    nodes = [name("node", number, 32) for number in range(4)]
    for node in nodes:
        sightings.meet(node, T0, worked=worked)
    assert len(sightings) == 3
    assert [sightings.find(node) is not None for node in nodes] == [False, True, True, True]


def test_fresh_keys_replace_no_node_with_accepted_work() -> None:
    sightings = Sightings(most_worked=1, most_others=2)
    sightings.meet(ALICE, T0, worked=True)
    for number in range(100):
        sightings.meet(name("fresh", number, 32), T0, worked=False)
    assert sightings.find(ALICE) is not None
    assert len(sightings) == 3


def test_a_node_keeps_its_sighting_when_its_first_work_is_accepted() -> None:
    sightings = Sightings(most_worked=1, most_others=1)
    before = sightings.meet(ALICE, T0, worked=False)
    before.version = 7
    assert sightings.meet(ALICE, T0 + 1, worked=True) is before
    assert len(sightings) == 1


def test_a_request_of_an_unknown_key_leaves_nothing() -> None:
    sightings = Sightings()
    sightings.seen_by(ALICE, "https", T0)
    assert len(sightings) == 0
    assert sightings.over_https(T0) == set()


def test_a_node_counts_as_connected_over_https_for_a_while_or_until_it_takes_another_route() -> None:
    sightings = Sightings()
    for node in (ALICE, BOB):
        sightings.meet(node, T0, worked=False)
        sightings.seen_by(node, "https", T0)
    assert sightings.over_https(T0) == {peer_id(ALICE), peer_id(BOB)}
    sightings.seen_by(BOB, "direct", T0)
    assert sightings.over_https(T0 + HTTPS_CONNECTED_MS - 1) == {peer_id(ALICE)}
    assert sightings.over_https(T0 + HTTPS_CONNECTED_MS) == set()
    assert sightings.routes() == {ALICE: "https", BOB: "direct"}


def test_each_contact_is_given_out_for_saving_once() -> None:
    sightings = Sightings()
    sightings.meet(ALICE, T0, worked=False).seen = T0 + 5
    sightings.mark_unsaved(ALICE)
    assert sightings.to_save() == [(ALICE, T0 + 5)]
    assert sightings.to_save() == []
