"""Origins of requests: limits that many keys cannot multiply."""

from echo2.p2p.https.client_limits import HttpsLimits
from echo2.p2p.https.combined_network import PeerAndHttps
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.limits import origin
from echo2.p2p.limits.origin import Origin, Origins
from echo2.p2p.limits.party import PRIVATE, Parties
from echo2.p2p.limits.subnets import PeerLimits
from tests.support.https import client_of, served
from tests.support.libp2p_peers import LOOPBACK, running


def test_the_party_of_a_direct_connection_is_its_subnet_or_at_a_private_address_the_connection() -> None:
    origins = Origins(Parties())
    origins.on_connection("eve", 1, "8.8.8.8", "")
    origins.on_connection("mallory", 2, "8.8.8.9", "")
    origins.on_connection("alice", 3, "192.168.1.7", "")
    assert origins.of("eve") == Origin("eve", "8.8.8.0/24")
    assert origins.of("mallory").party == origins.of("eve").party
    assert origins.of("alice") == Origin("alice", "alice")
    assert origins.of("nobody") == Origin("nobody", "nobody")


def test_a_relayed_peer_counts_for_the_address_seen_directly_or_else_for_relay_and_key() -> None:
    origins = Origins(Parties())
    origins.on_connection("bob", 1, None, "relay")
    assert origins.of("bob") == Origin("bob", "relay/bob")
    origins.on_connection("bob", 2, "8.8.8.8", "")
    assert origins.of("bob").party == "8.8.8.0/24"
    origins.on_disconnection("bob", 2)
    assert origins.of("bob").party == "8.8.8.0/24", (
        "the remaining relayed connection counts for the address seen directly"
    )
    origins.on_disconnection("bob", 1)
    origins.on_connection("bob", 3, None, "relay")
    assert origins.of("bob").party == "8.8.8.0/24"


def test_the_last_request_of_a_disconnected_peer_counts_for_its_party_and_memory_stays_bounded(monkeypatch) -> None:
    monkeypatch.setattr(origin, "MOST_PAST_ORIGINS", 3)
    origins = Origins(Parties())
    origins.on_connection("stays", 0, "8.8.4.4", "")
    for number in range(6):
        origins.on_connection(f"p{number}", number, "8.8.8.8", "")
        origins.on_disconnection(f"p{number}", number)
    assert origins.of("p5").party == "8.8.8.0/24"
    assert origins.of("p2") == Origin("p2", "p2")
    assert origins.of("stays").party == "8.8.4.0/24"
    remembered = [number for number in range(6) if origins.of(f"p{number}") != Origin(f"p{number}", f"p{number}")]
    assert remembered == [3, 4, 5]


def test_where_private_addresses_are_one_party_a_key_with_accepted_work_has_its_own() -> None:
    parties = Parties(private_is_one=True, proxies=["10.0.0.7"])
    origins = Origins(parties)
    for number, peer in enumerate(("alice", "bob", "eve")):
        origins.on_connection(peer, number, "192.168.1.7", "")
    origins.on_connection("relayed", 3, None, "relay")
    assert [origins.of(peer).party for peer in ("alice", "bob", "eve")] == [PRIVATE] * 3
    parties.keep(["alice", "relayed"])
    assert origins.of("alice") == Origin("alice", "alice", is_known=True), "from its next request on"
    assert origins.of("bob") == Origin("bob", PRIVATE)
    assert origins.of("relayed") == Origin("relayed", "relayed", is_known=True)


def loopback_is_foreign(ip: str) -> str:
    return ip.rpartition(".")[0] + ".0/24"


async def test_over_libp2p_a_handler_learns_the_party_of_the_requester_and_loopback_may_count_as_public() -> None:
    origins: list[Origin] = []
    coordinator = ThreadedPeer(generate_key(), [LOOPBACK], limits=PeerLimits(parties=Parties(loopback_is_foreign)))
    node = ThreadedPeer(generate_key(), [])

    async def note(peer: str, data: bytes) -> bytes:
        origins.append(coordinator.origin(peer))
        return b""

    coordinator.serve("note", note, limit=1)
    async with running(coordinator, node):
        await node.request(coordinator.peer_id, "note", b"", timeout=60)
        assert node.origin(coordinator.peer_id).party == coordinator.peer_id
    assert origins == [Origin(node.peer_id, "127.0.0.0/24")]
    assert coordinator.origin(node.peer_id) == origins[0], "also when it has gone"


async def test_over_https_a_handler_learns_the_party_of_the_requester() -> None:
    origins: list[Origin] = []
    servers: list[PeerAndHttps] = []

    async def note(peer: str, data: bytes) -> bytes:
        origins.append(servers[-1].origin(peer))
        return b""

    for limits in (HttpsLimits(parties=Parties(loopback_is_foreign)), HttpsLimits()):
        async with served(note=note, limits=limits) as server, client_of(server) as client:
            servers.append(server)
            await client.request("coordinator", "note", b"", timeout=60)
    assert origins[0] == Origin("https/127.0.0.1", "127.0.0.0/24")
    assert origins[1].connection.startswith("https/127.0.0.1/")
    assert origins[1].party == origins[1].connection
