"""One peer on any transport, in the transport's own event loop: requests, gossip and payloads.

The peer is written on anyio: under asyncio it runs on the in-memory transport, under trio on libp2p (see
p2p/libp2p/threaded_network.py). Tests on the first therefore test the code that runs on the second. Methods that only
forward are attributes: the bound methods of the part that does the work.
"""

import anyio
import msgspec

from echo2.p2p.discovery import dial_back
from echo2.p2p.errors import Unreachable
from echo2.p2p.guard import one_error
from echo2.p2p.handlers import Handlers
from echo2.p2p.limits.bandwidth import Rate
from echo2.p2p.limits.request_slots import PER_PEER
from echo2.p2p.multiaddr import Route
from echo2.p2p.network import Traffic
from echo2.p2p.peer import rpc
from echo2.p2p.peer.gossip import GossipExchange
from echo2.p2p.swarm.exchange import PROTOCOL as CHUNKS
from echo2.p2p.swarm.exchange import ChunkExchange
from echo2.p2p.transport import Transport


class Peer:
    """A `p2p.network.AnyPeer` over a `Transport`. `await_uplink`: see `ChunkExchange.await_uplink`."""

    def __init__(
        self,
        transport: Transport,
        *,
        seed: int,
        uplink: Rate = None,
        downlink: Rate = None,
        handlers: Handlers | None = None,
    ) -> None:
        """`seed`: breaks ties between chunks to request. `uplink`, `downlink`: rate of payloads to and from all
        peers together. `handlers`: the methods it answers, if registered elsewhere."""
        self._transport, self.peer_id = transport, transport.peer_id
        self._ready = anyio.Event()
        self._failure: Exception | None = None
        self._asking: dict[str, anyio.CapacityLimiter] = {}
        self._exchange = ChunkExchange(transport, seed=seed, uplink=uplink, downlink=downlink)
        self.handlers = Handlers() if handlers is None else handlers
        own = Handlers()  # answered over this transport alone
        self._gossip = GossipExchange(self.request, transport.peers, transport.origin, own, seed)
        own.serve(dial_back.METHOD, dial_back.DialBack(transport).answer, limit=dial_back.MOST_DIAL_BACK_BYTES)
        transport.handle(rpc.PROTOCOL, rpc.Server(transport.origin, (own, self.handlers)).answer)
        transport.handle(CHUNKS, self._exchange.serve_chunks)
        self.serve = self.handlers.serve
        self.dial = transport.dial
        self.publish = self._gossip.publish
        self.subscribe = self._gossip.subscribe
        self.reserve = transport.reserve
        self.release = transport.release
        self.origin = transport.origin
        self.share = self._exchange.share
        self.unshare = self._exchange.unshare
        self.fetch = self._exchange.fetch
        self.follow = self._exchange.follow
        self.limit = self._exchange.limit
        self.await_uplink = self._exchange.await_uplink

    async def run(self) -> None:
        try:
            with one_error():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._gossip.run)
                    await self._transport.run(self._ready.set)
                    tasks.cancel_scope.cancel()
        except Exception as failure:
            self._failure = failure
            raise
        finally:
            self._ready.set()
            self._exchange.close()

    async def ready(self) -> None:
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure

    async def addresses(self) -> list[str]:
        return self._transport.addresses()

    async def peers(self) -> list[str]:
        return self._transport.peers()

    async def routes(self) -> dict[str, Route]:
        return self._transport.routes()

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        # At most as many as the other side admits at once. Further ones wait here while their timeout runs.
        limiter = self._asking.setdefault(peer, anyio.CapacityLimiter(PER_PEER))
        try:
            with anyio.fail_after(timeout):
                async with limiter:
                    return await rpc.ask(await self._transport.open(peer, rpc.PROTOCOL), method, payload)
        except TimeoutError:
            raise Unreachable(f"{peer} did not answer {method} within {timeout:g} s") from None
        finally:
            if not limiter.statistics().borrowed_tokens and not limiter.statistics().tasks_waiting:
                self._asking.pop(peer, None)

    async def traffic(self) -> Traffic:
        moved, transport = self._exchange.traffic(), self._transport
        return msgspec.structs.replace(moved, relayed=transport.count_relayed_bytes(), refused=transport.refusals())
