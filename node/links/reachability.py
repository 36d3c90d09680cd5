"""How others reach this node, found out and kept up. Its addresses in the greeting come from here.

Rules
1. The relays that the owner named are always used.
2. Once the coordinator is there, it is asked to dial back (p2p/discovery/dial_back.py): again when this machine's
   addresses change, and every `AGAIN` seconds. If it gets through, the address that it saw is announced beside the own
   ones.
3. If it does not, or if this node itself came through a relay, a reservation is made: at the coordinator, else at the
   first peer that grants one. Addresses through relays are then announced first, since dialling the others costs time.
4. Announced addresses that changed are told to the coordinator by greeting it again: so a node that moved to another
   network is found there, and a laptop that woke up is too. So is a record of them (p2p/discovery/peer_records.py) that
   ages.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from p2p.discovery.dial_back import ports_of
from p2p.discovery.messages import ReachableRequest
from p2p.discovery.peer_records import RecordIssuer
from p2p.errors import Busy, P2PError, Unreachable
from p2p.local_addresses import dialable
from p2p.multiaddr import peer_of, route_of, tcp
from p2p.network import Inbound, Links, Rpc
from protocol.methods import REACHABLE

AGAIN: Final = 600.0
"""Seconds from one question to the next while nothing changes."""
LOOK: Final = 5.0
"""Seconds between two looks at this machine's addresses."""
PATIENCE: Final = 15.0
_PEERS: Final = 4
"""Peers that are asked for a reservation when the coordinator gives none."""

_log = structlog.get_logger("node")


class Reachability:
    """`summary`: one sentence for people, how this node is reached."""

    def __init__(
        self,
        rpc: Rpc,
        links: Links,
        inbound: Inbound,
        *,
        relays: list[str],
        coordinator: Callable[[], str | None],
        candidates: Callable[[], list[str]],
        changed: Callable[[str], None],
        own: RecordIssuer,
        now: Callable[[], int],
    ) -> None:
        """`relays`: addresses that the owner named. `coordinator`: its peer id while the line stands. `candidates`:
        addresses of whom to ask for a reservation, the coordinator's first. `changed`: told that `addresses` did.
        `now`: the run's clock, milliseconds."""
        self._rpc, self._links, self._inbound, self._named = rpc, links, inbound, relays
        self._coordinator, self._candidates, self._changed = coordinator, candidates, changed
        self._own, self._now = own, now
        self._external: list[str] = []
        self._asked_about: list[str] | None = None
        self._announced: list[str] | None = None
        self._relay: str | None = None
        self.summary = "not known yet"

    async def addresses(self) -> list[str]:
        """Where others can dial this node; the most promising first."""
        own = await self._inbound.addresses()
        circuits = [address for address in own if route_of(address) == "relay"]
        direct = [address for address in own if route_of(address) != "relay"]
        self._announced = dialable([*circuits, *self._external, *direct], self._links.peer_id)
        return self._announced

    async def record(self) -> bytes:
        """Signed by this node: where others can dial it."""
        return self._own.issue(await self.addresses(), self._now())

    async def run(self) -> None:
        """Until cancelled."""
        for relay in self._named:
            await self._reserve(_same_peer(self._named, relay))
        asked_at = 0.0
        loop = asyncio.get_running_loop()
        while True:
            peer, listening = self._coordinator(), await self._inbound.addresses()
            here = dialable([one for one in listening if route_of(one) != "relay"], self._links.peer_id)
            if peer is not None and (here != self._asked_about or loop.time() >= asked_at + AGAIN):
                self._asked_about, asked_at = here, loop.time()
                await self._find_out(peer)
            await self._tell()
            await asyncio.sleep(LOOK)

    async def _find_out(self, coordinator: str) -> None:
        """Rules 2 and 3."""
        try:
            ports = ports_of(await self._inbound.addresses())
            relayed = await self._links.route(coordinator) == "relay"
            answer = await REACHABLE.ask(self._rpc, coordinator, ReachableRequest(ports=ports), timeout=PATIENCE)
            seen = answer.observed
            own = [tcp(seen, port, self._links.peer_id) for port in answer.ports] if seen else []
        except Busy as busy:
            self._asked_about = None
            self.summary = f"not known yet: the coordinator is asked again ({busy})"
            return
        except P2PError as error:
            self.summary = f"not known: the coordinator does not say ({error})"
            return
        self._external = own
        if own:
            self.summary = f"directly, at {', '.join(own)}"
            await self._release()
        elif relayed:
            await self._find_relay("this node itself came through a relay")
        elif seen is not None:
            await self._find_relay(f"no port of this node answers at {seen}")
        else:
            self.summary = "not known: the coordinator cannot see where this node connects from"

    async def _find_relay(self, why: str) -> None:
        reasons = []
        candidates = [address for address in self._candidates() if route_of(address) == "direct"]
        peers = list(dict.fromkeys(map(peer_of, candidates)))
        for peer in peers[: 1 + _PEERS]:
            addresses = [address for address in candidates if peer_of(address) == peer]
            if peer != self._links.peer_id and (reason := await self._reserve(addresses)) is None:
                self._relay, self.summary = peer, f"through the relay {peer}: {why}"
                return
            reasons.append(reason)
        self.summary = f"by nobody: {why}, and no relay takes it ({next(filter(None, reasons), 'none is known')})"

    async def _reserve(self, addresses: list[str]) -> str | None:
        """Why not, or None."""
        try:
            await self._inbound.reserve(addresses)
        except Unreachable as error:
            _log.info("no relay", reason=str(error))
            return str(error)
        _log.info("reachable through a relay", relay=peer_of(addresses[0]))
        return None

    async def _release(self) -> None:
        """A reservation that is no longer needed."""
        if self._relay is not None:
            await self._inbound.release(self._relay)
            self._relay = None

    async def _tell(self) -> None:
        """Rule 4."""
        before = self._announced
        if before is not None and await self.addresses() != before:
            self._changed("this node's addresses changed")
        elif self._own.due(self._now()):
            self._changed("this node's record is to be issued anew")


def _same_peer(addresses: list[str], one: str) -> list[str]:
    return [address for address in addresses if peer_of(address) == peer_of(one)]
