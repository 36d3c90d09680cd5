"""A peer of this project connected with a stock py-libp2p host, for the interoperability tests."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import pytest
import trio

from echo2._libp2p.host.ping import PingService
from echo2._libp2p.peer.id import ID
from echo2.p2p.envelope import seal, verify_envelope
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.libp2p.transport import LibP2PTransport
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.peer.peer import Peer
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.versions import Head, HeadRequest, HeadResponse
from tests.support import stock_peers
from tests.support.stock_peers import Cut, StockPeer

BOTH_WAYS = pytest.mark.parametrize("dialler", ["ours", "stock"])
RUN = bytes(range(32))
TOPIC = f"echo2/{RUN.hex()}/head"
CHANNEL = generate_key()


@dataclass
class Ours:
    """A peer of this project, its transport, and the verified Heads that it received by gossip."""

    transport: LibP2PTransport
    peer: Peer
    heard: list[Head] = field(default_factory=list)

    async def hear(self, sender: str, data: bytes) -> bool:
        self.heard.append(decode(verify_envelope(data, "head", RUN, {public_bytes(CHANNEL)}), Head))
        return True


def ours() -> Ours:
    """Return a peer of this project, not yet running, that serves `head` and subscribes to Heads."""
    transport = LibP2PTransport(generate_key(), ["/ip4/127.0.0.1/tcp/0"])
    pair = Ours(transport, Peer(transport, seed=0))
    pair.peer.subscribe(TOPIC, pair.hear)
    pair.peer.serve("head", _answer_head, limit=1024)
    return pair


async def _answer_head(peer: str, request: bytes) -> bytes:
    decode(request, HeadRequest)
    return encode(HeadResponse(head=sealed_head(7)))


def sealed_head(version: int) -> bytes:
    """Return a Head of this version, sealed by the run's channel key."""
    head = Head(
        era=0, version=version, version_hash=bytes(32), index_hash=bytes(32), step=version, sequence=version,
        addresses=[], root_serial=1, issued=0, expires=1,
    )  # fmt: skip
    return seal("head", RUN, encode(head), CHANNEL)


@asynccontextmanager
async def met(dialler: str, host: Any = None) -> AsyncIterator[tuple[Ours, StockPeer]]:
    """Run a peer of each kind, connected. `dialler`: "ours" or "stock"."""
    one = ours()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.peer.run)
        await one.peer.ready()
        async with stock_peers.running(host) as other:
            if dialler == "ours":
                await one.peer.dial(other.addresses())
            else:
                await other.dial(await one.peer.addresses())
                await stock_peers.until(lambda: other.peer_id in one.transport.peers())
            yield one, other
        nursery.cancel_scope.cancel()


def on_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Turn an async test into a function that runs it on trio, for at most 4 minutes."""

    @wraps(test)
    def run(*arguments: object, **named: object) -> None:
        async def main() -> None:
            with trio.fail_after(240):
                await test(*arguments, **named)

        trio.run(main)

    return run


async def ping(one: Ours, peer: str) -> int:
    """Send two pings from our side; return how many were answered."""
    return len(await PingService(one.transport.host).ping(ID.from_string(peer), 2))


def cut(manifest: Manifest) -> Cut:
    """Return a manifest in the form that the stock peer takes."""
    return Cut(manifest.hash, manifest.length, manifest.chunk_size, manifest.chunk_root)
