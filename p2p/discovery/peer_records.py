"""Signed peer records: where a peer says that it can be dialled, in its own hand.

Rules
1. A record is sealed (kind "peer", p2p/envelope.py) by exactly one key, and that key is the peer: it speaks of nobody
   else, and every address in it ends in the signer's peer id.
2. At most `LIMIT` bytes and `MOST` addresses, each of a kind that is dialled (`is_dialable`): IP and TCP, directly or
   through a relay. No name that somebody would have to look up, unless it is a relay's.
3. Of a peer's records the one issued last counts. `LIFE` after it was issued, by the run's clock, a record is over; one
   from more than `SKEW` ahead is not taken.
4. It is passed on as it came. Whoever holds one may dial the addresses in it and no others, except those of the invite,
   of a signed Head, and those that it reached itself.
5. A record may name anybody's address. So it proves nothing: the handshake there must show the signer's key, and how
   much is dialled on others' say-so is bounded (p2p/limits/dial_backoff.py).

Pure. Times are milliseconds on the coordinator's clock, as everywhere.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2p.discovery.messages import PeerRecord
from p2p.envelope import decode_unverified, seal, verify_envelope
from p2p.errors import BadSignature, Malformed, Stale
from p2p.identity import peer_id, public_bytes
from p2p.multiaddr import Address, address_of
from p2p.wire_types import decode, encode
from runtime.figures import figure

KIND: Final = "peer"
LIMIT: Final = 4096
MOST: Final = 8
LIFE: Final = 24 * 3_600_000
RENEW: Final = LIFE // 3
"""Milliseconds after which a peer issues its record anew, though nothing changed."""
SKEW: Final = 600_000
KEPT: Final = 1024
"""Peers of whom a `RecordBook` holds a record; who was heard of longest ago is forgotten first."""


class VerifiedRecord(NamedTuple):
    """A record that was read. `sealed`: its bytes."""

    peer: str
    addresses: tuple[str, ...]
    issued: int
    sealed: bytes


def verify(sealed: bytes, run: bytes, now: int) -> VerifiedRecord:
    """A record that a stranger gave. Raises `Malformed`, `BadSignature`, `Stale`."""
    known = decode_own(sealed)
    verify_envelope(sealed, KIND, run, [decode_unverified(sealed).signatures[0].key])
    if known.issued > now + SKEW:
        raise Stale(f"a record of {known.peer} from {figure((known.issued - now) / 1000)} s ahead")
    if expired(known, now):
        raise Stale(f"a record of {known.peer} that is over")
    return known


def decode_own(sealed: bytes) -> VerifiedRecord:
    """A record that was opened before, from this peer's own disk. Raises `Malformed`, `BadSignature`."""
    if len(sealed) > LIMIT:
        raise Malformed(f"a peer record of {len(sealed)} bytes")
    envelope = decode_unverified(sealed)
    if len(envelope.signatures) != 1:
        raise BadSignature(f"a peer record with {len(envelope.signatures)} signatures")
    peer = peer_id(envelope.signatures[0].key)
    record = decode(envelope.payload, PeerRecord)
    for address in record.addresses:
        if not is_dialable(address, peer):
            raise Malformed(f"{peer} names {address[:80]!r}, which nobody dials")
    return VerifiedRecord(peer, tuple(record.addresses), record.issued, sealed)


def expired(known: VerifiedRecord, now: int) -> bool:
    """Whether a record's life has ended."""
    return now >= known.issued + LIFE


@lru_cache(maxsize=4096)
def is_dialable(address: str, peer: str) -> bool:
    """Whether an address is of a kind that is dialled (rule 2), and leads to `peer`."""
    parsed = address_of(address)
    match parsed.components:
        case (_, _, ("p2p", end)):
            return end == peer and _is_open(parsed.port) and _is_machine(parsed)
        case (_, _, ("p2p", relay), ("p2p-circuit", _), ("p2p", end)):
            ends = end == peer and relay not in ("", peer)
            return ends and _is_open(parsed.port) and (parsed.is_named or _is_machine(parsed))
    return False


def _is_machine(parsed: Address) -> bool:
    """Whether the host is an IP address of one machine that may be anywhere but on the asker's own link. Loopback is a
    machine's own affair: nodes on one machine meet there."""
    if (ip := parsed.ip) is None or "%" in parsed.host:
        return False
    nowhere = ip.is_unspecified or ip.is_multicast or ip.is_link_local
    return not nowhere and not (ip.version == 4 and ip.is_reserved)


def _is_open(port: int | None) -> bool:
    """Refuse privileged ports except 443, so that a record cannot aim dials at system services."""
    return port is not None and (port >= 1024 or port == 443)


class RecordIssuer:
    """What a peer says of itself."""

    def __init__(self, key: Ed25519PrivateKey, run: bytes) -> None:
        self._key, self._run, self._peer = key, run, peer_id(public_bytes(key))
        self._last: VerifiedRecord | None = None

    def issue(self, addresses: Sequence[str], now: int) -> bytes:
        """The record of these addresses (those that nobody dials are left out): the last one while it is good."""
        usable = tuple(address for address in addresses if is_dialable(address, self._peer))[:MOST]
        last = self._last
        if last is None or last.addresses != usable or self.due(now):
            # One from too far ahead was taken by nobody: the clock was wrong, and nothing must come after it.
            after = last.issued + 1 if last is not None and last.issued <= now + SKEW else 0
            record = PeerRecord(addresses=list(usable), issued=max(now, after))
            last = self._last = VerifiedRecord(
                self._peer, usable, record.issued, seal(KIND, self._run, encode(record), self._key)
            )
        return last.sealed

    def due(self, now: int) -> bool:
        """Whether the last record wants to be issued anew: it ages, or was made with a wrong clock."""
        return self._last is not None and not self._last.issued - SKEW <= now < self._last.issued + RENEW


class RecordBook:
    """The newest record of each peer that this one was told of."""

    def __init__(self, run: bytes) -> None:
        self._run = run
        self._known: dict[str, VerifiedRecord] = {}

    def take(self, sealed: bytes, now: int) -> VerifiedRecord:
        """The newest record of the one who signed this. Raises as `verify`."""
        return self.hold(verify(sealed, self._run, now))

    def hold(self, known: VerifiedRecord) -> VerifiedRecord:
        """Rule 3: the newer one of this and the one held."""
        previous = self._known.pop(known.peer, known)
        newest = self._known[known.peer] = known if known.issued > previous.issued else previous
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]
        return newest

    def of(self, peer: str) -> VerifiedRecord | None:
        """The record of one peer."""
        return self._known.get(peer)

    def newest(self, most: int) -> list[VerifiedRecord]:
        """Who was heard of last comes first."""
        return list(reversed(self._known.values()))[:most]
