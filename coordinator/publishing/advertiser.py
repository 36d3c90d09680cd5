"""Where this coordinator is reached, and how nodes come to know it.

Rules
1. Its addresses are those of the settings, else those that the network really has (coordinator/run/https_identity.py);
   the invite and every Head carry them. They are looked at again with each tick, and a change is told at once.
2. After a start nodes of an earlier life are dialled: they learn that the coordinator is back, and where. Who does not
   answer is tried again later, as its own network may not be up yet.
3. A relay that the operator named is tried until it takes the coordinator.
4. On a private network the run is announced (rules: p2p/discovery/mdns.py).
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from coordinator.run import https_identity
from coordinator.run.setup import Run
from p2p.discovery import mdns
from p2p.discovery.dialer import PeerDialer
from p2p.discovery.invite import Invite
from p2p.discovery.peer_records import VerifiedRecord
from p2p.errors import Unreachable
from p2p.multiaddr import peer_of
from p2p.network import Inbound, Links
from runtime.errors import LocalFault

REDIALS = (0.0, 35.0, 70.0)
"""Seconds before each attempt at nodes of an earlier life; p2p/limits/dial_backoff.py leaves who did not answer alone
so long."""
RELAY_RETRY = 30.0
"""Seconds between two attempts at a relay that does not answer."""

log = structlog.get_logger("coordinator")


class Advertiser:
    """`known`: records of nodes that were here, as of a time. `now`: milliseconds since the Unix epoch."""

    def __init__(
        self,
        run: Run,
        links: Links,
        inbound: Inbound,
        known: Callable[[int], Sequence[VerifiedRecord]],
        now: Callable[[], int],
    ) -> None:
        self._run, self._links, self._inbound = run, links, inbound
        self._known, self._now = known, now
        self._reached: list[str] | None = None
        self._invited: tuple[list[str] | None, str] = (None, "")

    async def addresses(self) -> list[str]:
        """Where nodes reach this coordinator."""
        return https_identity.reached(self._run.config, self._run.peer_id, await self._inbound.addresses())

    async def invite(self) -> str:
        """The invite with the addresses of this moment. It is shown every second, and spelled when they change."""
        if (reached := await self.addresses()) != self._invited[0]:
            self._invited = (reached, self._run.invite(await self._inbound.addresses()))
        return self._invited[1]

    async def moved(self) -> bool:
        """Whether the addresses have changed since this was last asked."""
        before, self._reached = self._reached, await self.addresses()
        if before in (None, self._reached):
            return False
        log.info("addresses changed", addresses=self._reached)
        return True

    async def run(self) -> None:
        """Rules 2 to 4, once the network is ready. Ends when there is nothing more to do."""
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
        waiting: dict[str, list[str]] = {}
        for address in self._run.config.network.relays:
            waiting.setdefault(peer_of(address), []).append(address)
        while waiting:
            for relay, addresses in list(waiting.items()):
                try:
                    await self._inbound.reserve(addresses)
                    del waiting[relay]
                    log.info("reachable through a relay", relay=relay)
                except Unreachable as error:
                    log.warning("a relay does not take this coordinator", relay=relay, reason=str(error))
            await asyncio.sleep(RELAY_RETRY)

    async def _announce(self) -> None:
        invite = Invite.from_text(await self.invite())
        hosts = mdns.private(invite.addresses)
        if not (self._run.config.network.mdns and hosts):
            return
        try:
            await mdns.announce(mdns.Announcement(name=self._run.config.run.name, invite=invite), hosts)
        except LocalFault as error:
            log.warning("no announcement", reason=str(error))
