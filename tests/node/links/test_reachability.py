"""The addresses that a node announces, and its search for a relay."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from echo2.node.links.reachability import Reachability, RelaySources
from echo2.p2p.discovery.messages import ReachableResponse
from echo2.p2p.discovery.peer_records import RECORD_RENEWAL_MS, RecordIssuer, decode_own
from echo2.p2p.errors import Unreachable
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.limits.dial_backoff import DialLimited
from echo2.p2p.wire_types import encode
from tests.support.clock import run_fake
from tests.support.fake_coordinator import wall

KEY = generate_key()
ME = peer_id(public_bytes(KEY))
OWN = "/ip4/10.0.0.5/tcp/4000"
COORDINATOR = "/ip4/192.0.2.1/tcp/4310/p2p/coordinator"
HTTPS = "/ip4/192.0.2.1/tcp/4311/https/p2p/coordinator"
OTHER = "/ip4/192.0.2.2/tcp/4000/p2p/other"


class FakeNetwork:
    """A network whose coordinator answers `verdict` to a request to dial back; `relays` grant reservations."""

    peer_id = ME

    def __init__(self, verdict: ReachableResponse | None, relays: tuple[str, ...] = ()) -> None:
        self.verdict, self.relays = verdict, relays
        self.own = [OWN]
        self.reservations: dict[str, str] = {}
        self.by = "direct"
        self.questions = self.attempts = 0
        self.dialled = list[str]()

    async def addresses(self) -> list[str]:
        return [*self.own, *(f"{relay}/p2p-circuit/p2p/{ME}" for relay in self.reservations.values())]

    async def routes(self) -> dict[str, str]:
        return {"coordinator": self.by}

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        self.questions += 1
        if self.verdict is None:
            raise Unreachable("it has no such method")
        return encode(self.verdict)

    async def peers(self) -> list[str]:
        return ["coordinator"]

    async def dial(self, address: str) -> str:
        self.dialled.append(address)
        return address.rpartition("/p2p/")[2]

    async def reserve(self, addresses: list[str]) -> None:
        self.attempts += 1
        peer = addresses[0].rpartition("/p2p/")[2]
        if peer not in self.relays:
            raise Unreachable(f"{peer} is no relay")
        self.reservations[peer] = addresses[0]

    async def release(self, relay: str) -> None:
        del self.reservations[relay]


@asynccontextmanager
async def reaching(
    network: FakeNetwork, relays: tuple[str, ...] = (), candidates: tuple[str, ...] = (HTTPS, COORDINATOR, OTHER)
):
    """Run a `Reachability` after its first greeting; yield it and the reasons for further greetings."""
    changes: list[str] = []
    reachability = Reachability(
        network, network, network, RelaySources(list(relays), lambda: list(candidates), network.dial),
        RecordIssuer(KEY, bytes(32)), coordinator=lambda: "coordinator", now=wall,
    )  # fmt: skip
    reachability.on_change = changes.append
    await reachability.record()
    task = asyncio.create_task(reachability.run())
    await asyncio.sleep(1)
    yield reachability, changes
    task.cancel()


def test_a_node_that_can_be_dialled_announces_its_observed_address_and_reserves_at_no_relay():
    async def main() -> None:
        network = FakeNetwork(ReachableResponse(observed="198.51.100.7", ports=[4000]), relays=("coordinator",))
        async with reaching(network) as (reachability, changes):
            assert await reachability.addresses() == [f"/ip4/198.51.100.7/tcp/4000/p2p/{ME}", f"{OWN}/p2p/{ME}"]
            assert changes == ["this node's addresses changed"]
            assert not network.reservations
            assert "directly" in reachability.summary

    run_fake(main)


@pytest.mark.parametrize("relay", ["coordinator", "other"])
def test_a_node_that_cannot_be_dialled_reserves_at(relay):
    async def main() -> None:
        network = FakeNetwork(ReachableResponse(observed="198.51.100.7", ports=[]), relays=(relay,))
        async with reaching(network) as (reachability, changes):
            assert network.reservations == {relay: COORDINATOR if relay == "coordinator" else OTHER}
            assert "/p2p-circuit" in (await reachability.addresses())[0], "what works comes first"
            assert len(changes) == 1
            assert "no port of this node answers" in reachability.summary
            assert network.dialled == ([] if relay == "coordinator" else [OTHER]), "one that is connected needs no dial"

    run_fake(main)


def test_a_candidate_that_the_limits_refuse_is_not_asked():
    class Refusing(FakeNetwork):
        async def dial(self, address: str) -> str:
            raise DialLimited(address, 9.0)

    async def main() -> None:
        network = Refusing(ReachableResponse(observed="198.51.100.7", ports=[]), relays=("other",))
        async with reaching(network, candidates=(OTHER,)) as (reachability, _):
            assert network.attempts == 0
            assert "not dialling" in reachability.summary

    run_fake(main)


def test_a_node_connected_through_a_relay_reserves_at_one():
    async def main() -> None:
        network = FakeNetwork(ReachableResponse(), relays=("other",))
        network.by = "relay"
        async with reaching(network):
            assert list(network.reservations) == ["other"]

    run_fake(main)


def test_without_a_relay_the_node_names_the_reason():
    async def main() -> None:
        async with reaching(FakeNetwork(ReachableResponse(observed="198.51.100.7"))) as (reachability, changes):
            assert reachability.summary.startswith("by nobody")
            assert not changes

    run_fake(main)


def test_a_coordinator_that_gives_no_verdict_changes_nothing():
    async def main() -> None:
        for verdict in (None, ReachableResponse()):
            network = FakeNetwork(verdict, relays=("coordinator",))
            async with reaching(network) as (reachability, changes):
                assert not network.reservations
                assert not changes
                assert reachability.summary.startswith("not known")

    run_fake(main)


def test_the_relays_that_the_owner_named_are_used_in_any_case():
    async def main() -> None:
        network = FakeNetwork(ReachableResponse(observed="198.51.100.7", ports=[4000]), relays=("other",))
        async with reaching(network, relays=(OTHER,)):
            assert list(network.reservations) == ["other"]

    run_fake(main)


def test_a_named_relay_that_is_down_at_the_start_is_tried_again_after_growing_pauses():
    async def main() -> None:
        network = FakeNetwork(ReachableResponse(observed="198.51.100.7", ports=[4000]))
        async with reaching(network, relays=(OTHER,)) as (_, changes):
            await asyncio.sleep(600)
            assert 12 <= network.attempts <= 17, "pauses of 1, 2, 4, 8, 16, 32 and then 60 s"
            assert network.questions == 2, "the coordinator is asked meanwhile"
            network.relays = ("other",)
            await asyncio.sleep(70)
            assert list(network.reservations) == ["other"]
            assert len(changes) == 2, "the coordinator hears of the address through the relay"
            attempts = network.attempts
            await asyncio.sleep(600)
            assert network.attempts == attempts

    run_fake(main)


def test_a_named_relay_that_also_served_as_the_one_found_is_not_given_back():
    async def main() -> None:
        network = FakeNetwork(ReachableResponse(observed="198.51.100.7", ports=[]), relays=("other",))
        async with reaching(network, relays=(OTHER,)) as (reachability, _):
            assert "through the relay other" in reachability.summary
            network.own, network.verdict = (
                ["/ip4/10.9.9.9/tcp/4000"],
                ReachableResponse(observed="203.0.113.1", ports=[4000]),
            )
            await asyncio.sleep(10)
            assert "directly" in reachability.summary
            assert list(network.reservations) == ["other"]

    run_fake(main)


def test_a_node_that_is_itself_the_first_candidate_reserves_at_the_next():
    async def main() -> None:
        network = FakeNetwork(ReachableResponse(observed="198.51.100.7", ports=[]), relays=("other",))
        async with reaching(network, candidates=(f"{OWN}/p2p/{ME}", OTHER)):
            assert list(network.reservations) == ["other"]

    run_fake(main)


def test_a_node_that_is_itself_the_only_candidate_knows_no_relay():
    async def main() -> None:
        network = FakeNetwork(ReachableResponse(observed="198.51.100.7", ports=[]))
        async with reaching(network, candidates=(f"{OWN}/p2p/{ME}",)) as (reachability, _):
            assert reachability.summary.endswith("no relay accepts this node (none is known)")

    run_fake(main)


def test_a_machine_that_moves_to_another_network_asks_and_greets_again():
    async def main() -> None:
        network = FakeNetwork(ReachableResponse(observed="198.51.100.7", ports=[]), relays=("coordinator",))
        async with reaching(network) as (reachability, changes):
            network.own = ["/ip4/10.9.9.9/tcp/4000"]
            network.verdict = ReachableResponse(observed="203.0.113.1", ports=[4000])
            await asyncio.sleep(10)
            assert not network.reservations, "the relay is given back"
            assert len(changes) == 2
            assert (await reachability.addresses())[0] == f"/ip4/203.0.113.1/tcp/4000/p2p/{ME}"

    run_fake(main)


def test_the_coordinator_is_asked_to_dial_back_again_only_after_a_while():
    async def main() -> None:
        network = FakeNetwork(ReachableResponse(observed="198.51.100.7", ports=[4000]))
        async with reaching(network):
            await asyncio.sleep(590)
            assert network.questions == 1
            await asyncio.sleep(20)
            assert network.questions == 2

    run_fake(main)


@pytest.mark.slow
def test_a_machines_record_follows_its_addresses_and_is_renewed_before_it_expires():
    async def main() -> None:
        network = FakeNetwork(ReachableResponse(observed="198.51.100.7", ports=[4000]))
        async with reaching(network) as (reachability, changes):
            first = decode_own(await reachability.record())
            assert first.addresses == (f"/ip4/198.51.100.7/tcp/4000/p2p/{ME}", f"{OWN}/p2p/{ME}")
            network.own, network.verdict = (
                ["/ip4/10.9.9.9/tcp/4000"],
                ReachableResponse(observed="203.0.113.1", ports=[4000]),
            )
            await asyncio.sleep(10)
            second = decode_own(await reachability.record())
            assert second.issued > first.issued
            assert second.addresses[0] == f"/ip4/203.0.113.1/tcp/4000/p2p/{ME}"
            assert len(changes) == 2
            await asyncio.sleep(RECORD_RENEWAL_MS / 1000 + 10)
            assert changes[2] == changes[-1] == "this node's peer record must be renewed"
            assert decode_own(await reachability.record()).issued >= second.issued + RECORD_RENEWAL_MS

    run_fake(main)
