"""Dial addresses learnt from others within the limits of p2p/limits/dial_backoff.py: those of peers are from their
signed records (p2p/discovery/peer_records.py)."""

from collections.abc import Callable, Collection, Iterable
from typing import Final

import anyio
import structlog

from echo2.p2p.discovery.peer_records import RecordBook, VerifiedRecord
from echo2.p2p.errors import P2PError, Unreachable
from echo2.p2p.limits.dial_backoff import DialBackoff, DialLimited
from echo2.p2p.multiaddr import peer_of
from echo2.p2p.network import Links

LIMITS_WAIT_SECONDS: Final = 5.0

_log = structlog.get_logger("p2p")


class LimitedDialer:
    """Dials addresses within limits, which it keeps."""

    def __init__(self, links: Links, backoff: DialBackoff) -> None:
        self._links, self._backoff = links, backoff

    async def dial(self, address: str, by: Links | None = None) -> str:
        """Dial one address; return the peer that answers, which is the expected one. `by`: other links to dial by.
        Raises `DialLimited` where the limits refuse the dial, and `P2PError`."""
        links = by or self._links
        connected, expected = await links.peers(), peer_of(address)
        self._backoff.admit(address, anyio.current_time(), connected)
        try:
            peer = await links.dial([address])
            if expected not in ("", peer):
                raise Unreachable(f"another peer answers at {address}")
        except P2PError:
            self.on_failure(address, connected)
            raise
        self._backoff.on_success(address, connected)
        return peer

    def on_failure(self, address: str, connected: Collection[str] = ()) -> None:
        """Note that no peer answers at an address, or a wrong one. `connected`: ids of connected peers."""
        self._backoff.on_failure(address, anyio.current_time(), connected)


class PeerDialer(LimitedDialer):
    """Dials peers by their records. `now`: the run's clock, milliseconds. `records`: the newest one per peer."""

    def __init__(self, links: Links, run: bytes, now: Callable[[], int]) -> None:
        super().__init__(links, DialBackoff())
        self._now = now
        self.records = RecordBook(run)

    def take(self, records: Iterable[bytes]) -> list[VerifiedRecord]:
        """Verify and store records; return the valid ones in order, each the newest of its peer."""
        verified = []
        for sealed in records:
            try:
                verified.append(self.records.take(sealed, self._now()))
            except P2PError as error:
                _log.debug("peer record refused", reason=str(error))
        return verified

    async def dial_any(self, addresses: Iterable[str]) -> bool:
        """Dial the addresses one after another until one is reached; return whether one was. Wait up to
        `LIMITS_WAIT_SECONDS` seconds per address for the limits."""
        for address in addresses:
            try:
                await self._patiently(address)
            except P2PError as error:
                _log.debug("peer not reached", address=address, reason=str(error))
            else:
                return True
        return False

    async def _patiently(self, address: str) -> None:
        try:
            await self.dial(address)
        except DialLimited as error:
            if error.seconds > LIMITS_WAIT_SECONDS:
                raise
            await anyio.sleep(error.seconds)
            await self.dial(address)
