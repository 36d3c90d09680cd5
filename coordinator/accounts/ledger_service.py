"""The coordinator's answers to the method `ledger`, which needs no signature and no account.

Rules
1. Heads are answered to all; their proofs are remembered, so they cost a look-up.
2. Requests for proofs cost CPU time of some 0.2 ms per entry. A party has `PER_PARTY` of them per second, all
   together have `LEDGER_REQUEST_RATE`: LEDGER REQUEST RATE at most a fifth of a core. Beyond that a request is answered
   with heads alone, and the node asks again later. Origins without accepted work have `STRANGERS_REQUEST_RATE` of that:
   so they cannot delay the proofs of nodes that work, which request no more leases without them
   (node/trust/proof_watch.py).
3. Requests for ends of leases (coordinator/accounts/end_proofs.py) cost up to 10 ms each, and an entry of up to 300 kB.
   A party has `ENDS_PER_PARTY` of them per second, all together have `ENDS_RATE`, origins without accepted work
   `STRANGERS_ENDS_RATE` of that.
4. Heads that are shown as evidence of a fork cost two signatures to verify, 0.2 ms: they count as requests for proofs.
5. An answer leaves once all that it tells is committed.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from echo2.coordinator.accounts.end_proofs import EndProofs
from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.token_bucket import TokenBucket, TokenBuckets
from echo2.protocol.ledger_heads import MOST_ENTRIES, EndProof, EntryProof, HeadReference, LedgerRequest, LedgerResponse

PER_PARTY: Final = 2.0
"""Requests with entries per second and party."""
LEDGER_REQUEST_RATE: Final = 32.0
"""Requests with entries per second, of all parties."""
STRANGERS_REQUEST_RATE: Final = 8.0
"""Those of origins without accepted work."""
LEDGER_REQUEST_BURST: Final = 64
ENDS_PER_PARTY: Final = 0.5
"""Requests with leases per second and party."""
ENDS_RATE: Final = 4.0
"""Requests with leases per second, of all parties."""
STRANGERS_ENDS_RATE: Final = 2.0
"""Those of origins without accepted work."""
ENDS_BURST: Final = 16


class LedgerService:
    """The handler of the method. `durable`: waits until everything written so far is committed. `clock`: seconds,
    monotonic. `works`: tells whether an origin has accepted work. `shown`: takes what a peer shows as evidence."""

    def __init__(
        self, heads: LedgerHeads, ends: EndProofs, origin_of: Callable[[str], Origin], works: Callable[[Origin], bool],
        durable: Callable[[], Awaitable[None]], clock: Callable[[], float],
        shown: Callable[[str, Sequence[bytes]], None], told: Callable[[Origin, HeadReference], None],
    ) -> None:  # fmt: skip
        """`told`: takes which head a client says that it holds."""
        self._heads, self._ends, self._shown, self._told = heads, ends, shown, told
        self._origin_of, self._works, self._durable = origin_of, works, durable
        self._entries = {
            True: _Budget(PER_PARTY, LEDGER_REQUEST_RATE - STRANGERS_REQUEST_RATE, LEDGER_REQUEST_BURST, clock),
            False: _Budget(PER_PARTY, STRANGERS_REQUEST_RATE, LEDGER_REQUEST_BURST, clock),
        }
        """Budgets of requests for proofs, by whether the origin has accepted work; below, of those for ends."""
        self._ends_budgets = {
            True: _Budget(ENDS_PER_PARTY, ENDS_RATE - STRANGERS_ENDS_RATE, ENDS_BURST, clock),
            False: _Budget(ENDS_PER_PARTY, STRANGERS_ENDS_RATE, ENDS_BURST, clock),
        }

    async def answer(self, peer: str, request: LedgerRequest) -> LedgerResponse:
        origin = self._origin_of(peer)
        party = origin.party
        asks = bool(request.entries or request.keys)
        works = bool(asks or request.fork or request.leases) and self._works(origin)
        of_entries = self._entries[works]
        if request.fork and of_entries.admit(party):
            self._shown(peer, request.fork)
        if request.newest is not None:
            self._told(origin, request.newest)
        proofs: list[EntryProof] = []
        if asks and of_entries.admit(party):
            numbers = [*request.entries, *self._heads.entry_numbers(request.keys)][:MOST_ENTRIES]
            proofs = self._heads.proofs(numbers, request.size)
        ends: list[EndProof] = []
        if request.leases and self._ends_budgets[works].admit(party):
            ends = self._ends.proofs(request.leases, request.size)
            proofs += self._heads.proofs([end.entry for end in ends[:1]], request.size)
        answer = msgspec.structs.replace(self._heads.answer(request), proofs=proofs, ends=ends)
        await self._durable()
        return answer


class _Budget:
    """The requests of one kind that are answered: per party and second, and of all."""

    def __init__(self, per_party: float, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._parties, self._all = TokenBuckets(per_party, burst), TokenBucket(rate, burst)

    def admit(self, party: str) -> bool:
        """Tell whether a request of a party is answered now, and count it."""
        now = self._clock()
        if self._all.delay(1, now) or self._parties.admit(party, now):
            return False
        self._all.consume(1, now)
        return True
