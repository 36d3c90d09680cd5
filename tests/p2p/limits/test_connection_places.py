"""Places for connections: the shares of silent handshakes, of one address, of one subnet and of unknown peers."""

import pytest

from echo2.p2p.limits.connection_places import HANDSHAKE_GRACE, HANDSHAKES_MIN, ConnectionAdmission, ConnectionRefused
from echo2.p2p.limits.party import Parties
from echo2.p2p.limits.subnets import DIALS_BURST, DIALS_RATE, PER_SUBNET, PeerLimits

LIMITS = PeerLimits(connections=1024)


def taken(places: ConnectionAdmission, count: int, ip: str, now: float, *, name: str = "", shake: bool = True) -> int:
    """Return how many of `count` connections are admitted, a twentieth of a second apart."""
    taken_in = 0
    for number in range(count):
        one = f"{name or ip} {number}"
        try:
            places.admit(one, ip.format(number % 250), 0, now + number / 20)
        except ConnectionRefused:
            continue
        taken_in += 1
        if shake:
            places.handshake_done(one)
    return taken_in


def test_one_subnet_cannot_take_every_connection() -> None:
    places = ConnectionAdmission(LIMITS)
    assert taken(places, 200, "8.8.8.{}", 0) == PER_SUBNET
    with pytest.raises(ConnectionRefused, match="has 32 connections already"):
        places.admit("one more", "8.8.8.200", 0, 100)
    places.admit("elsewhere", "8.8.9.1", 0, 100)
    places.on_connection_end("8.8.8.{} 0")
    places.on_connection_end("8.8.8.{} 0")
    places.admit("in its place", "8.8.8.201", 0, 100)
    with pytest.raises(ConnectionRefused, match="has 32"):
        places.admit("and another", "8.8.8.202", 0, 100)


def test_one_address_leaves_half_of_its_subnet_s_handshakes_to_its_neighbours() -> None:
    places = ConnectionAdmission(LIMITS)
    assert taken(places, 300, "8.8.8.8", 0, shake=False) == PER_SUBNET // 2
    with pytest.raises(ConnectionRefused, match=r"8\.8\.8\.8 "):
        places.admit("the same", "8.8.8.8", 0, 1)
    assert taken(places, 1, "8.8.8.9", 1) == 1


def test_one_address_gets_a_bounded_rate_of_handshakes_and_is_not_banned() -> None:
    places, count = ConnectionAdmission(LIMITS), 0
    for number in range(3000):
        count += taken(places, 1, "8.8.8.8", number / 300, name=str(number))
        places.on_connection_end(f"{number} 0")
    assert count == pytest.approx(DIALS_BURST / 2 + 10 * DIALS_RATE / 2, abs=1)
    assert taken(places, 1, "8.8.8.9", 10) == 1, "a neighbour"
    assert taken(places, 1, "8.8.8.8", 13, name="later") == 1


def test_many_machines_in_a_private_network_are_all_admitted() -> None:
    assert taken(ConnectionAdmission(LIMITS), 1000, "10.0.0.7", 0) == 1000


def test_a_silent_handshake_is_evicted_for_a_new_one_from_the_address_with_most_first() -> None:
    places = ConnectionAdmission(PeerLimits(connections=4 * HANDSHAKES_MIN))
    places.admit("honest", "192.168.0.1", 0, 0)
    for number in range(HANDSHAKES_MIN - 1):
        assert places.admit(f"silent {number}", "192.168.0.66", 0, 0) is None
    assert places.admit("newcomer", "192.168.0.2", 0, 0) == "silent 0"
    assert places.admit("another", "192.168.0.3", 0, 0) == "silent 1"
    assert len(places._handshaking) == HANDSHAKES_MIN


def test_without_a_free_place_a_long_handshake_is_evicted_and_a_fresh_one_is_not() -> None:
    places = ConnectionAdmission(PeerLimits(connections=2))
    places.admit("silent", "192.168.0.66", 1, 0)
    with pytest.raises(ConnectionRefused, match="2 connections are open"):
        places.admit("newcomer", "192.168.0.1", 1, HANDSHAKE_GRACE / 2)
    assert places.admit("newcomer", "192.168.0.1", 1, HANDSHAKE_GRACE) == "silent"
    places.handshake_done("newcomer")
    with pytest.raises(ConnectionRefused, match="2 connections are open"):
        places.admit("one too many", "192.168.0.2", 2, 100)


def test_unknown_peers_cannot_lock_out_parties_with_accepted_work() -> None:
    parties = Parties()
    parties.keep(["8.8.8.0/24", "8.8.4.0/24", "1.1.1.0/24"])
    places = ConnectionAdmission(PeerLimits(connections=16, parties=parties))
    strangers = 0
    for number in range(20):
        try:
            places.admit(number, f"9.9.{number}.9", strangers, 0)
        except ConnectionRefused:
            break
        places.handshake_done(number)
        strangers += 1
    assert strangers == 13, "three subnets are known, a quarter of 16 is more"
    for count, ip in enumerate(("8.8.8.8", "8.8.4.4", "1.1.1.1")):
        places.admit(ip, ip, strangers + count, 0)
        places.handshake_done(ip)
    with pytest.raises(ConnectionRefused):
        places.admit("full", "8.8.8.9", 16, 0)


def test_a_key_with_accepted_work_at_a_private_address_gets_a_reserved_place_after_its_handshake() -> None:
    parties = Parties()
    parties.keep(["alice", "8.8.8.0/24"])
    places = ConnectionAdmission(PeerLimits(connections=8, parties=parties))
    for number in range(6):
        places.admit(number, "192.168.0.7", number, 0)
        places.handshake_done(number, f"stranger {number}", number + 1)
    places.admit("one more", "192.168.0.7", 6, 0)
    with pytest.raises(ConnectionRefused, match="kept for nodes with accepted work"):
        places.handshake_done("one more", "stranger 6", 7)
    places.on_connection_end("one more")
    places.admit("alice's", "192.168.0.7", 6, 0)
    places.handshake_done("alice's", "alice", 7)
    places.admit("public", "8.8.8.9", 7, 0)
    places.handshake_done("public", "carol", 8)
    places.on_connection_end("alice's")
    with pytest.raises(ConnectionRefused):
        places.admit("a stranger", "9.9.9.9", 7, 0)
    places.admit("alice again", "192.168.0.8", 7, 0)
