"""How much is dialled because others said so: little enough that nobody can aim a crowd of peers at a stranger.

Rules
1. `BURST` dials at once, then `RATE` a second, to whomever. Addresses of the invite and of a signed Head, to which the
   operator's word leads, are not counted.
2. After a dial that failed its host is left alone for `PAUSE` seconds, each further time twice as long, `LONGEST` at
   most. Who answers with another key than the expected one has failed. A success ends it.
3. A subnet (p2p/limits/subnets.py) may cost `FAILURES` failures at once, then one in `FAILURE_EACH` seconds.
4. An address at which its peer was reached before is held back by rule 1 alone, until it fails: else a liar who names
   the host of an honest peer could have it left alone.
5. A host of a private network is one with its port: many nodes share it, and strangers cannot be reached there. Through
   a relay that is connected nobody else is dialled; only the pair of relay and peer is counted.

Pure: `now` in seconds, of a monotonic clock.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from p2p.errors import Unreachable
from p2p.limits.subnets import subnet_of
from p2p.limits.token_bucket import KEPT, TokenBucket, TokenBuckets
from p2p.multiaddr import address_of
from runtime.backoff import Backoff
from runtime.figures import figure

BURST: Final = 32.0
RATE: Final = 0.5
PAUSE: Final = 30.0
LONGEST: Final = 600.0
FAILURES: Final = 4.0
FAILURE_EACH: Final = 120.0
_PAUSES: Final = Backoff(PAUSE, LONGEST)


class DialLimited(Unreachable):
    """Not dialled, because of these limits. `seconds`: until it may be."""

    def __init__(self, address: str, seconds: float) -> None:
        super().__init__(f"{address} is left alone for {figure(seconds)} s")
        self.seconds = seconds


class _Pause(NamedTuple):
    until: float
    term: float


class DialBackoff:
    """Ask before each dial, and tell what came of it."""

    def __init__(self) -> None:
        self._all = TokenBucket(RATE, BURST)
        self._subnets = TokenBuckets(1 / FAILURE_EACH, FAILURES)
        self._pauses: dict[str, _Pause] = {}
        self._reached: dict[str, None] = {}

    def admit(self, address: str, now: float, connected: Collection[str] = ()) -> None:
        """Count a dial. `connected`: peer ids. Raises `DialLimited`, and counts nothing then."""
        wait = self._all.delay(1, now)
        if address not in self._reached:
            host, subnet = _backoff_key(address, connected)
            pause = self._pauses.get(host)
            wait = max(wait, pause.until - now if pause is not None else 0.0)
            wait = max(wait, self._subnets.delay(subnet, now) if subnet is not None else 0.0)
        if wait > 0:
            raise DialLimited(address, wait)
        self._all.consume(1, now)

    def failed(self, address: str, now: float, connected: Collection[str] = ()) -> None:
        """Nobody answered there, or somebody else."""
        self._reached.pop(address, None)
        host, subnet = _backoff_key(address, connected)
        before = self._pauses.pop(host, None)
        # Who was left alone, and alone for as long again, starts anew.
        again = before is not None and now < before.until + before.term
        term = _PAUSES.after(before.term if before is not None and again else 0.0)
        self._pauses[host] = _Pause(now + term, term)
        if len(self._pauses) > KEPT:
            del self._pauses[next(iter(self._pauses))]
        if subnet is not None:
            self._subnets.consume(subnet, now)

    def reached(self, address: str, connected: Collection[str] = ()) -> None:
        """The expected peer answered there."""
        self._pauses.pop(_backoff_key(address, connected)[0], None)
        self._reached.pop(address, None)
        self._reached[address] = None
        if len(self._reached) > KEPT:
            del self._reached[next(iter(self._reached))]


def _backoff_key(address: str, connected: Collection[str]) -> tuple[str, str | None]:
    """What is left alone after a failure, and the subnet that it costs (rule 5)."""
    parsed = address_of(address)
    if parsed.relay is not None and parsed.relay in connected:
        return f"{parsed.relay}/{parsed.peer}", None
    subnet = subnet_of(parsed.host)
    if subnet is not None or parsed.kind not in ("ip4", "ip6"):
        return parsed.host, subnet
    return parsed.endpoint, None
