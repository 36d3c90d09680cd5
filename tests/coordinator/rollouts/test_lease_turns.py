"""Turns of patient nodes at the leases that the law gives: stories of nodes that ask one after the other."""

from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest

from coordinator.rollouts.lease_turns import AHEAD, PATIENCE, SET_BACK, AskingNode, LeaseTurns
from coordinator.rollouts.pacing import UNBOUNDED, Shortage
from coordinator.rollouts.turnaround_odds import odds

STEP = 60_000
RETRY = STEP // 4
QUICK = 10_000


def lacks(*groups: float) -> Shortage:
    """Draws in half a step, one and a half and so on, which lack so many groups."""
    until = STEP * (np.arange(len(groups)) + 0.5)
    return Shortage(np.array(groups), until, odds(0.25))


def known(name: str, party: str = "") -> AskingNode:
    return AskingNode((party or name, name, name), new=False)


def new(number: int) -> AskingNode:
    """A new key with a subnet of its own."""
    return AskingNode((f"subnet {number}", f"line {number}", number), new=True)


class Place(NamedTuple):
    """A place of `turns` under the clock of a story."""

    turns: LeaseTurns
    room_for_new: bool = True

    def asks(self, node: AskingNode, now: int, lacking: Shortage, turnaround: float = QUICK) -> bool:
        """Let a node ask; tell whether it gets a lease. A refused one is told to ask again after `RETRY`."""
        if self.turns.leaves(node, lacking, lambda: self.room_for_new, now):
            self.turns.given(node, now)
            return True
        self.turns.refused(node, lacking, turnaround, STEP, now)
        self.turns.waits(node, now + RETRY, now + RETRY + 5_000, now, later=True)
        return False

    def race(self, nodes: list[AskingNode], steps: float, begin: int = 0) -> Counter[AskingNode]:
        """Let one group lack each quarter of a step, and the nodes ask in this order, always; count their leases."""
        leases = Counter[AskingNode]()
        for now in range(begin, begin + round(steps * STEP), RETRY):
            left = 1.0
            for place, node in enumerate(nodes):
                if self.asks(node, now + place, lacks(left)):
                    leases[node] += 1
                    left -= 1
        return leases


@pytest.fixture
def place() -> Place:
    return Place(LeaseTurns())


def patient(place: Place, node: AskingNode) -> int:
    """Let a node become patient beside one that asks before it, and two places go past it; return the time."""
    place.race([FIRST, node], PATIENCE + 0.25)
    now = round((PATIENCE + 0.25) * STEP)
    assert place.asks(FIRST, now, lacks(1.0))
    assert not place.asks(node, now, lacks(0.0))
    assert place.asks(FIRST, now, lacks(1.1))
    return now


FIRST, SECOND, LAST = known("first"), known("second"), known("last")


def test_a_node_that_asks_always_a_moment_later_gets_its_lease_in_its_turn(place: Place) -> None:
    most = round(PATIENCE) + 1
    assert place.race([FIRST, SECOND, LAST], round(PATIENCE))[LAST] == 0
    for step in range(round(PATIENCE), 100, most):
        assert place.race([FIRST, SECOND, LAST], most, step * STEP)[LAST] >= 1


def test_nodes_that_wait_are_served_in_the_order_in_which_they_became_patient(place: Place) -> None:
    late = [known(f"late {number}") for number in range(8)]
    served = list[AskingNode]()
    for quarter in range(4 * 8 + 2):
        served += place.race([FIRST, *late], 0.25, quarter * RETRY)
    assert [node for node in served if node != FIRST] == late, "none twice before another"
    assert served.count(FIRST) == 4 * round(PATIENCE) + 2 + 8, "every second lease is another's"


def test_nothing_is_kept_for_a_node_that_does_not_come_back(place: Place) -> None:
    now = patient(place, LAST)
    assert not place.asks(FIRST, now, lacks(1.0)), "its place is kept until it should be back"
    assert place.asks(FIRST, now + RETRY + 5_001, lacks(1.0))
    assert place.race([FIRST], 4, now + STEP)[FIRST] == 16


def test_a_node_too_slow_for_any_draw_never_waits_and_keeps_no_place(place: Place) -> None:
    for now in range(0, 20 * STEP, RETRY):
        assert place.asks(FIRST, now, lacks(1.0))
        assert not place.asks(LAST, now, lacks(), 100 * STEP)
        assert len(place.turns) == 0


def test_a_slow_node_keeps_no_place_in_a_draw_that_it_cannot_serve(place: Place) -> None:
    slow = 2 * STEP
    for now in range(0, 20 * STEP, RETRY):
        assert place.asks(FIRST, now, lacks(1.0, 0.5, 0.5)), "the first draw lacks a group of a quick node"
        assert not place.asks(LAST, now + 1, lacks(0.0, 0.0), slow)
    assert not place.asks(FIRST, 20 * STEP, lacks(-1.0, -1.0, 0.5)), "this draw the slow one can serve"
    assert place.asks(LAST, 20 * STEP + 1, lacks(-1.0, -1.0, 0.5), slow)


def test_a_quick_node_behind_slow_ones_has_its_turn_at_the_next_draw(place: Place) -> None:
    slow = [known(f"slow {number}") for number in range(AHEAD - 1)]
    got = 0
    for now in range(0, 20 * STEP, RETRY):
        left = 0.0 if place.asks(FIRST, now, lacks(1.0, 0.5, 0.5)) else 1.0
        for node in slow:
            assert not place.asks(node, now + 1, lacks(0.0, 0.0), 2 * STEP)
        got += place.asks(LAST, now + 2, lacks(left, 0.0, 0.0))
    assert got >= 20 // (PATIENCE + 1)


def test_where_several_groups_lack_the_others_are_given_to_any_node(place: Place) -> None:
    now = patient(place, LAST)
    assert not place.asks(FIRST, now, lacks(1.0))
    assert place.asks(FIRST, now, lacks(1.3))
    assert place.asks(LAST, now, lacks(0.3))


def test_a_lease_that_is_given_whatever_lacks_is_kept_for_nobody(place: Place) -> None:
    now = patient(place, LAST)
    assert not place.asks(FIRST, now, lacks(1.0))
    for _ in range(20):
        assert place.asks(FIRST, now, UNBOUNDED)


def test_a_flood_of_new_keys_keeps_no_more_than_their_share_from_known_nodes(place: Place) -> None:
    flood = [new(number) for number in range(200)]
    place.race([FIRST, *flood], round(PATIENCE))
    leases = place.race([FIRST, SECOND, *flood], 20, round(PATIENCE) * STEP)
    assert leases[FIRST] + leases[SECOND] >= 0.85 * 80
    assert 4 <= sum(leases[node] for node in flood) <= 8 + 1


def test_new_keys_keep_nothing_where_room_has_no_place_for_them() -> None:
    place = Place(LeaseTurns(), room_for_new=False)
    flood = [new(number) for number in range(20)]
    assert place.race([FIRST, *flood], 20)[FIRST] == 80


def test_a_newcomer_gets_its_turn_beside_known_nodes_that_always_ask_first(place: Place) -> None:
    newcomer = new(1)
    assert place.race([FIRST, SECOND, newcomer], 20)[newcomer] >= 2
    assert place.race([FIRST, LAST, newcomer], 20, 20 * STEP)[newcomer] >= 2


def test_the_share_of_new_keys_is_a_setting() -> None:
    flood = [new(number) for number in range(50)]
    leases = [Place(LeaseTurns(share)).race([FIRST, *flood], 50)[FIRST] for share in (0.01, 0.1, 0.5)]
    assert leases == sorted(leases, reverse=True)
    assert leases[0] >= 0.97 * 200
    assert 0.4 * 200 <= leases[-1] <= 0.6 * 200


def test_many_patient_keys_of_one_owner_leave_half_of_the_leases_to_the_others(place: Place) -> None:
    crowd = [known(f"key {number}", "one owner") for number in range(200)]
    place.race([FIRST, *crowd], round(PATIENCE))
    leases = place.race([FIRST, *crowd], 10, round(PATIENCE) * STEP)
    assert leases[FIRST] >= 10 * 4 / 3
    leases = place.race([*crowd[:100], FIRST], 20, (round(PATIENCE) + 10) * STEP)
    assert leases[FIRST] >= 3, "and one that asks behind them all has its turn, as it is of another subnet"


def test_a_node_refused_for_another_reason_goes_on_waiting_and_keeps_no_place(place: Place) -> None:
    now = patient(place, LAST)
    place.turns.waits(LAST, now + RETRY, now + 2 * RETRY, now, later=False)
    assert place.asks(FIRST, now, lacks(1.0))
    place.asks(LAST, now, lacks(0.0))
    assert not place.asks(FIRST, now, lacks(1.0)), "it is patient as before"


def test_a_node_that_comes_back_over_another_connection_keeps_its_patience_and_one_place(place: Place) -> None:
    now = patient(place, LAST)
    for number in range(9):
        place.asks(AskingNode((f"subnet {number}", "", "last"), new=False), now, lacks(0.0))
    assert len(place.turns) == 1
    assert not place.asks(FIRST, now, lacks(1.0))
    assert place.asks(FIRST, now, lacks(1.1)), "one place, not nine"


def test_a_clock_that_was_set_back_keeps_no_place_for_a_future(place: Place) -> None:
    begin = 100 * STEP
    place.race([FIRST, LAST], round(PATIENCE) + 1, begin)
    place.race([FIRST, LAST], round(PATIENCE) + 1, begin - SET_BACK - 50 * STEP)
    assert place.race([FIRST, LAST], 10, begin - 40 * STEP)[LAST] >= 1


def test_nodes_that_ask_once_and_go_are_forgotten(place: Place) -> None:
    for number in range(5_000):
        place.asks(new(number), 1_000 * number, lacks(0.0))
    assert len(place.turns) <= 200
