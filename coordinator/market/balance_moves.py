"""Make the entries by which the balance of a replaced key stays or moves (ledger/balance_waits.py). Pure.

Rules
1. A move takes all that the old key has: accrued, unvested and payable. Its tranches go to the successor with their
   times (holdback.py, rule 7), so what vests, what is held back and what a forfeit reaches do not change by it.
2. Where nothing is there, nothing moves. Money that reaches the old key later, such as a payment that comes back,
   has entries of its own, each at another time.
3. The successor's probation has ended where that of the old key had: else pay that was due would wait for ever at a
   key that works no more.
4. A wait is never forgotten, as money can reach its key at any later time. So `due`, which the run asks each second,
   looks up the fewer ones: the replaced keys, or the keys with money.
"""

from echo2.coordinator.market.entries import BalanceMoved, NewEntry, postings_of_changes
from echo2.coordinator.market.epoch_terms import BadTerms
from echo2.coordinator.market.epochs import payable
from echo2.coordinator.market.market_state import MarketState
from echo2.ledger.balance_waits import BALANCE_DISPUTED_KIND, BalanceDisputed, disputable, movable
from echo2.ledger.ledger_entries import LedgerFault, accrued_account, unvested_account


def dispute(state: MarketState, at: int, node: str) -> NewEntry:
    """Return the entry by which the balance of a replaced key stays with it. Raises `BadTerms`."""
    try:
        wait = disputable(state.waits, node, at)
    except LedgerFault as error:
        raise BadTerms(str(error)) from error
    return NewEntry(
        at, BALANCE_DISPUTED_KIND, f"disputed:{node}:{at}", BalanceDisputed(node=node, successor=wait.successor)
    )


def move_balance(state: MarketState, at: int, node: str) -> NewEntry | None:
    """Return the entry by which the balance of a replaced key moves to its successor; None: it has none. Raises
    `BadTerms`."""
    try:
        wait = movable(state.waits, node, at)
    except LedgerFault as error:
        raise BadTerms(str(error)) from error
    tranches = state.tranches.get(node, ())
    vested, later = sum(one.accrued for one in tranches), sum(one.unvested for one in tranches)
    there = state.payable.get(node, 0)
    if not vested + later + there:
        return None
    fact = BalanceMoved(node=node, successor=wait.successor, accrued=vested, unvested=later, payable=there)
    new = wait.successor
    money = postings_of_changes([
        (accrued_account(node), -vested), (unvested_account(node), -later), (payable(node), -there),
        (accrued_account(new), vested), (unvested_account(new), later), (payable(new), there),
    ])  # fmt: skip
    return NewEntry(at, "balance.moved", f"moved:{node}:{at}", fact, money)


def due(state: MarketState, at: int) -> list[str]:
    """Return the replaced keys whose balance moves now, in order (rule 4)."""
    replaced = state.waits.keys()
    having = (replaced & state.tranches.keys()) | (replaced & state.payable.keys())
    return sorted(node for node in having if not state.waits[node].disputed and at >= state.waits[node].due)
