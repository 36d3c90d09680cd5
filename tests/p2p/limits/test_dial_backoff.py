"""Limits on dials to addresses learnt from peers."""

from itertools import pairwise

import anyio
import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.p2p.discovery.dialer import LIMITS_WAIT_SECONDS, PeerDialer
from echo2.p2p.discovery.peer_records import RecordIssuer
from echo2.p2p.errors import Unreachable
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.limits.dial_backoff import (
    DIAL_BURST,
    DIAL_PAUSE_SECONDS,
    DIALS_PER_SECOND,
    FAILURE_EACH,
    FAILURES,
    LONGEST_DIAL_PAUSE_SECONDS,
    OPERATOR_FAILURES,
    OPERATOR_HASTE,
    DialBackoff,
    DialLimited,
)
from echo2.p2p.peer.peer import Peer
from tests.support.clock import run_fake
from tests.support.peers import running

RUN = b"r" * 32


def at(host: str, peer: str = "p", port: int = 4310) -> str:
    return f"/ip4/{host}/tcp/{port}/p2p/{peer}"


def tried(backoff: DialBackoff, address: str, now: float, connected: tuple[str, ...] = ()) -> bool:
    """Tell whether the address may be dialled now; the dial then fails."""
    try:
        backoff.admit(address, now, connected)
    except DialLimited:
        return False
    backoff.on_failure(address, now, connected)
    return True


@pytest.mark.slow
def test_dials_to_all_hosts_together_are_limited_to_a_burst_and_a_rate() -> None:
    backoff = DialBackoff()
    attempts = [(second, f"10.{second % 250}.{number}.1") for second in range(601) for number in range(50)]
    dialled_at = [second for second, host in attempts if tried(backoff, at(host), second)]
    assert dialled_at.count(0) == DIAL_BURST
    assert len(dialled_at) == DIAL_BURST + 600 * DIALS_PER_SECOND


def test_a_host_that_does_not_answer_is_dialled_ever_less_often_down_to_a_limit() -> None:
    backoff = DialBackoff()
    dialled_at = [second for second in range(3600) if tried(backoff, at("10.0.0.1", f"peer{second}"), second)]
    assert [later - earlier for earlier, later in pairwise(dialled_at)][:5] == [30, 60, 120, 240, 480]
    assert {later - earlier for earlier, later in pairwise(dialled_at[5:])} == {LONGEST_DIAL_PAUSE_SECONDS}
    assert tried(backoff, at("10.0.0.1"), 9999)
    assert not tried(backoff, at("10.0.0.1"), 9999 + DIAL_PAUSE_SECONDS - 1)
    assert tried(backoff, at("10.0.0.1"), 9999 + DIAL_PAUSE_SECONDS), "after a long peace it starts anew"


def test_a_subnet_causes_few_failures_with_any_number_of_hosts() -> None:
    backoff = DialBackoff()
    dialled_at = [second for second in range(3600) if tried(backoff, at(f"8.8.8.{second % 256}"), second)]
    assert len(dialled_at) <= FAILURES + 3600 / FAILURE_EACH
    assert tried(backoff, at("8.8.9.1"), 3600), "and others pay nothing for it"


def test_many_honest_nodes_in_one_subnet_are_dialled_freely() -> None:
    backoff = DialBackoff()
    for number in range(int(DIAL_BURST)):
        backoff.admit(at(f"8.8.8.{number}"), 0)
        backoff.on_success(at(f"8.8.8.{number}"))


def test_false_records_that_name_an_honest_peers_host_do_not_block_dials_to_it() -> None:
    backoff = DialBackoff()
    backoff.on_success(at("8.8.8.8", "honest"))
    for number in range(9):
        tried(backoff, at("8.8.8.8", f"forger{number}"), 0)
        tried(backoff, at(f"8.8.8.{number}", f"forger{number}"), 0)
    backoff.admit(at("8.8.8.8", "honest"), 1)
    backoff.on_failure(at("8.8.8.8", "honest"), 1)
    with pytest.raises(DialLimited):
        backoff.admit(at("8.8.8.8", "honest"), 2)


def test_peers_behind_a_connected_relay_are_limited_apart_and_behind_another_together() -> None:
    backoff = DialBackoff()
    one, two = (f"{at('8.8.8.8', 'relay')}/p2p-circuit/p2p/{name}" for name in ("one", "two"))
    assert tried(backoff, one, 0, ("relay",))
    assert not tried(backoff, one, 1, ("relay",))
    assert tried(backoff, two, 1, ("relay",))
    assert tried(backoff, one, 2)
    assert not tried(backoff, two, 3)


@pytest.mark.parametrize("host", ["/ip4/8.8.8.{0}", "/dns4/n{0}.wildcard.example", "/ip4/10.{0}.0.1"])
def test_operators_addresses_in_one_subnet_of_any_names_or_of_private_hosts_cause_few_failures(host: str) -> None:
    backoff = DialBackoff(of_operator=True)
    hosts = [f"{host.format(number % 250)}/tcp/4310/p2p/c" for number in range(3600)]
    dialled_at = [second for second in range(3600) if tried(backoff, hosts[second], second)]
    assert len(dialled_at) <= OPERATOR_FAILURES + 3600 * OPERATOR_HASTE / FAILURE_EACH
    assert len(dialled_at) >= 3600 * OPERATOR_HASTE / FAILURE_EACH


def test_an_operators_port_that_is_closed_delays_none_beside_it_and_is_tried_ten_times_as_often_as_a_peers() -> None:
    backoff = DialBackoff(of_operator=True)
    dialled_at = [second for second in range(600) if tried(backoff, at("8.8.8.8"), second)]
    assert [later - earlier for earlier, later in pairwise(dialled_at)][:5] == [3, 6, 12, 24, 48]
    assert {later - earlier for earlier, later in pairwise(dialled_at[5:])} == {
        LONGEST_DIAL_PAUSE_SECONDS / OPERATOR_HASTE
    }
    backoff.admit("/ip4/8.8.8.8/tcp/4311/https/p2p/p", dialled_at[-1])


def test_a_peer_whose_address_changed_is_reached_by_its_new_record_and_not_by_its_old_one() -> None:
    async def main() -> None:
        network, key = MemoryNetwork(1), generate_key()
        moving, other = (
            Peer(network.transport(peer_id(public_bytes(key))), seed=0),
            Peer(network.transport("b"), seed=1),
        )
        own, dialer = RecordIssuer(key, RUN), PeerDialer(other, RUN, lambda: 0)
        async with running(moving, other, connect=False):
            (old,) = dialer.take([own.issue(await moving.addresses(), 0)])
            assert await dialer.dial_any(old.addresses)
            network.move(moving.peer_id)
            assert await other.peers() == []
            assert not await dialer.dial_any(old.addresses)
            (new,) = dialer.take([own.issue(await moving.addresses(), 0)])
            assert dialer.take([old.sealed]) == [new], "the old record brings it no more"
            assert await dialer.dial_any(new.addresses)
            assert await other.peers() == [moving.peer_id]

    run_fake(main)


def test_a_record_with_the_address_of_another_peer_fails_and_its_host_is_not_dialled() -> None:
    async def main() -> None:
        network, forger = MemoryNetwork(1), generate_key()
        victim, other = Peer(network.transport("victim"), seed=0), Peer(network.transport("b"), seed=1)
        dialer = PeerDialer(other, RUN, lambda: 0)
        async with running(victim, other, connect=False):
            named = network.addresses.address("victim").replace("/p2p/victim", f"/p2p/{peer_id(public_bytes(forger))}")
            (known,) = dialer.take([RecordIssuer(forger, RUN).issue([named], 0)])
            assert not await dialer.dial_any(known.addresses)
            with pytest.raises(DialLimited):
                await dialer.dial(known.addresses[0])
            assert await other.peers() == []

    run_fake(main)


def test_a_short_wait_is_waited_for_and_a_long_one_is_not() -> None:
    async def main() -> None:
        network = MemoryNetwork(1)
        here, there = Peer(network.transport("a"), seed=0), Peer(network.transport("b"), seed=1)
        dialer = PeerDialer(here, RUN, lambda: 0)
        async with running(here, there, connect=False):
            for number in range(int(DIAL_BURST)):
                with pytest.raises(Unreachable):
                    await dialer.dial(at(f"100.127.0.{number}"))
            began = anyio.current_time()
            assert await dialer.dial_any(await there.addresses())
            assert 0 < anyio.current_time() - began <= LIMITS_WAIT_SECONDS
            began = anyio.current_time()
            assert not await dialer.dial_any([at("100.127.0.1")])
            assert anyio.current_time() == began

    run_fake(main)
