"""Keeps gossip with connected peers alive. py-libp2p's Pubsub of 0.8 loses it in silence, for as long as they stay:

1. Of two connections with a peer only the first has a gossip stream, and when that one ends the other gets none: who
   came back before its end was noticed would hear nothing any more. So whoever is connected and has no stream on an
   open connection gets one, at most `LOOK` seconds later.
2. A stream that cannot be opened is not tried again, unless for two reasons. Here it is, every `AGAIN` seconds.
3. With a stream that broke it forgets what the peer is subscribed to. A peer whose own stream is whole does not say it
   again: while it is connected, it is remembered.
4. It takes no message from a peer whose address record is older than the one known, as after its clock was set back.
   The record alone is not taken: we have our own (p2p/records.py).
5. It numbers its messages from the second in which it began. Who said more than one a second and comes back uses
   numbers again, and is not heard by those who heard them: its messages are taken for the old ones, until the numbers
   are new. So they begin at the nanosecond.

And what gossipsub as upstream has it loses where most peers know the publisher alone (a star):

6. A publisher tells the 6 to 12 peers of its mesh; a quarter of the others, drawn anew each heartbeat, are offered the
   message, for three heartbeats: two peers in five never hear of it. Here a peer sends its own messages to every
   connected subscriber (gossipsub 1.1 calls it flood publishing), and offers those of others to each that it is not of.
7. "Adaptive" parameters take a star for a network in bad health and make the heartbeat 60 s: then most offers come when
   the message is forgotten. They are off.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import trio
from libp2p.peer.envelope import Envelope
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pubsub import Pubsub

LOOK = 1.0
AGAIN = 40.0
"""Longer than upstream takes to give an attempt up."""


class Router(GossipSub):
    """Gossipsub with rule 6."""

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


def mended(pubsub: Pubsub) -> Pubsub:
    """The same, with rules 3 to 5; before it runs."""
    store: Any = pubsub.host.get_peerstore()
    forget, take = pubsub._forget_all_subscriptions, store.consume_peer_record

    def forget_who_left(peer_id: ID) -> None:
        if not pubsub._peer_is_connected(peer_id):
            forget(peer_id)

    def take_newer(envelope: Envelope, ttl: int) -> bool:
        record = envelope.record()
        known = store.peer_record_map.get(record.peer_id)
        return (known is not None and known.seq > record.seq) or bool(take(envelope, ttl))

    pubsub._forget_all_subscriptions = forget_who_left  # type: ignore[method-assign]
    store.consume_peer_record = take_newer
    pubsub.counter = time.time_ns()
    return pubsub


async def mend(pubsub: Pubsub, peers: Callable[[], Iterable[ID]]) -> NoReturn:
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
