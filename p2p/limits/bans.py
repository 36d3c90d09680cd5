"""Ban peers that broke the protocol, each time for longer. Pure: `now` in seconds, monotonic.

1. A ban lasts `BAN_SECONDS` seconds. Each further one within `BAN_MEMORY_SECONDS` seconds after the last one ended
   lasts `BAN_FACTOR` times as long, at most `LONGEST_BAN_SECONDS`. Bans end by themselves: a bad disk is replaced, an
   address gets another owner.
2. Only behaviour that no honest peer shows leads to a ban (the caller states which): never slowness or silence.
3. A fault that an honest program may make by mistake is charged. `FORGIVEN_CHARGES` charges are forgiven, and one more
   per `CHARGE_SECONDS` seconds; the next one bans.
4. At most `MOST_BANS` peers are remembered, the oldest forgotten first: identities are free, so the table is bounded.
"""

from typing import Final, NamedTuple

from echo2.p2p.limits.token_bucket import TokenBuckets
from echo2.runtime.backoff import Backoff

BAN_SECONDS: Final = 600.0
LONGEST_BAN_SECONDS: Final = 86_400.0
BAN_MEMORY_SECONDS: Final = 86_400.0
BAN_FACTOR: Final = 4.0
FORGIVEN_CHARGES: Final = 3
CHARGE_SECONDS: Final = 3600.0
MOST_BANS: Final = 4096
_BAN_BACKOFF: Final = Backoff(BAN_SECONDS, LONGEST_BAN_SECONDS, factor=BAN_FACTOR)


class _Ban(NamedTuple):
    until: float
    term: float


class Bans:
    """The banned peers, and when each ban ends."""

    def __init__(self) -> None:
        self._bans: dict[str, _Ban] = {}
        self._charges = TokenBuckets(1 / CHARGE_SECONDS, FORGIVEN_CHARGES)

    def charge(self, peer: str, now: float) -> float | None:
        """Charge a fault by rule 3. Return the seconds for which `peer` is banned now; None for a forgiven fault."""
        return self.ban(peer, now) if self._charges.consume(peer, now) > 0 else None

    def ban(self, peer: str, now: float) -> float:
        """Ban `peer`; return the seconds left. The ban of a peer that is already banned stays as it is."""
        known = self._bans.pop(peer, None)
        if known is not None and known.until > now:
            self._bans[peer] = known
            return known.until - now
        repeated = known is not None and now - known.until < BAN_MEMORY_SECONDS
        term = _BAN_BACKOFF.after(known.term if known is not None and repeated else 0.0)
        self._bans[peer] = _Ban(now + term, term)
        if len(self._bans) > MOST_BANS:
            del self._bans[next(iter(self._bans))]
        return term

    def remaining(self, peer: str, now: float) -> float:
        """Return the seconds until the ban of `peer` ends; 0 without a ban."""
        known = self._bans.get(peer)
        return max(0.0, known.until - now) if known is not None else 0.0

    def is_banned(self, peer: str, now: float) -> bool:
        return self.remaining(peer, now) > 0
