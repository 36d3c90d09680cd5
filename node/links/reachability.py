"""The addresses at which peers can reach this node: found out, kept reachable, and signed for the greeting.

Rules
1. From its start on, the node reserves a slot at each relay that the owner named. A relay that grants none is asked
   again after growing pauses.
2. The connected coordinator is asked to dial back (p2p/discovery/dial_back.py): at first, when this machine's addresses
   change, and every `DIAL_BACK_AGAIN_SECONDS` seconds. If a dial succeeds, the address that the coordinator saw is
   announced beside the local ones.
3. If no dial succeeds, or this node itself reached the coordinator through a relay, the node reserves a slot at a
   relay. It asks the coordinator first, then peers, until one grants a slot; those that are not connected it dials
   within the limits for addresses learnt from others. Addresses through relays are then announced first, because
   dialling the others costs time.
4. The node greets the coordinator again when the announced addresses change, or when their signed record
   (p2p/discovery/peer_records.py) is due for renewal. So a node on a new network, or a laptop after sleep, is found.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from echo2.p2p.discovery.dial_back import ports_of
from echo2.p2p.discovery.messages import ReachableRequest
from echo2.p2p.discovery.peer_records import RecordIssuer
from echo2.p2p.errors import Busy, P2PError, Unreachable
from echo2.p2p.local_addresses import dialable
from echo2.p2p.multiaddr import peer_of, route_of, tcp
from echo2.p2p.network import Inbound, Links, Rpc
from echo2.protocol.methods import REACHABLE
from echo2.runtime.backoff import Backoff

DIAL_BACK_AGAIN_SECONDS: Final = 600.0
"""Seconds between two requests to dial back while no address changes."""
ADDRESS_POLL_SECONDS: Final = 5.0
"""Seconds between two checks of this machine's addresses."""
DIAL_BACK_ANSWER_SECONDS: Final = 15.0
"""Seconds to wait for the answer to a request to dial back."""
RELAY_BACKOFF: Final = Backoff(1.0, 60.0)
"""Seconds between two attempts at a relay that the owner named."""
_PEERS: Final = 4
"""Peers to ask for a reservation when the coordinator grants none."""

_log = structlog.get_logger("node")


@dataclass(frozen=True)
class RelaySources:
    """The relays to try. `named`: addresses that the owner set. `candidates`: returns the addresses of other possible
    relays, the coordinator's first. `dial`: dials a candidate within limits. Raises `P2PError`."""

    named: list[str]
    candidates: Callable[[], list[str]]
    dial: Callable[[str], Awaitable[str]]


class Reachability:
    """The addresses at which peers can dial this node. `summary`: the same in one sentence for people. `on_change`:
    called with a reason when the coordinator is to be greeted again (rule 4)."""

    def __init__(
        self,
        rpc: Rpc,
        links: Links,
        inbound: Inbound,
        relays: RelaySources,
        issuer: RecordIssuer,
        *,
        coordinator: Callable[[], str | None],
        now: Callable[[], int],
    ) -> None:
        """`coordinator`: returns its peer id while connected. `now`: the run's clock, milliseconds."""
        self._rpc, self._links, self._inbound = rpc, links, inbound
        self._relays, self._issuer = relays, issuer
        self._coordinator, self._now = coordinator, now
        self.on_change: Callable[[str], None] = lambda reason: None
        self._external: list[str] = []
        self._asked_about: list[str] | None = None
        self._announced: list[str] | None = None
        self._relay: str | None = None
        self.summary = "not known yet"

    async def addresses(self) -> list[str]:
        """Return the addresses at which peers can dial this node, the most promising first."""
        own = await self._inbound.addresses()
        circuits = [address for address in own if route_of(address) == "relay"]
        direct = [address for address in own if route_of(address) != "relay"]
        self._announced = dialable([*circuits, *self._external, *direct], self._links.peer_id)
        return self._announced

    async def record(self) -> bytes:
        """Issue a signed record of `addresses`."""
        return self._issuer.issue(await self.addresses(), self._now())

    async def run(self) -> None:
        """Keep this node reachable until cancelled."""
        async with asyncio.TaskGroup() as group:
            for relay in self._named_relays():
                group.create_task(self._reserve_named(_of_peer(self._relays.named, relay)))
            group.create_task(self._keep_known())

    async def _reserve_named(self, addresses: list[str]) -> None:
        """Reserve at a relay that the owner named; try until it grants a slot (rule 1)."""
        failures = 0
        while await self._reserve(addresses) is not None:
            failures += 1
            await asyncio.sleep(RELAY_BACKOFF.delay(failures))

    async def _keep_known(self) -> None:
        """Find out how peers can dial this node, and tell the coordinator, until cancelled (rules 2 to 4)."""
        asked_at = 0.0
        loop = asyncio.get_running_loop()
        while True:
            peer, listening = self._coordinator(), await self._inbound.addresses()
            here = dialable([one for one in listening if route_of(one) != "relay"], self._links.peer_id)
            if peer is not None and (here != self._asked_about or loop.time() >= asked_at + DIAL_BACK_AGAIN_SECONDS):
                self._asked_about, asked_at = here, loop.time()
                await self._find_out(peer)
            await self._tell()
            await asyncio.sleep(ADDRESS_POLL_SECONDS)

    async def _find_out(self, coordinator: str) -> None:
        """Ask the coordinator to dial back, and reserve at a relay if it cannot (rules 2 and 3)."""
        try:
            ports = ports_of(await self._inbound.addresses())
            relayed = (await self._links.routes()).get(coordinator) == "relay"
            answer = await REACHABLE.ask(
                self._rpc, coordinator, ReachableRequest(ports=ports), timeout=DIAL_BACK_ANSWER_SECONDS
            )
            seen = answer.observed
            own = [tcp(seen, port, self._links.peer_id) for port in answer.ports] if seen else []
        except Busy as busy:
            self._asked_about = None
            self.summary = f"not known yet: the coordinator is busy, and will be asked again ({busy})"
            return
        except P2PError as error:
            self.summary = f"not known: the coordinator did not answer ({error})"
            return
        self._external = own
        if own:
            self.summary = f"directly, at {', '.join(own)}"
            await self._release()
        elif relayed:
            await self._find_relay("this node itself is connected through a relay")
        elif seen is not None:
            await self._find_relay(f"no port of this node answers at {seen}")
        else:
            self.summary = "not known: the coordinator cannot see this node's IP address"

    async def _find_relay(self, why: str) -> None:
        """Reserve at the first candidate that grants a slot (rule 3). `why`: why a relay is needed."""
        reasons = []
        candidates = [address for address in self._relays.candidates() if route_of(address) == "direct"]
        peers = [peer for peer in dict.fromkeys(map(peer_of, candidates)) if peer != self._links.peer_id]
        for peer in peers[: 1 + _PEERS]:
            addresses = _of_peer(candidates, peer)
            reason = await self._reach(peer, addresses) or await self._reserve(addresses)
            if reason is None:
                self._relay, self.summary = peer, f"through the relay {peer}: {why}"
                return
            reasons.append(reason)
        refused = reasons[0] if reasons else "none is known"
        self.summary = f"by nobody: {why}, and no relay accepts this node ({refused})"

    async def _reach(self, peer: str, addresses: list[str]) -> str:
        """Connect to a candidate; return why that failed, empty if it did not."""
        why = ""
        for address in [] if peer in await self._links.peers() else addresses:
            try:
                await self._relays.dial(address)
            except P2PError as error:
                why = str(error)
            else:
                return ""
        return why

    async def _reserve(self, addresses: list[str]) -> str | None:
        """Reserve a slot at the relay with these addresses; return None, or the reason why that failed."""
        try:
            await self._inbound.reserve(addresses)
        except Unreachable as error:
            _log.info("relay unavailable", reason=str(error))
            return str(error)
        _log.info("reachable through a relay", relay=peer_of(addresses[0]))
        return None

    async def _release(self) -> None:
        """Release the reservation of rule 3, which is no longer needed, unless the owner named its relay."""
        if self._relay is not None and self._relay not in self._named_relays():
            await self._inbound.release(self._relay)
        self._relay = None

    def _named_relays(self) -> list[str]:
        """Return the peer ids of the relays that the owner named."""
        return list(dict.fromkeys(map(peer_of, self._relays.named)))

    async def _tell(self) -> None:
        """Call `on_change` if the addresses or their record are outdated (rule 4)."""
        before = self._announced
        if before is not None and await self.addresses() != before:
            self.on_change("this node's addresses changed")
        elif self._issuer.due(self._now()):
            self.on_change("this node's peer record must be renewed")


def _of_peer(addresses: list[str], peer: str) -> list[str]:
    return [address for address in addresses if peer_of(address) == peer]
