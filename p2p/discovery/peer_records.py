"""Signed peer records: addresses at which a peer can be dialled, signed by that peer.

Rules
1. A record is sealed (kind "peer", p2p/envelope.py) by exactly one key, the peer's own. Every address in it ends in the
   signer's peer id.
2. A record has at most `MOST_RECORD_BYTES` bytes and `MOST_RECORD_ADDRESSES` addresses. Each is dialable
   (`is_dialable`): IP and TCP, directly or through a relay. None has a DNS name: whoever owns a wildcard name could aim
   any number of hosts at one machine.
3. Of a peer's records the one issued last counts. By the run's clock, a record expires `RECORD_LIFE_MS` after its
   issue, and one issued more than `RECORD_SKEW_MS` in the future is refused.
4. A record is passed on unchanged. A node dials only addresses from records, the invite, a signed Head, and those that
   it reached before. The same ports are closed to all of them (`is_open_port`, p2p/multiaddr.py).
5. A record may contain third parties' addresses, so it proves nothing, and so may a Head whose key was stolen. The
   handshake must show the expected key, and dials are limited (p2p/limits/dial_backoff.py).
6. Addresses of the operator, in an invite or a Head, may also have a name for a host, and lead to HTTPS.

Pure. Times are milliseconds on the coordinator's clock, as everywhere.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.p2p.discovery.messages import PeerRecord
from echo2.p2p.envelope import decode_unverified, seal, verify_envelope
from echo2.p2p.errors import BadSignature, Malformed, Stale
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.multiaddr import PARSED_ADDRESSES, Address, address_of, is_open_port, is_short
from echo2.p2p.wire_types import decode, encode
from echo2.runtime.figures import figure

KIND: Final = "peer"
MOST_RECORD_BYTES: Final = 4096
MOST_RECORD_ADDRESSES: Final = 8
RECORD_LIFE_MS: Final = 24 * 3_600_000
RECORD_RENEWAL_MS: Final = RECORD_LIFE_MS // 3
"""Milliseconds after which a peer renews its unchanged record."""
RECORD_SKEW_MS: Final = 600_000
MOST_RECORDS: Final = 1024
"""Most records in a `RecordBook`; the one received longest ago is dropped first."""


class VerifiedRecord(NamedTuple):
    """A decoded record with a verified signature. `sealed`: its bytes."""

    peer: str
    addresses: tuple[str, ...]
    issued: int
    sealed: bytes


def verify(sealed: bytes, run: bytes, now: int) -> VerifiedRecord:
    """Verify a record received from any peer. Raises `Malformed`, `BadSignature`, `Stale`."""
    known = decode_own(sealed)
    verify_envelope(sealed, KIND, run, [decode_unverified(sealed).signatures[0].key])
    if known.issued > now + RECORD_SKEW_MS:
        raise Stale(f"peer record of {known.peer} issued {figure((known.issued - now) / 1000)} s in the future")
    if has_expired(known, now):
        raise Stale(f"peer record of {known.peer} expired")
    return known


def decode_own(sealed: bytes) -> VerifiedRecord:
    """Decode a record and check its addresses, but not its signature: for records on this peer's own disk, which were
    verified before they were stored. Raises `Malformed`, and `BadSignature` unless there is exactly one signature."""
    if len(sealed) > MOST_RECORD_BYTES:
        raise Malformed(f"a peer record of {len(sealed)} bytes")
    envelope = decode_unverified(sealed)
    if len(envelope.signatures) != 1:
        raise BadSignature(f"a peer record with {len(envelope.signatures)} signatures")
    peer = peer_id(envelope.signatures[0].key)
    record = decode(envelope.payload, PeerRecord)
    for address in record.addresses:
        if not is_dialable(address, peer):
            raise Malformed(f"peer record of {peer} with {address[:80]!r}, an address that must not be dialled")
    return VerifiedRecord(peer, tuple(record.addresses), record.issued, sealed)


def has_expired(known: VerifiedRecord, now: int) -> bool:
    """Tell whether a record has expired (rule 3)."""
    return now >= known.issued + RECORD_LIFE_MS


def is_dialable(address: str, peer: str) -> bool:
    """Tell whether an address is of a permitted kind (rule 2), and ends in `peer`."""
    return _known_dialable(address, peer) if is_short(address) else _dialable(address, peer)


def _dialable(address: str, peer: str) -> bool:
    parsed = address_of(address)
    match parsed.components:
        case (_, _, ("p2p", end)):
            return end == peer and is_open_port(parsed.port) and _is_machine(parsed)
        case (_, _, ("p2p", relay), ("p2p-circuit", _), ("p2p", end)):
            return end == peer and relay not in ("", peer) and is_open_port(parsed.port) and _is_machine(parsed)
    return False


_known_dialable = lru_cache(maxsize=PARSED_ADDRESSES)(_dialable)


def is_dialable_of_operator(address: str) -> bool:
    """Tell whether an address of an invite or a Head may be dialled (rules 4 and 6). One of the in-memory network has
    no host."""
    parsed = address_of(address)
    match parsed.components:
        case (_, _, ("p2p", _)) | (_, _, ("p2p", _), ("p2p-circuit", _), ("p2p", _)):
            pass
        case (_, _, ("https", _)) | (_, _, ("https", _), ("p2p", _)):
            pass
        case _:
            return parsed.kind == "memory"
    return is_open_port(parsed.port) and (parsed.is_named or _is_machine(parsed))


def _is_machine(parsed: Address) -> bool:
    """Tell whether the host is the IP address of one machine, not limited to the dialler's own link. Loopback counts:
    nodes on the same machine connect over it."""
    if (ip := parsed.ip) is None or "%" in parsed.host:
        return False
    nowhere = ip.is_unspecified or ip.is_multicast or ip.is_link_local
    return not nowhere and not (ip.version == 4 and ip.is_reserved)


class RecordIssuer:
    """Issues the records of one peer."""

    def __init__(self, key: Ed25519PrivateKey, run: bytes) -> None:
        self._key = key
        self._run = run
        self._peer = peer_id(public_bytes(key))
        self._last: VerifiedRecord | None = None

    def issue(self, addresses: Sequence[str], now: int) -> bytes:
        """Return a record of the dialable ones of these addresses: the last one while it is valid, else a new one."""
        usable = tuple(address for address in addresses if is_dialable(address, self._peer))[:MOST_RECORD_ADDRESSES]
        last = self._last
        if last is None or last.addresses != usable or self.due(now):
            # Peers refused a record from more than SKEW ahead (a wrong clock): the next one may bear an earlier time.
            after = last.issued + 1 if last is not None and last.issued <= now + RECORD_SKEW_MS else 0
            record = PeerRecord(addresses=list(usable), issued=max(now, after))
            sealed = seal(KIND, self._run, encode(record), self._key)
            last = self._last = VerifiedRecord(self._peer, usable, record.issued, sealed)
        return last.sealed

    def due(self, now: int) -> bool:
        """Tell whether the last record must be renewed: it is old, or was issued under a wrong clock."""
        last = self._last
        return last is not None and not last.issued - RECORD_SKEW_MS <= now < last.issued + RECORD_RENEWAL_MS


class RecordBook:
    """The newest record of each peer, of those received."""

    def __init__(self, run: bytes) -> None:
        self._run = run
        self._known: dict[str, VerifiedRecord] = {}

    def take(self, sealed: bytes, now: int) -> VerifiedRecord:
        """Verify and store a record; return the newest record of its signer. Raises as `verify`."""
        return self.hold(verify(sealed, self._run, now))

    def hold(self, known: VerifiedRecord) -> VerifiedRecord:
        """Store a verified record, unless the stored one is newer; return the one that is then stored (rule 3)."""
        previous = self._known.pop(known.peer, known)
        newest = self._known[known.peer] = known if known.issued > previous.issued else previous
        if len(self._known) > MOST_RECORDS:
            del self._known[next(iter(self._known))]
        return newest

    def of(self, peer: str) -> VerifiedRecord | None:
        """Return the record of one peer; None where there is none."""
        return self._known.get(peer)

    def newest(self, most: int) -> list[VerifiedRecord]:
        """Return the last `most` records received, the latest first."""
        return list(reversed(self._known.values()))[:most]
