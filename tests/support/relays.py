"""Two libp2p peers that know each other only through a relay, for tests of circuits and hole punching."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.limits.relay_quota import RelayLimits, RelayTable
from tests.support.libp2p_peers import echo, new_peer, running


def holders(table: RelayTable, now: float) -> list[str]:
    """Return the peers with a reservation."""
    table._expire(now)
    return list(table._reservations)


def relayed(peer: ThreadedPeer, relay: list[str]) -> list[str]:
    """Return the addresses of a peer behind a relay with these addresses."""
    return [f"{address}/p2p-circuit/p2p/{peer.peer_id}" for address in relay]


@asynccontextmanager
async def behind_a_relay(
    limits: RelayLimits | None = None, **options: Any
) -> AsyncIterator[tuple[ThreadedPeer, ThreadedPeer, ThreadedPeer]]:
    """Run (source, relay, target). The target has a reservation; source and target know only the relay's address."""
    source, relay, target = new_peer(), new_peer(relay=limits or RelayLimits()), new_peer(**options)
    for peer in (source, target):
        peer.serve("echo", echo, limit=100)
    async with running(source), running(relay), running(target):
        await target.reserve(await relay.addresses())
        yield source, relay, target


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    """Wait until `condition()` returns True."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
