"""The coordinator's answers to the method `ledger`, which needs no signature and no account.

Rules
1. Heads are answered to all; their proofs are remembered, so they cost a look-up.
2. Requests for proofs cost CPU time of some 0.2 ms per entry. A party has `PER_PARTY` of them per second, all
   together have `RATE`: at most a fifth of a core. Beyond that a request is answered with heads alone, and the node
   asks again later. So an attack delays proofs, and nothing else.
3. An answer leaves once all that it tells is committed.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from coordinator.accounts.head_signing import LedgerHeads
from p2p.limits.origin import Origin
from p2p.limits.token_bucket import TokenBucket, TokenBuckets
from protocol.ledger_heads import LedgerRequest, LedgerResponse

PER_PARTY: Final = 2.0
"""Requests with entries per second and party."""
RATE: Final = 32.0
"""Requests with entries per second, of all parties."""
BURST: Final = 64


class LedgerService:
    """The handler of the method. `durable`: waits until everything written so far is committed. `clock`: seconds,
    monotonic."""

    def __init__(
        self, heads: LedgerHeads, origin_of: Callable[[str], Origin], durable: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._heads, self._origin_of, self._durable, self._clock = heads, origin_of, durable, clock
        self._parties, self._all = TokenBuckets(PER_PARTY, BURST), TokenBucket(RATE, BURST)

    async def answer(self, peer: str, request: LedgerRequest) -> LedgerResponse:
        """Answer one request."""
        proofs = request.entries and self._may_prove(self._origin_of(peer).party)
        answer = LedgerResponse(
            heads=self._heads.grown(request.after),
            proofs=self._heads.proofs(request.entries, request.size) if proofs else [],
        )
        await self._durable()
        return answer

    def _may_prove(self, party: str) -> bool:
        now = self._clock()
        if self._all.delay(1, now) or self._parties.admit(party, now):
            return False
        self._all.consume(1, now)
        return True
