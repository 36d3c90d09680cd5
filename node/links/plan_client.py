"""The node's place in the coordinator's broadcast plan: request it, and stay connected with the parents it names.

Rules
1. The node requests its place when it connects to the coordinator, every `ASK_EVERY` seconds, and when a parent cannot
   be dialled. The request names such a parent, so that another is assigned.
2. Between requests the coordinator may send a new place (method `follow`); no other peer may. Parents are dialled at
   addresses of their own records, within p2p/limits/dial_backoff.py.
3. A plan changes only which peers are preferred as sources. Without a plan, or with a bad one, payloads still arrive.
4. A node connected to the coordinator by HTTPS alone has no peers, and requests no plan.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Self

import anyio
import structlog

from echo2.p2p.discovery.dialer import PeerDialer
from echo2.p2p.errors import Malformed, P2PError
from echo2.p2p.handlers import Handlers
from echo2.p2p.multiaddr import route_of
from echo2.p2p.network import Links, PayloadExchange, Rpc
from echo2.protocol.broadcast_messages import PlanRequest, PlanResponse
from echo2.protocol.methods import FOLLOW, PLAN
from echo2.runtime.units import MBIT

ASK_EVERY: Final = 20.0
"""Seconds between two requests for the place."""
PEER_POLL_SECONDS: Final = 1.0
"""Seconds between two checks of the connected peers."""
LONE_POLL_SECONDS: Final = 5.0
"""The same where the place names no parent beside the coordinator, and none has to be dialled."""
PLAN_ANSWER_SECONDS: Final = 15.0
"""Seconds to wait for an answer."""
TIMED_ANSWERS: Final = 8
"""Latest answers whose fastest gives the latency: slower ones include the computation of a plan."""
FAILED_MOST: Final = 16
"""Most unreachable parents named per request."""

_log = structlog.get_logger("node")


@dataclass(frozen=True)
class RateLimits:
    """The owner's limits on payload traffic, bytes per second; None: no limit."""

    uplink: int | None = None
    downlink: int | None = None

    @classmethod
    def of_rates(cls, uplink: float | None, downlink: float | None) -> Self:
        """Return the limits of rates in Mbit/s, at least 1 byte per second each."""
        return cls(*(None if rate is None else max(1, int(rate * MBIT)) for rate in (uplink, downlink)))


class PlanClient:
    """The client of the broadcast plan. `parents`: the peer id of the parent of each stripe, empty without a plan.
    `limits`: the owner's, which each request tells."""

    def __init__(
        self,
        handlers: Handlers,
        rpc: Rpc,
        links: Links,
        exchange: PayloadExchange,
        dialer: PeerDialer,
        limits: RateLimits,
        *,
        connected: Callable[[], Awaitable[str]],
    ) -> None:
        """`connected`: waits for the connection to the coordinator, and returns its peer id."""
        self._rpc, self._links, self._exchange = rpc, links, exchange
        self._dialer, self.limits, self._connected = dialer, limits, connected
        self._waited: deque[float] = deque(maxlen=TIMED_ANSWERS)
        self._coordinator = ""
        self.parents: list[str] = []
        self._changed = asyncio.Event()
        FOLLOW.serve(handlers, self._on_place)

    async def run(self) -> None:
        """Request plans and dial parents until cancelled."""
        failed: list[str] = []
        while True:
            self._coordinator = coordinator = await self._connected()
            if (await self._links.routes()).get(coordinator) != "https":
                try:
                    await self._ask(coordinator, failed[:FAILED_MOST])
                except P2PError as error:
                    _log.debug("no plan", reason=str(error))
            failed = await self._watch(coordinator)

    async def _ask(self, coordinator: str, failed: list[str]) -> None:
        ask = PlanRequest(
            uplink=self.limits.uplink,
            downlink=self.limits.downlink,
            latency=int(500 * min(self._waited)) if self._waited else None,
            failed=failed,
        )
        asked = anyio.current_time()
        answer = await PLAN.ask(self._rpc, coordinator, ask, timeout=PLAN_ANSWER_SECONDS)
        self._waited.append(anyio.current_time() - asked)
        await self._take(answer)

    async def _on_place(self, peer: str, place: PlanResponse) -> None:
        """Adopt a new place from the coordinator. Raises `Malformed` for any other peer."""
        if peer != self._coordinator:
            raise Malformed("only the coordinator may assign parents")
        await self._take(place)

    async def _take(self, answer: PlanResponse) -> None:
        """Adopt a place: remember the parents' records, and fetch from these parents from now on."""
        self._dialer.take(answer.records)
        if answer.parents != self.parents:
            self.parents = answer.parents
            self._changed.set()
            _log.debug("plan", parents=self.parents)
            await self._exchange.follow(self.parents)

    async def _watch(self, coordinator: str) -> list[str]:
        """Dial parents that are not connected, until the place must be requested again. Return the parents that cannot
        be dialled."""
        until = anyio.current_time() + ASK_EVERY
        while anyio.current_time() < until:
            here = set(await self._links.peers())
            if coordinator not in here:
                await asyncio.sleep(PEER_POLL_SECONDS)
                return []
            failed = [peer for peer in dict.fromkeys(self.parents) if peer not in here and not await self._dial(peer)]
            if failed:
                await asyncio.sleep(PEER_POLL_SECONDS)
                return failed
            await self._until_next_check(coordinator)
        return []

    async def _until_next_check(self, coordinator: str) -> None:
        """Wait until the connected peers are checked again, which takes both threads of a node from their sleep."""
        if any(peer != coordinator for peer in self.parents):
            await asyncio.sleep(PEER_POLL_SECONDS)
            return
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONE_POLL_SECONDS):
                await self._changed.wait()

    async def _dial(self, peer: str) -> bool:
        """Dial a parent at the direct addresses of its record; tell whether one of them answers."""
        known = self._dialer.records.of(peer)
        direct = [address for address in known.addresses if route_of(address) == "direct"] if known else []
        return await self._dialer.dial_any(direct)
