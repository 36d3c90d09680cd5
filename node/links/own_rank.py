"""The place of this node among those of its run, as the coordinator tells it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from echo2.node.links.coordinator_client import RequestRefused
from echo2.p2p.errors import P2PError
from echo2.protocol.requests import RankResponse

RANK_SECONDS: Final = 600.0
"""Seconds between two requests."""
FIRST_RANK_SECONDS: Final = 30.0
"""Seconds between two attempts until the coordinator has answered. A node beyond the places that it counts has none."""

_log = structlog.get_logger("node")


class OwnRank:
    """The place as it was told last. `latest`: None: it is not known. `call`: asks the coordinator; raises
    `RequestRefused`, `P2PError`. `accepted`: tells whether a group of this node was accepted."""

    def __init__(self, call: Callable[[], Awaitable[RankResponse]], accepted: Callable[[], bool]) -> None:
        self._call, self._accepted = call, accepted
        self.latest: RankResponse | None = None

    async def run(self) -> None:
        """Ask until cancelled, once there is accepted work. A coordinator that refuses or is away costs nothing."""
        while True:
            if self._accepted():
                await self.ask()
            await asyncio.sleep(FIRST_RANK_SECONDS if self.latest is None else RANK_SECONDS)

    async def ask(self) -> None:
        """Ask once."""
        try:
            self.latest = await self._call()
        except (RequestRefused, P2PError) as error:
            _log.debug("place not told", reason=str(error))

    def words(self) -> str:
        """Return the place in words; empty: it is not known, or the node has none."""
        latest = self.latest
        return "" if latest is None or latest.rank is None else f"{latest.rank} of {latest.nodes}"
