"""The state of a ledger, read from the coordinator's tables by the queries of the status page (ledger_state.py)."""

from typing import Final

from echo2.coordinator.accounts.key_accounts import account_of
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_facts import KeyAccount
from echo2.ledger.ledger_state import LedgerState, MarketRules, NodeWork, state_of
from echo2.p2p.identity import peer_id

_WORK_QUERY: Final = "SELECT key, weight FROM nodes WHERE weight > 0"


_SUMS: Final = (
    "SELECT node, sum(groups), sum(rollouts), sum(tokens) FROM sums WHERE verdict = 'accepted' AND node != x''"
    " GROUP BY node"
)


def of_tables(database: Database, market: MarketRules | None = None) -> LedgerState:
    """Return the coordinator's own state (ledger_state.py, rules 2 and 4), of one snapshot of the file.
    `market`: market of the run, before the first entry."""
    ledger = Ledger(database)
    if market is not None:
        for entry in ledger.entries():
            market.take(entry)
    tip = ledger.tip()
    last = ledger.entry(tip.entries)
    at = last.at if last is not None else 0
    return state_of(*tip, at, ledger.balances(), _accounts(database), _work(database), market)


def _accounts(database: Database) -> dict[str, KeyAccount]:
    return {peer_id(node): account_of(database, node) for (node,) in database.all("SELECT node FROM accounts")}


def _work(database: Database) -> dict[str, NodeWork]:
    sums = {node: (groups, rollouts, tokens) for node, groups, rollouts, tokens in database.all(_SUMS)}
    work = dict[str, NodeWork]()
    for node, weight in database.all(_WORK_QUERY):
        groups, rollouts, tokens = sums.get(node, (0, 0, 0))
        work[peer_id(node)] = NodeWork(groups, rollouts, tokens, weight)
    return work
