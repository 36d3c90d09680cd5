"""The pauses of a holder that lets leases expire."""

from echo2.coordinator.leases.expiry_budgets import FREE, LONGEST, PAUSE, pause_after


def test_each_expiry_beyond_the_budget_doubles_the_pause() -> None:
    assert [pause_after(FREE + more, 0) for more in range(4)] == [0, PAUSE, 2 * PAUSE, 4 * PAUSE]
    assert pause_after(FREE + 5, 100) == 0
    assert pause_after(1_000, 0) == LONGEST
