"""Gossip over a star, where each peer is connected to the publisher alone."""

import contextlib
import time
from collections.abc import AsyncIterator

import pytest
import trio

from echo2._libp2p.peer.id import ID
from echo2._libp2p.pubsub.pb.rpc_pb2 import Message
from echo2.p2p.errors import Unreachable
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.libp2p.transport import GOSSIP_HEARTBEAT_SECONDS, GOSSIP_PROTOCOLS, LibP2PTransport
from echo2.p2p.peer.peer import Peer
from tests.support.libp2p_peers import LOOPBACK

TOPIC = "heads"
PEERS, MESH = 200, 6


class Star:
    """A transport that does not run, in the state of `PEERS` connected subscribers, `MESH` of them in its mesh."""

    def __init__(self) -> None:
        self.transport = LibP2PTransport(generate_key(), [])
        self.router, pubsub = self.transport.router, self.transport.pubsub
        self.own = pubsub.my_id
        self.peers = [ID.from_string(peer_id(public_bytes(generate_key()))) for _ in range(PEERS)]
        pubsub.peer_topics[TOPIC] = set(self.peers)
        self.router.peer_protocol |= dict.fromkeys(self.peers, GOSSIP_PROTOCOLS[0])
        self.router.mesh[TOPIC] = set(self.peers[:MESH])

    def message(self, origin: ID) -> Message:
        return Message(from_id=origin.to_bytes(), seqno=b"12345678", data=b"a head", topicIDs=[TOPIC])


def in_trio(check) -> None:
    async def main() -> None:
        check(Star())

    trio.run(main)


def test_a_publisher_sends_to_every_subscriber_and_not_to_its_mesh_alone() -> None:
    """On 439044d 6 of these 200 peers are sent the message."""

    def check(star: Star) -> None:
        sent = set(star.router._get_peers_to_send([TOPIC], star.own, star.own, b"id"))
        assert len(sent) == PEERS
        passed_on = set(star.router._get_peers_to_send([TOPIC], star.peers[0], star.peers[9], b"id"))
        assert passed_on == set(star.peers[1:MESH]), "messages of others go to the mesh alone"

    in_trio(check)


def test_a_forwarded_message_is_offered_to_every_other_peer_at_the_next_heartbeat() -> None:
    """On 439044d a quarter of the others, 48, are offered the message."""

    def check(star: Star) -> None:
        star.router.mcache.put(star.message(star.peers[9]))
        offered = set(star.router.gossip_heartbeat())
        assert offered == set(star.peers[MESH:]) - {star.peers[9]}
        star.router.mcache.msgs.clear()
        star.router.mcache.history = [[] for _ in star.router.mcache.history]
        star.router.mcache.put(star.message(star.own))
        assert not star.router.gossip_heartbeat(), "its own were sent to all"

    in_trio(check)


def test_bad_health_does_not_make_the_heartbeat_a_minute_long() -> None:
    """Upstream takes a star for unhealthy: on 439044d the heartbeat becomes 60 s, and offers come too late."""

    def check(star: Star) -> None:
        star.router.network_health_score = 0.5
        star.router._adapt_gossip_parameters()
        assert star.router.heartbeat_interval == GOSSIP_HEARTBEAT_SECONDS

    in_trio(check)


class Host:
    """A peer on libp2p that records the messages that it receives."""

    def __init__(self, seed: int, listen: list[str]) -> None:
        self.received: set[bytes] = set()
        self.peer = Peer(LibP2PTransport(generate_key(), listen), seed=seed)
        self.peer.subscribe(TOPIC, self._on_message)

    async def _on_message(self, sender: str, data: bytes) -> bool:
        self.received.add(data)
        return True


@contextlib.asynccontextmanager
async def star(leaves: int) -> AsyncIterator[tuple[Host, list[Host]]]:
    hub, others = Host(0, [LOOPBACK]), [Host(number, []) for number in range(1, leaves + 1)]
    async with trio.open_nursery() as nursery:
        for host in (hub, *others):
            nursery.start_soon(host.peer.run)
            await host.peer.ready()
        for host in others:
            with contextlib.suppress(Unreachable):
                await host.peer.dial(await hub.peer.addresses())
        yield hub, others
        nursery.cancel_scope.cancel()


async def every_head_arrives(leaves: int, heads: int, longest: float) -> None:
    async with star(leaves) as (hub, others):
        deadline = time.monotonic() + 60
        subscribed = hub.peer._transport.pubsub.peer_topics
        while len(subscribed.get(TOPIC, ())) < leaves and time.monotonic() < deadline:  # noqa: ASYNC110
            await trio.sleep(0.05)
        assert len(hub.peer._transport.pubsub.peer_topics[TOPIC]) == leaves
        await trio.sleep(2 * GOSSIP_HEARTBEAT_SECONDS)  # until the mesh is cut down to its degree
        published = {b"head %d" % number for number in range(heads)}
        for data in sorted(published):
            await hub.peer.publish(TOPIC, data)
            await trio.sleep(0.3)
        with trio.move_on_after(longest):
            while any(host.received < published for host in others):  # noqa: ASYNC110
                await trio.sleep(0.05)
        missed = sum(len(published - host.received) for host in others)
        assert missed == 0, f"{missed} of {heads * leaves} were lost"


@pytest.mark.slow
def test_over_libp2p_every_peer_of_a_star_hears_every_head() -> None:
    trio.run(every_head_arrives, 30, 5, 20.0)


@pytest.mark.slow
def test_over_libp2p_every_one_of_two_hundred_peers_hears_every_head() -> None:
    """On 439044d three messages in four are lost. Figures: `python -m benchmarks.broadcast.gossip --star 200`."""
    trio.run(every_head_arrives, 200, 10, 60.0)
