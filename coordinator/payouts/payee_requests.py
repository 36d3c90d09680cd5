"""The method `payee`: a node states where its pay is to go, and learns what is known.

Rules
1. The request is signed by the node, as all are. An account must be one that the run's rail takes.
2. Only a node with accepted work states one: a free key costs no row. One that is in force changes at most once per
   `PAYEE_CHANGE_MS`. One that is not in force yet can be replaced after `PENDING_CHANGE_MS`, half of its wait: whoever
   stole a key brings no account into force while the owner watches, and a key gets at most two entries a day.
3. The same account once more changes nothing: the answer to the first may be lost.
4. The entry `account.set` follows the file (stated_accounts.py, rule 4).
5. A key that was replaced states none any more: all its requests but a hello are refused. Its successor states its own,
   and learns of the balances that are to move to it.
"""

from collections.abc import Callable
from typing import Final

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.payouts.stated_accounts import SALT, AccountSet, StatedAccount, StatedAccounts
from echo2.coordinator.rails import registry
from echo2.coordinator.rails.rail import BadAccount
from echo2.coordinator.settings.payout_config import PayoutSection
from echo2.ledger.payout_facts import UNITS_PER_HUNDREDTH
from echo2.p2p.identity import peer_id
from echo2.protocol.market import MovingBalance, PayeeRequest, PayeeResponse
from echo2.protocol.refusals import refusal
from echo2.protocol.requests import Refusal
from echo2.runtime.figures import number_of
from echo2.runtime.units import DAY

PAYEE_CHANGE_MS: Final = DAY
PENDING_CHANGE_MS: Final = DAY // 2
_HOUR_MS: Final = 3_600_000


class PayeeRequests:
    """The answers about payout accounts. `worked`: tells whether a node has accepted work. `moving`: returns the
    balances that are to move to a node, by peer id."""

    def __init__(
        self,
        settings: PayoutSection,
        accounts: StatedAccounts,
        ledger: Ledger,
        worked: Callable[[bytes], bool],
        entropy: Callable[[int], bytes],
        moving: Callable[[str], list[MovingBalance]] = lambda node: [],
    ) -> None:
        self._settings, self._accounts, self._ledger = settings, accounts, ledger
        self._worked, self._entropy = worked, entropy
        self._moving = moving
        self._check = registry.account_check(settings)

    def answer(self, node: bytes, request: PayeeRequest, now: int) -> PayeeResponse | Refusal:
        """Take an account that a node states, and return what is known."""
        peer, salt = peer_id(node), b""
        if request.account is not None:
            taken = self._take(node, peer, request.account, now)
            if isinstance(taken, str):
                return refusal("payee", detail=taken)
            salt = bytes.fromhex(taken.salt)
        current, coming = self._accounts.of(peer, now)
        return PayeeResponse(
            rail=self._settings.rail,
            currency=self._settings.currency,
            commitment=None if current is None else current.commitment,
            coming=None if coming is None else coming.commitment,
            since=None if coming is None else coming.since,
            salt=salt,
            minimum=self._settings.minimum * UNITS_PER_HUNDREDTH,
            fee=self._settings.payee_fee * UNITS_PER_HUNDREDTH,
            moving=self._moving(peer),
        )

    def _take(self, node: bytes, peer: str, account: str, now: int) -> StatedAccount | str:
        """Return the account as it is kept, or why it is not taken."""
        current, coming = self._accounts.of(peer, now)
        newest = coming or current
        if newest is None or newest.account != account:
            try:
                self._check(account)
            except BadAccount as error:
                return str(error)
            if not self._worked(node):
                return "a node states one once a group of it was accepted"
            wait = PAYEE_CHANGE_MS if coming is None else PENDING_CHANGE_MS
            if newest is not None and 0 <= now - newest.stated < wait:
                hours, minutes = wait // _HOUR_MS, -(-(wait - (now - newest.stated)) // 60_000)
                after, again = number_of(hours, "hour"), number_of(minutes, "minute")
                return f"a node states another one {after} after the last: again in {again}"
            newest = self._accounts.state(peer, account, self._entropy(SALT), now)
        fact = AccountSet(node=peer, account=newest.commitment, since=newest.since)
        self._ledger.append(now, "account.set", f"account:{peer}:{newest.since}", fact)
        return newest
