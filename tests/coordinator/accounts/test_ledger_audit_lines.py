"""The report of a verified export: what it says of balances, in the unit of the run."""

from echo2.ledger.ledger_audit import Audit, lines

BALANCES = {
    "fund:operator": -2_500_000_000, "node:a:accrued": 1_000_000_000, "node:a:payable": 500_000_000,
    "node:b:unvested": 500_000_000, "paid:csv": 500_000_000,
}  # fmt: skip


def report(currency: str) -> str:
    """Return the last line of the report."""
    return lines(Audit(bytes(32), bytes(32), 5, 1, 5, bytes(32), BALANCES, currency))[-1]


def test_a_run_that_pays_money_states_what_it_owes_in_its_currency() -> None:
    assert report("EUR") == "owed        2.00 EUR to 2 nodes"


def test_a_run_of_points_states_accrued_work() -> None:
    assert report("") == "accrued     1000000.000 RE by 1 node"
