"""Wire types of the market: what a node asks for its work, and what the run answers; and the account of its pay."""

from typing import Annotated, Literal

from msgspec import Meta

from echo2.p2p.wire_types import Count, Hash, Milliseconds, Name, Sentence, Wire

Place = Literal["active", "standby", "out", "none"]
"""A node's place in the epoch that runs: it gets leases; it would be next; its ask is above what is paid, or it is not
needed; it made no offer, or no epoch runs."""


class EpochTerms(Wire, frozen=True):
    """The terms of an epoch, as its entry `epoch.announced` has them. `closes`: time until which asks are sealed.
    `opens`: when it opens by plan; asks are opened between. `need`: milli-RE per hour. `reserve`: highest price per RE,
    in units of the ledger."""

    epoch: Count
    closes: Milliseconds
    opens: Milliseconds
    milliseconds: Count
    need: Count
    reserve: Count


class MarketRequest(Wire, frozen=True):
    """node -> coordinator, method "market". `epoch`: that the rest is about; 0: the answer alone is wanted. `sealed`:
    the commitment to an ask for it (protocol/sealed_asks.py). `ask`, `salt`: open the one that was sealed."""

    epoch: Count = 0
    sealed: Hash | None = None
    ask: Count | None = None
    salt: Annotated[bytes, Meta(max_length=64)] = b""


class MarketResponse(Wire, frozen=True):
    """coordinator -> node, to "market". Amounts are in units of the ledger, 10^-9 of `currency`; rates in milli-RE per
    hour. `coming`, `running`: epochs; None: there is none. `refused`: why the request's ask was not taken; empty: it
    was, or there was none. `sealed`: the node's commitment for `coming`. `ask`: that stands. `rate`: that counts.
    `place`, `why`: place and reason of the node in `running`. `rank`, `active_at`: rank and active at on standby, the
    place and the highest ask at which it would be active. `price`: price per RE, rounded down. `most`: milli-RE that
    are paid in this epoch at that price. The last three: balances."""

    currency: Name
    coming: EpochTerms | None
    running: EpochTerms | None
    refused: Sentence = ""
    sealed: Hash | None = None
    ask: Count | None = None
    rate: Count = 0
    place: Place = "none"
    why: Sentence = ""
    rank: Count | None = None
    active_at: Count | None = None
    price: Count | None = None
    most: Count = 0
    accrued: Count = 0
    unvested: Count = 0
    payable: Count = 0


class MovingBalance(Wire, frozen=True):
    """The balance of a replaced key, told to its successor. `node`: the replaced key, peer id. `amount`: amount in
    units of the ledger. `at`: when it moves. `disputed`: it stays."""

    node: Name
    amount: Count
    at: Milliseconds
    disputed: bool = False


class PayeeRequest(Wire, frozen=True):
    """node -> coordinator, method "payee". `account`: where the node's pay is to go, as the run's rail reads it; None:
    the answer alone is wanted."""

    account: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class PayeeResponse(Wire, frozen=True):
    """coordinator -> node, to "payee". `commitment`: SHA-256 of salt and account in force; None: none is. `coming`,
    `since`: the commitment to the account that follows, and when it is in force. `salt`: salt of the account that the
    request named. `rail`: how the run pays. `minimum`: least payment, and `fee`: fee of the payee, both in units of the
    ledger; None: not told. `moving`: balances of keys that this one replaced."""

    rail: Name
    currency: Name
    commitment: Hash | None = None
    coming: Hash | None = None
    since: Milliseconds | None = None
    salt: Annotated[bytes, Meta(max_length=32)] = b""
    minimum: Count | None = None
    fee: Count | None = None
    moving: Annotated[list[MovingBalance], Meta(max_length=64)] = []
