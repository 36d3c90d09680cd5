"""Limits on dials to addresses learnt from others, so that they cannot be turned into a DDoS. Pure: `now` in seconds,
monotonic.

Rules
1. `DIAL_BURST` dials at once, then `DIALS_PER_SECOND` per second, over all hosts.
2. After a failed dial its host is not dialled for `DIAL_PAUSE_SECONDS` seconds; each further failure doubles that, to
   at most `LONGEST_DIAL_PAUSE_SECONDS`. An answer with another key than the expected one is a failure. A success ends
   the backoff.
3. A subnet (p2p/limits/party.py) may cause `FAILURES` failures at once, then one per `FAILURE_EACH` seconds.
4. An address at which its peer was reached before is limited by rule 1 alone, until it fails. Otherwise false records
   that name an honest peer's host could block dials to it.
5. A host in a private network is identified with its port: many nodes share it, and no third party can be reached
   there. A dial through a connected relay reaches no other host, so only the pair of relay and peer is counted.
6. The operator's addresses, in an invite or a Head, have limits of their own, `OPERATOR_HASTE` times as fast: false
   records block none of them. Each host is identified with its port, since one that is closed tells nothing of HTTPS
   beside it. All names count as one subnet, and so do all private hosts, with `OPERATOR_FAILURES` failures at once: the
   machines behind a name change at its owner's will, and a stolen channel key could name any.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from echo2.p2p.errors import Unreachable
from echo2.p2p.limits.party import subnet_of
from echo2.p2p.limits.token_bucket import MOST_BUCKETS, TokenBucket, TokenBuckets
from echo2.p2p.multiaddr import address_of
from echo2.runtime.backoff import Backoff
from echo2.runtime.figures import figure

DIAL_BURST: Final = 32.0
DIALS_PER_SECOND: Final = 0.5
DIAL_PAUSE_SECONDS: Final = 30.0
LONGEST_DIAL_PAUSE_SECONDS: Final = 600.0
FAILURES: Final = 4.0
FAILURE_EACH: Final = 120.0
OPERATOR_HASTE: Final = 10.0
OPERATOR_FAILURES: Final = 8.0


class DialLimited(Unreachable):
    """A dial refused by these limits. `seconds`: seconds until it is allowed."""

    def __init__(self, address: str, seconds: float) -> None:
        super().__init__(f"not dialling {address} for {figure(seconds)} s (backoff)")
        self.seconds = seconds


class _Pause(NamedTuple):
    until: float
    term: float


class DialBackoff:
    """The state of these limits: `admit` precedes each dial, `on_success` or `on_failure` reports its outcome."""

    def __init__(self, *, of_operator: bool = False) -> None:
        """`of_operator`: the addresses are the operator's (rule 6)."""
        haste = OPERATOR_HASTE if of_operator else 1.0
        self._of_operator = of_operator
        self._all = TokenBucket(haste * DIALS_PER_SECOND, DIAL_BURST)
        self._subnets = TokenBuckets(haste / FAILURE_EACH, OPERATOR_FAILURES if of_operator else FAILURES)
        self._terms = Backoff(DIAL_PAUSE_SECONDS / haste, LONGEST_DIAL_PAUSE_SECONDS / haste)
        self._pauses: dict[str, _Pause] = {}
        self._reached: dict[str, None] = {}

    def admit(self, address: str, now: float, connected: Collection[str] = ()) -> None:
        """Count a dial. `connected`: ids of connected peers. Raises `DialLimited` without counting."""
        wait = self._all.delay(1, now)
        if address not in self._reached:
            host, subnet = self._key(address, connected)
            pause = self._pauses.get(host)
            wait = max(wait, pause.until - now if pause is not None else 0.0)
            wait = max(wait, self._subnets.delay(subnet, now) if subnet is not None else 0.0)
        if wait > 0:
            raise DialLimited(address, wait)
        self._all.consume(1, now)

    def on_failure(self, address: str, now: float, connected: Collection[str] = ()) -> None:
        """Note that no peer, or another than the expected one, answered there."""
        self._reached.pop(address, None)
        host, subnet = self._key(address, connected)
        before = self._pauses.pop(host, None)
        # A host without another failure for twice its pause starts afresh.
        again = before is not None and now < before.until + before.term
        term = self._terms.after(before.term if before is not None and again else 0.0)
        self._pauses[host] = _Pause(now + term, term)
        if len(self._pauses) > MOST_BUCKETS:
            del self._pauses[next(iter(self._pauses))]
        if subnet is not None:
            self._subnets.consume(subnet, now)

    def on_success(self, address: str, connected: Collection[str] = ()) -> None:
        """Note that the expected peer answered there."""
        self._pauses.pop(self._key(address, connected)[0], None)
        self._reached.pop(address, None)
        self._reached[address] = None
        if len(self._reached) > MOST_BUCKETS:
            del self._reached[next(iter(self._reached))]

    def _key(self, address: str, connected: Collection[str]) -> tuple[str, str | None]:
        """Return the key under which a failure is stored, and the subnet that is charged for it (rules 5 and 6)."""
        parsed = address_of(address)
        if parsed.relay is not None and parsed.relay in connected:
            return f"{parsed.relay}/{parsed.peer}", None
        subnet = subnet_of(parsed.host)
        if self._of_operator:
            return parsed.endpoint, subnet or ("names" if parsed.is_named else "private")
        if subnet is not None or parsed.kind not in ("ip4", "ip6"):
            return parsed.host, subnet
        return parsed.endpoint, None
