"""The addresses of invite and Head: in which order, how often and when a node dials them."""

import hashlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from echo2.node.links.coordinator_client import CoordinatorClient
from echo2.p2p.discovery.operator_addresses import SPREAD_SECONDS, OperatorAddresses
from echo2.p2p.errors import Unreachable
from echo2.p2p.limits.dial_backoff import FAILURE_EACH, OPERATOR_FAILURES, OPERATOR_HASTE, DialLimited
from echo2.p2p.multiaddr import ROUTES, Route, address_of, peer_of
from tests.support.clock import on_fake_clock

HOME = "/ip4/192.0.2.7/tcp/4310/p2p/c"
RELAYED = "/ip4/198.51.100.1/tcp/4310/p2p/r/p2p-circuit/p2p/c"
OVER_HTTPS = "/ip4/192.0.2.7/tcp/4311/https/p2p/c"


class Links:
    """A network that supports only dialling. `up`: addresses that answer. `dialled`: times of dials by address."""

    peer_id = "own"

    def __init__(self, *up: str) -> None:
        self.up, self.dialled, self.connected = set(up), list[tuple[float, str]](), list[str]()

    async def peers(self) -> list[str]:
        return self.connected

    async def dial(self, addresses: list[str]) -> str:
        (address,) = addresses
        self.dialled.append((anyio.current_time(), address))
        if address not in self.up:
            raise Unreachable(address)
        return peer_of(address)

    async def routes(self) -> dict[str, Route]:
        return {}


def node_of(links: Links, *invited: str, number: int = 0) -> tuple[OperatorAddresses, list[str]]:
    """Return the addresses of a node, and the list of those that its Head names."""
    head = list[str]()
    key = hashlib.sha256(bytes([number])).digest()
    return OperatorAddresses(links, key, ROUTES, lambda: [*head, *invited]), head  # type: ignore[arg-type]


@on_fake_clock
async def test_one_that_failed_comes_after_all_others_until_the_coordinator_answers_there() -> None:
    links = Links(RELAYED, OVER_HTTPS)
    addresses, _ = node_of(links, OVER_HTTPS, HOME, RELAYED)
    assert addresses.candidates() == [HOME, RELAYED, OVER_HTTPS]
    with pytest.raises(Unreachable):
        await addresses.dial(HOME)
    assert addresses.candidates() == [RELAYED, OVER_HTTPS, HOME]
    assert await addresses.dial(RELAYED) == "c"
    addresses.on_failure(RELAYED)  # what answers is not the coordinator
    assert addresses.candidates() == [OVER_HTTPS, HOME, RELAYED]
    addresses.on_coordinator(HOME)
    assert addresses.candidates() == [HOME, OVER_HTTPS, RELAYED]
    with pytest.raises(DialLimited):
        await addresses.dial(RELAYED)


@on_fake_clock
async def test_a_system_service_is_never_dialled() -> None:
    addresses, head = node_of(Links(), HOME, "/ip4/192.0.2.7/tcp/25/p2p/c")
    head += ["/dns4/victim.example/tcp/22/p2p/c", "/ip4/169.254.169.254/tcp/4310/p2p/c"]
    assert addresses.all() == [HOME]


@on_fake_clock
async def test_the_nodes_of_a_run_dial_hosts_that_are_new_in_a_head_spread_over_minutes() -> None:
    moved = "/ip4/203.0.113.9/tcp/4310/p2p/c"
    delays = []
    for number in range(200):
        addresses, head = node_of(Links(), HOME, number=number)
        assert addresses.candidates() == [HOME]
        head.append(moved)
        began = anyio.current_time()
        assert addresses.candidates(connected=["c"]) == [moved, HOME], "whoever is connected needs no dial"
        while moved not in addresses.candidates():  # noqa: ASYNC110 (the clock alone decides)
            await anyio.sleep(1)
        delays.append(anyio.current_time() - began)
        assert addresses.candidates() == [moved, HOME]
        head.append("/ip4/203.0.113.9/tcp/4444/p2p/c")
        assert len(addresses.candidates()) == 3, "another port of a host that is known"
    assert max(delays) <= SPREAD_SECONDS + 1
    per_tenth = Counter(int(10 * delay / SPREAD_SECONDS) for delay in delays)
    assert max(per_tenth.values()) <= 40, "of 200 nodes, 20 to be expected"
    again, head = node_of(Links(), HOME, number=7)
    again.candidates()
    head.append(moved)
    again.candidates()
    await anyio.sleep(delays[7])
    assert moved in again.candidates(), "the delay follows from the node's key"


def invited_to(addresses: list[str]) -> Any:
    """Return the context of a node that knows no Head."""
    trust_store = SimpleNamespace(trusted=SimpleNamespace(head=None), serial=None)
    return SimpleNamespace(
        trust_store=trust_store, invite=SimpleNamespace(addresses=addresses), node=bytes(32), clock=None, seed=0
    )


def aimed(hosts: str, links: Links) -> CoordinatorClient:
    """Return the client of a node whose invite has 16 addresses of a third party."""
    invited = [f"{hosts.format(number)}/tcp/{4000 + number}/p2p/c" for number in range(16)]

    class Greeter:
        async def search(self) -> None:
            return None

    return CoordinatorClient(links, links, invited_to(invited), Greeter())  # type: ignore[arg-type]


@pytest.mark.parametrize("hosts", ["/ip4/8.8.8.8", "/ip4/8.8.8.{0}", "/dns4/n{0}.victim.example", "/ip4/10.0.0.{0}"])
@on_fake_clock
async def test_an_invite_that_names_a_third_party_costs_it_five_connections_a_minute_per_node(hosts: str) -> None:
    """Before, 49 a minute where dials time out, and 178 where they are refused."""
    links = Links()
    with anyio.move_on_after(3600):
        await aimed(hosts, links).run()
    per_hour = OPERATOR_FAILURES + 3600 * OPERATOR_HASTE / FAILURE_EACH
    assert 0.5 * per_hour <= len(links.dialled) <= per_hour
    first_minute = [at for at, _ in links.dialled if at - links.dialled[0][0] < 60]
    assert len(first_minute) <= OPERATOR_FAILURES + 60 * OPERATOR_HASTE / FAILURE_EACH


class Connected(CoordinatorClient):
    """A client that takes whoever answers for the coordinator."""

    async def _greet(self, peer: str) -> bool:
        self.peer = peer
        self._down.clear()
        return True


@on_fake_clock
async def test_once_another_address_works_those_that_failed_are_dialled_a_few_times_an_hour(tmp_path: Path) -> None:
    class Relaying(Links):
        async def routes(self) -> dict[str, Route]:
            return {"c": "relay"}

    dead = [f"/ip4/8.8.{number}.8/tcp/4310/p2p/c" for number in range(8)]
    links = Relaying(RELAYED)
    client = Connected(links, links, invited_to([*dead, RELAYED]), None)  # type: ignore[arg-type]
    with anyio.move_on_after(3600):
        await client.run()
    hosts = Counter(address_of(address).host for _, address in links.dialled)
    assert hosts["198.51.100.1"] == 1
    assert sum(hosts.values()) - 1 <= len(dead) + 20
