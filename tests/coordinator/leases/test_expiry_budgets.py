"""The pauses of a holder that lets leases expire."""

from echo2.coordinator.leases.expiry_budgets import EXPIRY_PAUSE_MS, FREE_EXPIRIES, LONGEST_EXPIRY_PAUSE_MS, pause_after


def test_each_expiry_beyond_the_budget_doubles_the_pause() -> None:
    assert [pause_after(FREE_EXPIRIES + more, 0) for more in range(4)] == [
        0,
        EXPIRY_PAUSE_MS,
        2 * EXPIRY_PAUSE_MS,
        4 * EXPIRY_PAUSE_MS,
    ]
    assert pause_after(FREE_EXPIRIES + 5, 100) == 0
    assert pause_after(1_000, 0) == LONGEST_EXPIRY_PAUSE_MS
