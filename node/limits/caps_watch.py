"""Put the owner's caps in force: rates of the network, the bytes of a month, the share of the time of each engine.

Rules
1. The bytes of a month are stored every `STORE_SECONDS`, and at the end: a kill loses that much of the count.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog

from echo2.node.limits.caps import MonthTraffic, OwnerCaps
from echo2.node.links.plan_client import PlanClient, RateLimits
from echo2.node.run_state import NodeRunState
from echo2.p2p.network import PayloadExchange
from echo2.runtime.files import writing

WATCH_SECONDS: Final = 10.0
STORE_SECONDS: Final = 60.0
MONTH_FILE: Final = "month.json"

_log = structlog.get_logger("node")


class CapsWatch:
    """The caps of a running node. `file`: file of the bytes of the month. `put_duties`: lets each device compute for
    its share of the time."""

    def __init__(
        self, caps: OwnerCaps, exchange: PayloadExchange, plan_client: PlanClient, run_state: NodeRunState, file: Path,
        put_duties: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        self.caps, self._exchange, self._plan_client, self._run_state = caps, exchange, plan_client, run_state
        self._file, self._put_duties = file, put_duties
        self._in_force = caps.first
        self._seen = (0, 0)
        self._stored_at = 0.0
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Keep the caps in force until cancelled; a node whose caps never change waits for its owner's word."""
        self.caps.month = _read(self._file)
        try:
            while True:
                await self._look()
                self._changed.clear()
                try:
                    async with asyncio.timeout(WATCH_SECONDS if self.caps.may_change else None):
                        await self._changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._store()

    async def switch(self, slow: bool | None) -> None:
        """Take the owner's word on the slow set; None: its hours count again."""
        self.caps.by_hand = slow
        await self.refresh()

    async def refresh(self) -> None:
        """Put in force what the owner has changed."""
        await self._look()
        self._changed.set()

    async def _look(self) -> None:
        if self.caps.counts_months:
            traffic = await self._exchange.traffic()
            up, down = traffic.sent - self._seen[0], traffic.received - self._seen[1]
            self._seen = traffic.sent, traffic.received
            self.caps.month = self.caps.month.add(up, down, self.caps.local())
            if asyncio.get_running_loop().time() - self._stored_at >= STORE_SECONDS:
                self._store()
        self._run_state.stop_fetching(self.caps.no_download)
        caps = self.caps.now
        if caps == self._in_force:
            return
        self._plan_client.limits = limits = RateLimits.of_rates(caps.uplink, caps.downlink)
        await self._exchange.limit(limits.uplink, limits.downlink)
        await self._put_duties()
        self._in_force = caps
        _log.info("caps changed", uplink=caps.uplink, downlink=caps.downlink, duty=caps.duty, devices=caps.devices)

    def _store(self) -> None:
        if not self.caps.counts_months or not self.caps.month.month:
            return
        self._stored_at = asyncio.get_running_loop().time()
        try:
            with writing(self._file) as file:
                file.write(json.dumps(self.caps.month._asdict()).encode())
        except OSError as error:
            _log.warning("the bytes of this month are not stored", reason=str(error))


def _read(file: Path) -> MonthTraffic:
    """Return the bytes stored; none where there is no file, or one that cannot be read."""
    try:
        known = json.loads(file.read_bytes())
        return MonthTraffic(str(known["month"]), max(0, int(known["up"])), max(0, int(known["down"])))
    except (OSError, ValueError, KeyError, TypeError):
        return MonthTraffic()
