"""Keeps gossip with connected peers alive. py-libp2p's Pubsub of 0.8 loses it in silence, for as long as they stay:

1. Of two connections with a peer only the first has a gossip stream, and when that one ends the other gets none: who
   came back before its end was noticed would hear nothing any more. So whoever is connected and has no stream on an
   open connection gets one, at most `LOOK` seconds later.
2. A stream that cannot be opened is not tried again, unless for two reasons. Here it is, every `AGAIN` seconds.

Three more ways to lose it are patches 6 to 8 of p2p/libp2p/patches.py.

And what gossipsub as upstream has it loses where most peers know the publisher alone (a star):

3. A publisher tells the 6 to 12 peers of its mesh; a quarter of the others, drawn anew each heartbeat, are offered the
   message, for three heartbeats: two peers in five never hear of it. Here a peer sends its own messages to every
   connected subscriber (gossipsub 1.1 calls it flood publishing), and offers those of others to each that it is not of.
4. "Adaptive" parameters take a star for a network in bad health and make the heartbeat 60 s: then most offers come when
   the message is forgotten. They are off.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NoReturn

import trio
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pubsub import Pubsub

LOOK = 1.0
AGAIN = 40.0
"""Longer than upstream takes to give an attempt up."""


class Router(GossipSub):
    """Gossipsub with rule 3."""

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
        """With which the id of each message of this peer begins."""
        assert self.pubsub is not None
        return self.pubsub.my_id.to_bytes()


async def repair_streams(pubsub: Pubsub, peers: Callable[[], Iterable[ID]]) -> NoReturn:
    """Rules 1 and 2, until cancelled. `peers`: those connected."""
    missing: dict[ID, float] = {}
    while True:
        await trio.sleep(LOOK)
        now, before, missing = trio.current_time(), missing, {}
        for peer in peers():
            stream = pubsub.peers.get(peer)
            if stream is None:
                missing[peer] = before.get(peer, now)
            lost = stream.muxed_conn.is_closed if stream is not None else now - missing[peer] >= AGAIN
            if lost:
                missing.pop(peer, None)
                pubsub._handle_dead_peer(peer)  # as it is connected, upstream opens a stream then
