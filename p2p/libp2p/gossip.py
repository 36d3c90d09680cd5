"""Gossip that survives reconnects and star topologies, on py-libp2p's Pubsub.

Pubsub of py-libp2p 0.8 silently loses gossip between connected peers:

1. Of two connections with a peer only the first has a gossip stream, and when it ends the other gets none. A peer that
   reconnects before the old connection's end is noticed would get no gossip. So each connected peer without a stream on
   an open connection gets one within `STREAM_POLL_SECONDS` seconds.
2. If a stream cannot be opened, upstream retries after two kinds of failure only. Here every failure is retried
   every `STREAM_RETRY_SECONDS` seconds.

Patches 6 to 8 of p2p/libp2p/patches.py repair three more such losses.

Gossipsub as implemented upstream also loses messages in a star, where most peers are connected to the publisher alone:

3. Upstream's publisher sends to the 6 to 12 peers of its mesh. It offers the message (IHAVE) to a quarter of the
   others, drawn anew per heartbeat, for three heartbeats: two peers in five never hear of it. Here a peer sends its own
   messages to every connected subscriber (flood publishing of gossipsub 1.1). Others' messages are offered to every
   peer except their author.
4. Upstream's "adaptive" parameters take a star for an unhealthy network and slow the heartbeat to 60 s. By then most
   offered messages have left the cache. These parameters are off.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NoReturn

import trio

from echo2._libp2p.peer.id import ID
from echo2._libp2p.pubsub.gossipsub import GossipSub
from echo2._libp2p.pubsub.pubsub import Pubsub

STREAM_POLL_SECONDS = 1.0
"""Seconds between two checks of the streams."""
STREAM_RETRY_SECONDS = 40.0
"""Seconds between two attempts to open a stream: longer than upstream's own attempt takes to fail."""


class Router(GossipSub):
    """Gossipsub with flood publishing of own messages, and IHAVE to all (rule 3)."""

    def _get_peers_to_send(
        self, topic_ids: Iterable[str], msg_forwarder: ID, origin: ID, msg_id: bytes | None = None
    ) -> Iterable[ID]:
        topics = list(topic_ids)
        if self.pubsub is None or origin != self.pubsub.my_id:
            return super()._get_peers_to_send(topics, msg_forwarder, origin, msg_id)
        subscribers: set[ID] = set()
        return subscribers.union(*(self.pubsub.peer_topics.get(topic, ()) for topic in topics)) - {origin}

    def _get_adaptive_gossip_peers_count(self, topic: str, total_peers: int) -> int:
        return total_peers

    def gossip_heartbeat(self) -> defaultdict[ID, dict[str, list[bytes]]]:
        offers: defaultdict[ID, dict[str, list[bytes]]] = defaultdict(dict)
        for peer, topics in super().gossip_heartbeat().items():
            known = self._own_id(), peer.to_bytes()
            for topic, messages in topics.items():
                if unknown := [message for message in messages if not message.startswith(known)]:
                    offers[peer][topic] = unknown
        return offers

    def _own_id(self) -> bytes:
        """Return the prefix of the ids of this peer's messages."""
        assert self.pubsub is not None
        return self.pubsub.my_id.to_bytes()


async def repair_streams(pubsub: Pubsub, peers: Callable[[], Iterable[ID]]) -> NoReturn:
    """Open missing gossip streams (rules 1 and 2) until cancelled. `peers`: returns the connected peers."""
    missing: dict[ID, float] = {}
    while True:
        await trio.sleep(STREAM_POLL_SECONDS)
        now, before, missing = trio.current_time(), missing, {}
        for peer in peers():
            stream = pubsub.peers.get(peer)
            if stream is None:
                missing[peer] = before.get(peer, now)
            lost = stream.muxed_conn.is_closed if stream is not None else now - missing[peer] >= STREAM_RETRY_SECONDS
            if lost:
                missing.pop(peer, None)
                pubsub._handle_dead_peer(peer)  # the peer is connected: upstream now opens a new stream
