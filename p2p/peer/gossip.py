"""Gossip: small signed messages, pushed from peer to peer. Method "gossip" of p2p/peer/rpc.py.

1. A topic has one author, and one message, the newest. The author pushes it to every connected peer. A peer whose
   handler accepts the message pushes it on at once to every connected peer that is not known to have it. So it takes
   the quickest path over the trees of the broadcast plan, whose children are connected to their parents, and the nodes'
   random neighbours. A peer that is connected to the author alone gets it from there.
2. A push is a request of its own, which is answered once the message was judged. To one peer there is one push at a
   time, of at most `PUSH_SECONDS` seconds. So a peer that stalls costs one stream, and delays no other peer. Every
   `SWEEP_SECONDS` seconds, `SWEEPS` times after a message, it is pushed to the connected peers that do not have it:
   those to which a push failed, and those that connected meanwhile.
3. A copy of the newest message is dropped unread. Each other message costs its sender's party a token; without one the
   answer is BUSY, and the sender tries again. So forged and replayed messages cost few signature checks.
4. A peer that does not know the method is pushed nothing while it is connected. A coordinator does not: it hears none.
5. Peers that have the newest message and are no longer connected are forgotten before they are as many as the others:
   keys are free, and a message may be the newest for long.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Annotated, Final

import anyio
from msgspec import Meta

from echo2.p2p.errors import Busy, Declined, LocalNetworkFault, P2PError
from echo2.p2p.guard import guard_handler
from echo2.p2p.handlers import Handlers
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.token_bucket import TokenBuckets
from echo2.p2p.network import GOSSIP_LIMIT, GossipHandler
from echo2.p2p.wire_types import Wire, decode, encode

METHOD: Final = "gossip"
MOST_PUSH_BYTES: Final = GOSSIP_LIMIT + 1024
PUSH_SECONDS: Final = 20.0
SWEEPS: Final = 10
SWEEP_SECONDS: Final = 2.0
LEAST_HOLDERS: Final = 256
"""Peers that have the newest message, up to which none is forgotten."""
JUDGED_RATE, JUDGED_BURST = 2.0, 20.0
"""Messages of one party that are judged: per second, and at once."""


class GossipRequest(Wire, frozen=True):
    """anyone -> anyone, method "gossip", unsealed. A message that the sender authored, or accepted. `topic`: its
    subject."""

    topic: Annotated[str, Meta(max_length=128)]
    data: Annotated[bytes, Meta(max_length=GOSSIP_LIMIT)]


class TopicSpread:
    """The newest message of a topic. `holders`: the peers that are known to have it."""

    def __init__(self, data: bytes, holders: set[str]) -> None:
        self.data, self.holders = data, holders
        self._most = LEAST_HOLDERS

    def add(self, peer: str, connected: Callable[[], Sequence[str]]) -> None:
        """Note that a peer has the message (rule 5)."""
        self.holders.add(peer)
        if len(self.holders) > self._most:
            self.holders.intersection_update(connected())
            self._most = LEAST_HOLDERS + 2 * len(self.holders)


class GossipExchange:
    """The topics of one peer (`p2p.network.Gossip`), in its transport's event loop."""

    def __init__(
        self,
        request: Callable[..., Awaitable[bytes]],
        peers: Callable[[], Sequence[str]],
        origin: Callable[[str], Origin],
        handlers: Handlers,
        seed: int,
    ) -> None:
        """`request`, `peers`, `origin`: see `Rpc`, `Transport`. `handlers`: the table in which the first subscription
        registers the method. `seed`: seed of the order of pushes."""
        self._request, self._peers, self._origin, self._methods = request, peers, origin, handlers
        self._random = Random(seed)
        self._handlers: dict[str, GossipHandler] = {}
        self._newest: dict[str, TopicSpread] = {}
        self._pushing: set[tuple[str, str]] = set()
        self._deaf: set[str] = set()
        """The connected peers that do not know the method (rule 4)."""
        self._judged = TokenBuckets(JUDGED_RATE, JUDGED_BURST)
        self._news = anyio.Event()

    def subscribe(self, topic: str, handler: GossipHandler) -> None:
        self._handlers[topic] = guard_handler(handler)
        self._methods.serve(METHOD, self._answer, limit=MOST_PUSH_BYTES)

    async def publish(self, topic: str, data: bytes) -> None:
        if len(data) > GOSSIP_LIMIT:
            raise LocalNetworkFault(f"a gossip message of {len(data)} bytes exceeds {GOSSIP_LIMIT}")
        self._spread(topic, data, set())

    async def run(self) -> None:
        """Push what is published and accepted, until cancelled."""
        sweeps = 0
        async with anyio.create_task_group() as tasks:
            while True:
                with anyio.move_on_after(SWEEP_SECONDS if sweeps else math.inf) as pause:
                    await self._news.wait()
                sweeps = sweeps - 1 if pause.cancelled_caught else SWEEPS
                self._news = anyio.Event()
                peers = list(self._peers())
                self._deaf.intersection_update(peers)
                self._random.shuffle(peers)
                for topic, spread in self._newest.items():
                    served = spread.holders | self._deaf
                    for peer in peers:
                        if peer not in served and (topic, peer) not in self._pushing:
                            self._pushing.add((topic, peer))
                            tasks.start_soon(guard_handler(self._push), topic, peer)

    def _spread(self, topic: str, data: bytes, holders: set[str]) -> None:
        self._newest[topic] = TopicSpread(data, holders)
        self._news.set()

    async def _push(self, topic: str, peer: str) -> None:
        """Push the newest message to a peer until it has it, or a push fails."""
        try:
            while peer not in (spread := self._newest[topic]).holders:
                pushed = encode(GossipRequest(topic=topic, data=spread.data))
                await self._request(peer, METHOD, pushed, timeout=PUSH_SECONDS)
                spread.add(peer, self._peers)
        except P2PError as error:
            if isinstance(error, Declined) and not isinstance(error, Busy):
                self._deaf.add(peer)
        finally:
            self._pushing.discard((topic, peer))

    async def _answer(self, peer: str, request: bytes) -> bytes:
        """Take a message from a peer (rule 3). Raises `Malformed`, `Busy`."""
        message = decode(request, GossipRequest)
        handler, newest = self._handlers.get(message.topic), self._newest.get(message.topic)
        if handler is None:
            return b""
        if newest is not None and newest.data == message.data:
            newest.add(peer, self._peers)
            return b""
        if self._judged.admit(self._origin(peer).party, anyio.current_time()) > 0:
            raise Busy("too many messages that are not new")
        accepted, newest = await handler(peer, message.data), self._newest.get(message.topic)
        if newest is not None and newest.data == message.data:  # another peer's copy was judged first
            newest.add(peer, self._peers)
        elif accepted:
            self._spread(message.topic, message.data, {peer})
        return b""
