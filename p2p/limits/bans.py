"""Peers that broke the protocol are left alone for a while, and longer each time.

1. A ban lasts `TERM` seconds; each further one within `MEMORY` after the last ended lasts four times as long, a day at
   most. It ends by itself: a bad disk is replaced, an address changes hands.
2. Only what no honest peer does bans (whoever bans says what): slowness and silence never do.
3. What may be a mistake of an honest program is charged: `FORGIVEN` times it is forgiven, and once more each `FORGET`
   seconds; beyond that it bans.
4. At most `KEPT` peers are remembered, the oldest forgotten first: names cost a liar nothing, memory costs us.

Pure: `now` in seconds, of a monotonic clock.
"""

from typing import Final, NamedTuple

from p2p.limits.token_bucket import TokenBuckets
from runtime.backoff import Backoff

TERM: Final = 600.0
LONGEST: Final = 86_400.0
MEMORY: Final = 86_400.0
STEP: Final = 4.0
FORGIVEN: Final = 3
FORGET: Final = 3600.0
KEPT: Final = 4096
_TERMS: Final = Backoff(TERM, LONGEST, factor=STEP)


class _Ban(NamedTuple):
    until: float
    term: float


class Bans:
    """Who is banned until when."""

    def __init__(self) -> None:
        self._bans: dict[str, _Ban] = {}
        self._charges = TokenBuckets(1 / FORGET, FORGIVEN)

    def charge(self, peer: str, now: float) -> float | None:
        """Rule 3; seconds for which `peer` is banned now, None where it is forgiven."""
        return self.ban(peer, now) if self._charges.consume(peer, now) > 0 else None

    def ban(self, peer: str, now: float) -> float:
        """Seconds for which `peer` is banned from now on. A peer that is banned already stays so, no longer."""
        known = self._bans.pop(peer, None)
        if known is not None and known.until > now:
            self._bans[peer] = known
            return known.until - now
        repeated = known is not None and now - known.until < MEMORY
        term = _TERMS.after(known.term if known is not None and repeated else 0.0)
        self._bans[peer] = _Ban(now + term, term)
        if len(self._bans) > KEPT:
            del self._bans[next(iter(self._bans))]
        return term

    def remaining(self, peer: str, now: float) -> float:
        """Seconds until the ban of `peer` ends; 0 where it is not banned."""
        known = self._bans.get(peer)
        return max(0.0, known.until - now) if known is not None else 0.0

    def banned(self, peer: str, now: float) -> bool:
        """Whether `peer` is to be left alone now."""
        return self.remaining(peer, now) > 0
