"""Turns of patient nodes beside the law of leases: stories of nodes that ask one after the other."""

import math
from collections import Counter
from typing import NamedTuple

import pytest

from echo2.coordinator.rollouts.lease_turns import MOST, PATIENCE, SET_BACK, AskingNode, LeaseTurns

STEP = 60_000
RETRY = STEP // 4


def known(name: str, party: str = "") -> AskingNode:
    return AskingNode((party or name, name, name), new=False)


def new(number: int) -> AskingNode:
    """A new key with a subnet of its own."""
    return AskingNode((f"subnet {number}", f"line {number}", number), new=True)


class Place(NamedTuple):
    """A place of `turns` under the clock of a story."""

    turns: LeaseTurns
    room_for_new: bool = True

    def asks(self, node: AskingNode, now: int, lacking: float) -> bool:
        """Let a node ask; tell whether it gets a lease. A refused one is told to ask again after `RETRY`."""
        if self.turns.may_have(node, lacking, lambda: self.room_for_new, now):
            self.turns.given(node, now)
            return True
        self.turns.refused(node, lacking, STEP, now)
        self.turns.waits(node, now + RETRY + 5_000, now, later=True)
        return False

    def race(self, nodes: list[AskingNode], steps: float, begin: int = 0) -> Counter[AskingNode]:
        """Let a group more lack each quarter of a step, and the nodes ask in this order, always; count their leases.
        A lease given in a turn is one that does not lack next time."""
        leases, lacking = Counter[AskingNode](), 0.0
        for now in range(begin, begin + round(steps * STEP), RETRY):
            lacking += 1.0
            for place, node in enumerate(nodes):
                if self.asks(node, now + place, lacking):
                    leases[node] += 1
                    lacking -= 1.0
        return leases


@pytest.fixture
def place() -> Place:
    return Place(LeaseTurns())


FIRST, SECOND, LAST = known("first"), known("second"), known("last")


def patient(place: Place, node: AskingNode) -> int:
    """Let a node become patient and have its turn, beside one that asks before it; return the time."""
    place.race([FIRST, node], PATIENCE + 0.25)
    now = round((PATIENCE + 0.25) * STEP)
    assert place.asks(FIRST, now, 1.0)
    return now


def test_a_node_that_asks_always_a_moment_later_gets_its_lease_in_its_turn(place: Place) -> None:
    most = round(PATIENCE) + 1
    assert place.race([FIRST, SECOND, LAST], round(PATIENCE))[LAST] == 0
    for step in range(round(PATIENCE), 100, most):
        leases = place.race([FIRST, SECOND, LAST], most, step * STEP)
        assert leases[LAST] >= 1
        assert sum(leases.values()) <= 4 * most + 1, "the others get one less for each"


def test_nodes_that_wait_are_served_in_the_order_in_which_they_became_patient(place: Place) -> None:
    late, served = [known(f"late {number}") for number in range(8)], list[AskingNode]()
    for now in range(0, 10 * STEP, RETRY):
        served += [node for node in [FIRST, *late] if place.asks(node, now, float(node == FIRST))]
    turns = [node for node in served if node != FIRST]
    assert turns[:8] == late, "none twice before another"


def test_a_node_that_is_gone_makes_nobody_wait(place: Place) -> None:
    now = patient(place, LAST)
    for later in range(now, now + 8 * STEP, RETRY):
        assert place.asks(FIRST, later, 1.0)
    assert not place.asks(SECOND, now + 8 * STEP, 0.0)
    assert len(place.turns) == 1, "it is forgotten"
    assert not place.asks(LAST, now + 8 * STEP, 0.0), "and waits anew"


def test_a_node_too_slow_for_any_draw_never_waits(place: Place) -> None:
    for now in range(0, 20 * STEP, RETRY):
        assert place.asks(FIRST, now, 1.0)
        assert not place.asks(LAST, now, -math.inf)
        assert len(place.turns) == 0


def test_a_patient_node_gets_nothing_while_it_is_too_slow_for_each_draw(place: Place) -> None:
    now = patient(place, LAST)
    assert not place.asks(LAST, now, -math.inf)
    assert place.asks(LAST, now, -3.0)


def test_without_a_lease_by_the_law_no_turn_is_given(place: Place) -> None:
    """A learner that stands still needs no groups, however long nodes wait."""
    for now in range(0, 40 * STEP, RETRY):
        assert not place.asks(FIRST, now, -1.0)
        assert not place.asks(LAST, now, -1.0)


def test_at_most_every_second_lease_is_given_in_a_turn(place: Place) -> None:
    crowd = [known(f"key {number}", "one owner") for number in range(200)]
    leases = Counter[AskingNode]()
    for now in range(0, 40 * STEP, RETRY):
        for node in (FIRST, *crowd):
            leases[node] += place.asks(node, now, float(node == FIRST))
    assert leases[FIRST] == 160
    assert 0.8 * 144 <= sum(leases[node] for node in crowd) <= 144


def test_a_node_beside_many_patient_keys_of_one_owner_has_its_turn(place: Place) -> None:
    crowd = [known(f"key {number}", "one owner") for number in range(200)]
    leases = Counter[AskingNode]()
    for now in range(0, 20 * STEP, RETRY):
        for node in (FIRST, *crowd, LAST):
            leases[node] += place.asks(node, now, float(node == FIRST))
    assert leases[LAST] >= 3


def test_a_long_time_without_patient_nodes_saves_no_leases_for_them(place: Place) -> None:
    place.race([FIRST], 100)
    late = [known(f"late {number}") for number in range(2 * MOST)]
    begin = 100 * STEP
    for now in range(begin, begin + round(PATIENCE) * STEP + RETRY, RETRY):
        assert place.asks(FIRST, now, 1.0)
        assert not any(place.asks(node, now, 0.0) for node in late)


def test_a_flood_of_new_keys_gets_no_more_than_its_share_in_turns(place: Place) -> None:
    flood = [new(number) for number in range(200)]
    place.race([FIRST, *flood], round(PATIENCE))
    leases = place.race([FIRST, SECOND, *flood], 20, round(PATIENCE) * STEP)
    assert leases[FIRST] + leases[SECOND] >= 0.85 * 80
    assert 4 <= sum(leases[node] for node in flood) <= 9


def test_new_keys_have_no_turn_while_they_have_their_share_of_the_room() -> None:
    place = Place(LeaseTurns(), room_for_new=False)
    flood = [new(number) for number in range(20)]
    assert place.race([FIRST, *flood], 20)[FIRST] == 80


def test_a_newcomer_gets_its_turn_beside_known_nodes_that_always_ask_first(place: Place) -> None:
    newcomer = new(1)
    assert place.race([FIRST, SECOND, newcomer], 20)[newcomer] >= 2
    assert place.race([FIRST, LAST, newcomer], 20, 20 * STEP)[newcomer] >= 2


def test_the_share_of_new_keys_is_a_setting() -> None:
    flood = [new(number) for number in range(20)]
    leases = [Place(LeaseTurns(share)).race([FIRST, *flood], 20)[FIRST] for share in (0.01, 0.1, 0.5)]
    assert leases == sorted(leases, reverse=True)
    assert leases[0] >= 78
    assert leases[-1] <= 60


def test_a_node_refused_for_another_reason_has_no_turn_and_goes_on_waiting(place: Place) -> None:
    now = patient(place, LAST)
    place.turns.waits(LAST, now + RETRY, now, later=False)
    place.turns.waits(LAST, now + RETRY, now, later=True)
    assert place.asks(LAST, now, 0.0), "it is patient as before"


def test_a_node_that_comes_back_over_another_connection_keeps_its_patience(place: Place) -> None:
    now = patient(place, LAST)
    moved = AskingNode(("elsewhere", "", "last"), new=False)
    assert not place.asks(moved, now, 0.0), "its place in the queue is there from now on"
    assert place.asks(moved, now + 1, 0.0)
    assert len(place.turns) == 0


def test_many_connections_of_a_key_are_one_turn(place: Place) -> None:
    now = patient(place, LAST)
    many = [AskingNode((f"subnet {number}", "", "last"), new=False) for number in range(9)]
    for one in many:
        assert not place.asks(one, now, 0.0)
    assert len(place.turns) == 1
    assert [place.asks(one, now, 0.0) for one in reversed(many)] == [True, *8 * [False]]


def test_after_the_clock_was_set_back_all_wait_anew(place: Place) -> None:
    begin = 100 * STEP
    place.race([FIRST, LAST], round(PATIENCE) + 1, begin)
    place.race([FIRST, LAST], round(PATIENCE) + 1, begin - SET_BACK - 50 * STEP)
    assert place.race([FIRST, LAST], 10, begin - 40 * STEP)[LAST] >= 1


def test_nodes_that_ask_once_and_go_are_forgotten(place: Place) -> None:
    for number in range(5_000):
        place.asks(new(number), 1_000 * number, 0.0)
    assert len(place.turns) <= 200
