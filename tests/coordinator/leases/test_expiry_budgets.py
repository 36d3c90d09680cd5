"""The pauses of a holder that lets leases expire."""

from pathlib import Path

from echo2.coordinator.leases.expiry_budgets import (
    EXPIRY_PAUSE_MS,
    FREE_EXPIRIES,
    HOUR,
    LONGEST_EXPIRY_PAUSE_MS,
    ExpiryBudgets,
    pause_after,
)
from tests.support.fleet import key
from tests.support.group_world import World

HOME = "192.0.2.0/24"


def test_each_expiry_beyond_the_budget_doubles_the_pause() -> None:
    assert [pause_after(more) for more in range(4)] == [0, EXPIRY_PAUSE_MS, 2 * EXPIRY_PAUSE_MS, 4 * EXPIRY_PAUSE_MS]
    assert pause_after(1_000) == LONGEST_EXPIRY_PAUSE_MS


def pauses_after(world: World, nodes: list[bytes], party: str = HOME) -> list[int]:
    """Let a lease of each of these nodes expire, one after the other; return their pauses, ms."""
    budgets, pauses = ExpiryBudgets(world.group_service.database), []
    for node in nodes:
        budgets.on_expiry(node, party, world.now)
        debt = budgets.debt(node, world.now)
        pauses.append(0 if debt is None else debt.wait)
    return pauses


def test_what_keys_of_one_party_have_not_forgiven_makes_one_series_of_pauses(tmp_path: Path) -> None:
    world = World(tmp_path)
    nodes = [key("hoarder", number) for number in range(4)]
    assert pauses_after(world, FREE_EXPIRIES * nodes) == [0] * 4 * FREE_EXPIRIES, "each key's own are forgiven"
    assert pauses_after(world, nodes) == [EXPIRY_PAUSE_MS << number for number in range(4)]
    assert pauses_after(world, nodes[:1]) == [EXPIRY_PAUSE_MS << 4], "as after its party's fifth"
    assert pauses_after(world, [key("neighbour")]) == [0], "who keeps within its own budget does not pause"
    assert pauses_after(world, 4 * [key("elsewhere")], "198.51.100.0/24")[-1] == EXPIRY_PAUSE_MS


def test_an_hour_begins_with_the_first_expiry_and_a_pause_goes_on_beyond_it(tmp_path: Path) -> None:
    """Before, hours were those of the clock: two budgets were used up within minutes of a full hour."""
    world, node = World(tmp_path), key("hoarder")
    world.now = world.now // HOUR * HOUR + HOUR - 1
    assert pauses_after(world, FREE_EXPIRIES * [node]) == [0] * FREE_EXPIRIES
    world.now += HOUR - 2
    assert pauses_after(world, 10 * [node])[-1] == LONGEST_EXPIRY_PAUSE_MS, "in the next hour of the clock"
    world.now += 3
    assert pauses_after(world, [node]) == [LONGEST_EXPIRY_PAUSE_MS - 3], "forgiven, and the pause goes on"
    world.now += LONGEST_EXPIRY_PAUSE_MS
    assert pauses_after(world, [node]) == [0]
