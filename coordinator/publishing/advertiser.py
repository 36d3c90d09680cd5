"""Advertise the coordinator's addresses: in the invite and every Head, by redialling known nodes, and over mDNS.

Rules
1. The addresses are those of the settings, else the network's actual ones (coordinator/run/https_identity.py). The
   invite and every Head carry them. The daemon compares them at each tick, and announces a change at once.
2. After a start the nodes known from before it are dialled, so that they learn the coordinator's addresses. Nodes that
   do not answer are tried again later, because their own network may not be up yet.
3. Reservations at the relays of the settings are retried until each succeeds.
4. On a private network the run is announced over mDNS (rules: p2p/discovery/mdns.py).
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from echo2.coordinator.run import https_identity
from echo2.coordinator.run.setup import Run
from echo2.p2p.discovery import mdns
from echo2.p2p.discovery.dialer import PeerDialer
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.discovery.peer_records import VerifiedRecord
from echo2.p2p.errors import Unreachable
from echo2.p2p.multiaddr import peer_of
from echo2.p2p.network import Inbound, Links
from echo2.runtime.errors import LocalFault

REDIALS = (0.0, 35.0, 70.0)
"""Seconds before each round of dials to known nodes, above the backoff of 30 and 60 s (p2p/limits/dial_backoff.py)."""
RELAY_RETRY = 30.0
"""Seconds between two reservation attempts at a relay, and two looks at which relays the settings name."""

log = structlog.get_logger("coordinator")


class Advertiser:
    """The coordinator's addresses and their announcements. `known`: returns the records of nodes seen before that are
    valid at a time. `now`: milliseconds since the Unix epoch."""

    def __init__(
        self,
        run: Run,
        links: Links,
        inbound: Inbound,
        known: Callable[[int], Sequence[VerifiedRecord]],
        now: Callable[[], int],
    ) -> None:
        self._run = run
        self._links = links
        self._inbound = inbound
        self._known = known
        self._now = now
        self._reached: list[str] | None = None
        self._invited: tuple[list[str] | None, str] = (None, "")

    async def addresses(self) -> list[str]:
        """Return the addresses under which nodes reach this coordinator."""
        return https_identity.reachable_addresses(self._run.config, self._run.peer_id, await self._inbound.addresses())

    async def invite(self) -> str:
        """Return the invite with the present addresses. It is cached until they change: the page reads it every
        second."""
        if (reached := await self.addresses()) != self._invited[0]:
            self._invited = (reached, self._run.invite(await self._inbound.addresses()))
        return self._invited[1]

    async def has_moved(self) -> bool:
        """Tell whether the addresses have changed since the last call."""
        before, self._reached = self._reached, await self.addresses()
        if before in (None, self._reached):
            return False
        log.info("addresses changed", addresses=self._reached)
        return True

    async def run(self) -> None:
        """Redial known nodes, reserve at relays and announce over mDNS, until cancelled. Start it once the network is
        ready."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._redial(), name="redial")
            group.create_task(self._reserve(), name="reserve")
            group.create_task(self._announce(), name="announce")

    async def _redial(self) -> None:
        dialer = PeerDialer(self._links, self._run.id, self._now)
        for wait in REDIALS:
            await asyncio.sleep(wait)
            connected = set(await self._links.peers())
            for known in self._known(self._now()):
                if known.peer not in connected:
                    await dialer.dial_any(known.addresses)

    async def _reserve(self) -> None:
        """Keep a place at each relay of the settings, which may change meanwhile."""
        reserved: dict[str, list[str]] = {}
        while True:
            wanted: dict[str, list[str]] = {}
            for address in self._run.config.network.relays:
                wanted.setdefault(peer_of(address), []).append(address)
            for relay in reserved.keys() - wanted.keys():
                await self._inbound.release(relay)
                del reserved[relay]
            for relay, addresses in wanted.items():
                if reserved.get(relay) == addresses:
                    continue
                try:
                    await self._inbound.reserve(addresses)
                    reserved[relay] = addresses
                    log.info("reachable through a relay", relay=relay)
                except Unreachable as error:
                    log.warning("relay reservation failed", relay=relay, reason=str(error))
            await asyncio.sleep(RELAY_RETRY)

    async def _announce(self) -> None:
        invite = Invite.from_text(await self.invite())
        hosts = mdns.private(invite.addresses)
        if not (self._run.config.network.mdns and hosts):
            return
        try:
            await mdns.announce(mdns.Announcement(name=self._run.config.run.name, invite=invite), hosts)
        except LocalFault as error:
            log.warning("mDNS announcement failed", reason=str(error))
