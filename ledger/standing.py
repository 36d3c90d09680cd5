"""The standing of a key: its rank (new, known or proven), and whether it is suspended or banned. Pure.

Rules
1. A key is *known* while it has `KNOWN` groups of audited work, or once the operator vouches for it. It is *proven*
   while it has `PROVEN` groups of audited work, as long as the scorer's pass (T1 and T2,
   coordinator/verification/verification.py) refused none of its last `CLEAN_GROUPS`. Audited work decays with time,
   never below `KNOWN` until a month has passed without an accepted group, and to nothing then
   (ledger/audited_work.py). Every other key is *new*. A key with evidence against it (`KeyAccount.doubted`) is *new*
   too, until a later entry clears it.
2. A suspension ends at the time that its entry states; one for a proof states none (`FOREVER_MS`), and ends by an
   appeal or by the operator (coordinator/accounts/strikes.py). A ban ends when the operator lifts it, which also ends a
   suspension.
3. Standing follows from the ledger alone: `standing` reads the entries.
4. Rank decides how much room a key gets (coordinator/leases/room_shares.py) and how its groups are verified
   (coordinator/verdicts/group_verifier.py), but never the pay of an accepted group.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from echo2.ledger.audited_work import KNOWN_AUDITED_GROUPS, ONE, PROVEN_AUDITED_GROUPS, decay_count
from echo2.ledger.ledger_entries import Entry
from echo2.ledger.ledger_facts import KeyAccount, apply
from echo2.runtime.units import minute

Rank = Literal["new", "known", "proven"]


CLEAN_GROUPS = 300
"""Groups."""


FOREVER_MS = (1 << 53) - 1
"""`Standing.suspended_until` of a banned key, and of one that is suspended for a proof, ms."""


class Standing(NamedTuple):
    """The standing of one key. `suspended_until`: ms; None: the key is served. `code`: the reason of a suspension, a
    code of protocol/refusals.py, or "banned". `why`: the operator's reason of a ban."""

    rank: Rank = "new"
    suspended_until: int | None = None
    code: str = ""
    why: str = ""


NEW_KEY = Standing()


def standing(entries: Iterable[Entry], now: int) -> dict[str, Standing]:
    """Return the standing at `now` (ms) of every key that the entries name, by peer id. Any other has `NEW_KEY`."""
    accounts: dict[str, KeyAccount] = {}
    for entry in entries:
        apply(entry, lambda node: accounts.get(node, KeyAccount()), accounts.__setitem__)
    return {node: at(account, now) for node, account in accounts.items()}


def at(account: KeyAccount, now: int) -> Standing:
    """Return the standing of an account at `now`, ms."""
    if account.banned is not None:
        return Standing(rank(account, now), FOREVER_MS, "banned", account.banned)
    if now < account.until:
        return Standing(rank(account, now), account.until, account.code)
    return Standing(rank(account, now))


def rank(account: KeyAccount, now: int | None = None) -> Rank:
    """Return the rank of an account at `now`, ms; None: at its last accepted group (rule 1)."""
    if account.doubted:
        return "new"
    audited = account.audited if now is None else decay_count(account.audited, account.aged, now)[0]
    if audited >= PROVEN_AUDITED_GROUPS * ONE and (not account.wrong or account.groups - account.wrong >= CLEAN_GROUPS):
        return "proven"
    return "known" if audited >= KNOWN_AUDITED_GROUPS * ONE or account.vouched else "new"


def describe(standing: Standing) -> str:
    """Return a standing in words: "known", "new, suspended until 2026-11-22 10:00 UTC (drift)"."""
    if standing.suspended_until is None:
        return standing.rank
    if standing.code == "banned":
        return f"{standing.rank}, banned" + (f": {standing.why}" if standing.why else "")
    return f"{standing.rank}, suspended until {until(standing.suspended_until)} ({standing.code})"


def until(end: int) -> str:
    """Return the end of a suspension, given in ms, in words."""
    return "an appeal or the operator lifts it" if end >= FOREVER_MS else minute(end)
