"""A node's new key takes the standing of its old one.

Rules
1. The old key must have standing to pass on: `KNOWN` accepted groups, or the operator's word. So free identities write
   no entry.
2. The new key must be without any: it had no entry of its own. Bans and suspensions pass on with all else. While a
   group of the old key waits for its verdict, or there is evidence against the key, nothing passes on: what is found
   later would be found against a key that nobody uses any more.
3. A standing passes on once per `SUCCESSION_PAUSE_MS`, so what is counted per key is not emptied more often.
4. The same statement again changes nothing. The old key is banned for good: its thief has nothing.
"""

from collections.abc import Callable
from typing import Final

from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.ledger.audited_work import KNOWN_AUDITED_GROUPS
from echo2.ledger.ledger_facts import KEY_ROTATED_KIND, REPLACED_PREFIX, KeyAccount
from echo2.ledger.standing import describe
from echo2.p2p.identity import peer_id
from echo2.protocol.succession import Succession
from echo2.runtime.units import DAY

SUCCESSION_PAUSE_MS: Final = DAY
"""Milliseconds."""


def succeed(accounts: Accounts, statement: Succession, now: int, *, waits: Callable[[bytes], bool]) -> str:
    """Pass the standing of a key on, if the rules admit it; return what became of it, a sentence. `now`: ms. `waits`:
    tells whether a group of a key waits for its verdict."""
    old, new = accounts.account(statement.old), accounts.account(statement.new)
    if old.banned == REPLACED_PREFIX + peer_id(statement.new):
        return "The standing of the old key has passed to this one."
    if old.banned is not None and old.banned.startswith(REPLACED_PREFIX):
        return "The old key was replaced by another one before: this key has no part of its standing."
    if old.accepted < KNOWN_AUDITED_GROUPS and not old.vouched:
        return f"The old key has no standing to pass on: fewer than {KNOWN_AUDITED_GROUPS} of its groups were accepted."
    if new != KeyAccount():
        return "This key has groups of its own: it keeps its own standing."
    if any(
        entry.kind == KEY_ROTATED_KIND and now - entry.at < SUCCESSION_PAUSE_MS
        for entry in accounts.entries(statement.old)
    ):
        return "The old key took its standing from another one within a day: it passes on a day after that."
    if waits(statement.old):
        return "A group of the old key waits for its verdict: its standing passes on at a start after that."
    if old.doubted:
        return "There is evidence against the old key: its standing passes on once that is cleared."
    accounts.rotate(statement.old, statement.new, now)
    return f"The standing of the old key has passed to this one: {describe(accounts.of(statement.new, now))}."
