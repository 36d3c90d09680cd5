"""The requests of banned and suspended keys: what is served all the same, and the refusal of all else.

Rules
1. A suspended node may appeal. With accepted work it may also say hello where no time ends its suspension, so that it
   can appeal after a restart.
2. A banned key gets nothing. One that was replaced is told by each refusal what becomes of its balance, and may dispute
   that by its hello (ledger/balance_waits.py).
"""

from typing import Final

from echo2.ledger.ledger_facts import REPLACED_PREFIX, KeyAccount
from echo2.ledger.standing import FOREVER_MS, Standing
from echo2.protocol.methods import APPEAL, HELLO
from echo2.protocol.refusals import refusal
from echo2.protocol.requests import Refusal
from echo2.runtime.units import minute

ASK_AGAIN: Final = 3_600_000
"""Milliseconds after which a key that is suspended for a proof may ask whether that was lifted."""


def is_served(standing: Standing, account: KeyAccount, method: str) -> bool:
    """Tell whether a banned or suspended node is served by this method all the same."""
    if standing.code == "banned":
        return method == HELLO.name and bool(successor(account))
    if method == APPEAL.name:
        return True
    return method == HELLO.name and standing.suspended_until == FOREVER_MS and account.accepted > 0


def successor(account: KeyAccount) -> str:
    """Return the peer id of the key that replaced this one; empty: none did."""
    why = account.banned or ""
    return why.removeprefix(REPLACED_PREFIX) if why.startswith(REPLACED_PREFIX) else ""


def shut_out(standing: Standing, until: int, now: int) -> Refusal:
    """Return the refusal for a key that is banned, or suspended until `until`."""
    if standing.code == "banned":
        return refusal("banned", why=standing.why)
    if until >= FOREVER_MS:
        return refusal("suspended-by-proof", retry_after=ASK_AGAIN, reason=standing.code)
    return refusal("suspended", retry_after=until - now, until=minute(until), reason=standing.code)
