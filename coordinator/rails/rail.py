"""The boundary to whatever moves money: four methods, and what they may answer.

Rules
1. A payment has one idempotency key for life: 32 hexadecimal digits. Every call about it names that key.
2. Amounts are integers in the currency's hundredth part ("minor units"), and above 0.
3. An answer tells facts alone; coordinator/rails/payment_states.py decides what follows. A rail that got no clear
   answer says `unknown`: it never guesses.
4. A rail raises `LocalFault` for faults of this machine alone (a setting, a file, credentials).
"""

from typing import Final, Literal, NamedTuple, Protocol

from echo2.runtime.errors import LocalFault

Word = Literal["taken", "done", "returned", "refused", "busy", "absent", "unknown"]
"""taken: the provider works on it. done: the money has arrived. returned: the money is back, or was never sent, for
good. refused: this call was refused. busy: this call was not taken, and may be made later. absent: the provider knows
no such key. unknown: there was no clear answer."""

MOST_WHY: Final = 300
"""Characters of a provider's words that are kept."""


class BadAccount(LocalFault):
    """An account to which this rail cannot pay; the message says why."""


class RailAnswer(NamedTuple):
    """The answer to one call. `amount`: that the provider states, minor units; None: none. `reference`: the provider's
    name for the transfer. `wait`: seconds after which a call may be made again; None: not told."""

    word: Word
    amount: int | None = None
    why: str = ""
    reference: str = ""
    wait: float | None = None


class Quote(NamedTuple):
    """The cost of a payment, before it is made. `fee`: minor units, paid by the operator on top."""

    fee: int


class Rail(Protocol):
    """A way by which money leaves."""

    async def quote(self, account: str, amount: int) -> Quote:
        """Return the cost of a payment. Raises `BadAccount`, and `LocalFault` where no quote can be had."""

    async def send(self, idempotency_key: str, account: str, amount: int) -> RailAnswer:
        """Move an amount to an account, at most once per key."""

    async def status(self, idempotency_key: str) -> RailAnswer:
        """Tell what became of a payment."""

    async def cancel(self, idempotency_key: str) -> RailAnswer:
        """Stop a payment where that is still possible; tell what became of it."""
