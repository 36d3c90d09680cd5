"""Circuits over real libp2p on loopback, between two peers that know only the relay: requests, gossip, reservations."""

import socket
from typing import Any

import pytest
import trio

from echo2.p2p.errors import Unreachable
from echo2.p2p.libp2p.circuit import without_names
from echo2.p2p.limits.relay_quota import RelayLimits
from tests.support.libp2p_peers import new_peer, on_trio, running
from tests.support.relays import behind_a_relay, holders, relayed, until

pytestmark = pytest.mark.usefixtures("no_upgrade")


async def test_two_peers_that_know_only_the_relay_answer_each_other():
    async with behind_a_relay() as (source, relay, target):
        address = relayed(target, await relay.addresses())
        assert address[0] in await target.addresses()
        assert await source.dial(address) == target.peer_id
        assert (await source.routes())[target.peer_id] == "relay"
        assert await source.request(target.peer_id, "echo", b"x", timeout=60) == source.peer_id.encode() + b":x"
        assert await target.request(source.peer_id, "echo", b"y", timeout=60) == target.peer_id.encode() + b":y"


async def reserved(transport) -> list[str]:
    return holders(transport.relay_service.table, trio.current_time())


async def end_of_reservation(transport) -> float:
    [(end, _)] = transport.relay_service.table._reservations.values()
    return end


async def test_gossip_passes_a_relay():
    received: list[bytes] = []

    async def on_message(peer: str, data: bytes) -> bool:
        received.append(data)
        return True

    source, relay, target = new_peer(), new_peer(relay=RelayLimits()), new_peer()
    for peer in (source, target):
        peer.subscribe("news", on_message)
    async with running(source), running(relay), running(target):
        await target.reserve(await relay.addresses())
        await source.dial(relayed(target, await relay.addresses()))

        await source.publish("news", b"head")

        async def arrived() -> bool:
            return received == [b"head"]

        await until(arrived)


async def test_a_reservation_is_renewed_before_it_ends():
    async with behind_a_relay(RelayLimits(life=3.0)) as (source, relay, target):
        ends = {await on_trio(relay, end_of_reservation)}

        async def renewed_twice() -> bool:
            ends.add(await on_trio(relay, end_of_reservation))
            return len(ends) >= 3

        await until(renewed_twice)
        assert await source.dial(relayed(target, await relay.addresses())) == target.peer_id


async def test_a_released_reservation_is_not_renewed_and_not_announced():
    async with behind_a_relay(RelayLimits(life=1.0)) as (_, relay, target):
        await target.release(relay.peer_id)
        assert not [address for address in await target.addresses() if "p2p-circuit" in address]

        async def released() -> bool:
            return await on_trio(relay, reserved) == []

        await until(released)


async def test_a_lost_relay_is_dialled_again_and_the_reservation_renewed():
    async with behind_a_relay() as (source, relay, target):
        await on_trio(relay, lambda transport: transport.drop(target.peer_id))

        async def back() -> bool:
            return target.peer_id in await relay.peers() and await on_trio(relay, reserved) == [target.peer_id]

        await until(back)
        assert await source.dial(relayed(target, await relay.addresses())) == target.peer_id


async def test_a_peer_without_a_relay_service_refuses_a_reservation():
    a, b = new_peer(), new_peer()
    async with running(a), running(b):
        with pytest.raises(Unreachable, match="is no relay"):
            await a.reserve(await b.addresses())


class Names(trio.abc.HostnameResolver):
    """A resolver that knows one name."""

    async def getaddrinfo(
        self, host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        if host != b"relay.example":
            raise socket.gaierror("no such name")
        found = [(socket.AF_INET, ("192.0.2.7", port)), (socket.AF_INET6, ("2001:db8::7", port, 0, 0))]
        return [(kind, type, 6, "", place) for kind, place in found if family in (0, kind)]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


def test_a_relay_that_was_dialled_by_its_name_is_announced_by_ip_addresses():
    addresses = [f"/{kind}/relay.example/tcp/4310/p2p/R" for kind in ("dns4", "dns6", "dns")]
    four, six = "/ip4/192.0.2.7/tcp/4310/p2p/R", "/ip6/2001:db8::7/tcp/4310/p2p/R"

    async def main() -> None:
        trio.socket.set_custom_hostname_resolver(Names())
        assert await without_names(addresses) == [four, six]
        assert await without_names(["/dns4/gone.example/tcp/1/p2p/R", four, addresses[1]]) == [four, six]

    trio.run(main)


def test_a_name_with_thousands_of_addresses_counts_a_few_of_each_kind_and_one_that_is_no_name_none():
    class Names(trio.abc.HostnameResolver):
        async def getaddrinfo(self, host, port, family=0, type=0, proto=0, flags=0):
            four = [(socket.AF_INET, 1, 6, "", (f"192.0.{n >> 8}.{n & 255}", port)) for n in range(10_000)]
            return [(socket.AF_INET6, 1, 6, "", (f"2001:db8::{n:x}", port, 0, 0)) for n in range(10_000)] + four

        async def getnameinfo(self, sockaddr, flags):
            raise NotImplementedError

    async def main() -> None:
        trio.socket.set_custom_hostname_resolver(Names())
        few = [f"/ip6/2001:db8::{n}/tcp/1/p2p/R" for n in range(2)] + [
            f"/ip4/192.0.0.{n}/tcp/1/p2p/R" for n in range(2)
        ]
        assert await without_names(["/dns/many.example/tcp/1/p2p/R"]) == few
        known = "/ip4/192.0.2.7/tcp/4310/p2p/R"
        for no_name in ("a..b", "a" * 64, "."):
            assert await without_names([f"/dns4/{no_name}/tcp/1/p2p/R", known]) == [known], "the others stay"

    trio.run(main)
