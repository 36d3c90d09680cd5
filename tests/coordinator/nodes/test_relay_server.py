"""A relay by one command: two peers reach each other through the address that it prints."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from echo2.coordinator.nodes.relay_server import limits_of, public_address
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.limits.relay_quota import RelayRefused, RelayTable
from echo2.p2p.multiaddr import address_of, through
from echo2.runtime.errors import LocalFault
from tests.support.libp2p_peers import running
from tests.support.paths import ROOT


@pytest.mark.parametrize(
    ("host", "address"),
    [("192.0.2.1", "/ip4/192.0.2.1"), ("2001:db8::1", "/ip6/2001:db8::1"), ("r.example.org", "/dns/r.example.org")],
)
def test_a_host_is_an_ip_address_or_a_name(host: str, address: str) -> None:
    assert public_address(host) == address


@pytest.mark.parametrize(
    "host", ["", "a b", "https://r.example.org", "r.example.org:4101", "/ip4/192.0.2.1", "x" * 300]
)
def test_what_is_no_host_is_refused_in_one_sentence(host: str) -> None:
    with pytest.raises(LocalFault, match="--host should be an IP address or a name"):
        public_address(host)


def test_a_few_circuits_to_the_coordinator_keep_no_node_out() -> None:
    table = RelayTable(limits_of(100.0))
    table.reserve("coordinator", "192.0.2.1", 0.0)
    for number in range(100):
        table.open(f"key {number // 8}", "coordinator", 0.0)
    for _ in range(8):
        table.open("another key", "coordinator", 0.0)
    with pytest.raises(RelayRefused, match="too many circuits"):
        table.open("another key", "coordinator", 0.0)
    table.open("a volunteer", "coordinator", 0.0)


@pytest.mark.slow
async def test_two_peers_meet_through_the_printed_address_which_stays_and_sigterm_ends_the_relay(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "echo2.coordinator.cli", "relay", "--home", tmp_path / "relay", "--port", "0",
               "--host", "127.0.0.1"]  # fmt: skip
    peers = []
    for _ in range(2):
        relay = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
        try:
            address = (await relay.stdout.readline()).decode().strip()
            peers.append(address_of(address).peer)
            asleep, dialling = ThreadedPeer(generate_key(), []), ThreadedPeer(generate_key(), [])
            async with running(asleep), running(dialling):
                await asleep.reserve([address])
                assert await dialling.dial([through(address, asleep.peer_id)]) == asleep.peer_id
        finally:
            relay.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(relay.wait(), 20) == 0
    assert peers[0] == peers[1], "its key is kept"
