"""Grants and refusals of a relay, on a clock that the test sets."""

import pytest

from echo2.p2p.limits.party import Parties
from echo2.p2p.limits.relay_quota import SETTLED_SECONDS, Circuit, RelayLimits, RelayRefused, RelayTable
from echo2.runtime.units import MBIT
from tests.support.relays import holders

FULL, CROWDED = "the relay is full", "too many of one party"
NO_RESERVATION, TOO_MANY = "the target has no reservation here", "this peer has too many circuits"


def refusal(call, *args) -> str:
    with pytest.raises(RelayRefused) as caught:
        call(*args)
    return str(caught.value)


def test_reserving_again_renews_the_one_reservation():
    table = RelayTable(RelayLimits(life=10))
    assert table.reserve("a", "10.0.0.1", 0.0) == 10.0
    assert table.reserve("a", "10.0.0.1", 9.0) == 19.0
    assert holders(table, 18.0) == ["a"]
    assert holders(table, 19.0) == []


@pytest.mark.slow
def test_ten_thousand_identities_of_one_subnet_get_its_share_and_leave_room_for_others():
    table = RelayTable(RelayLimits(reservations=64, per_party=16))
    for number in range(16):
        table.reserve(f"peer {number}", f"8.8.8.{number}", 0.0)
    for number in range(16, 10_000):
        assert refusal(table.reserve, f"peer {number}", f"8.8.8.{number % 256}", 0.0) == CROWDED
    assert len(holders(table, 0.0)) == 16
    table.reserve("honest", "9.9.9.9", 0.0)


def test_a_full_relay_renews_existing_reservations():
    table = RelayTable(RelayLimits(reservations=2))
    table.reserve("a", "10.0.0.1", 0.0)
    table.reserve("b", "10.0.1.1", 0.0)
    assert refusal(table.reserve, "c", "10.0.2.1", 0.0) == FULL
    table.reserve("a", "10.0.0.1", 1.0)
    table.keep({"a"})
    table.reserve("c", "10.0.2.1", 1.0)


def test_a_circuit_needs_a_reservation_of_its_target():
    table = RelayTable(RelayLimits(life=10))
    assert refusal(table.open, "a", "b", 0.0) == NO_RESERVATION
    table.reserve("b", "10.0.0.1", 0.0)
    table.open("a", "b", 9.0)
    assert refusal(table.open, "a", "b", 10.0) == NO_RESERVATION


def test_circuits_are_bounded_per_source_per_target_and_in_total():
    table, ended = RelayTable(RelayLimits(circuits=3, per_peer=2, per_target=2)), list[str]()
    for peer in "bcd":
        table.reserve(peer, f"10.0.{ord(peer)}.1", 0.0)

    def open(source: str, target: str, now: float = 0.0) -> Circuit:
        circuit = table.open(source, target, now)
        circuit.on_close = lambda: ended.append(source + target)
        return circuit

    open("a", "b")
    open("a", "c")
    assert refusal(table.open, "a", "d", 0.0) == TOO_MANY
    of_x = open("x", "b")
    assert not ended
    open("y", "d")
    assert ended == ["ab"], "the party with most gives way"
    of_x.close()
    of_x.close()
    assert (ended, table.circuits) == (["ab", "xb"], 2)
    open("y", "c")
    open("z", "c", SETTLED_SECONDS)
    assert ended == ["ab", "xb", "ac"], "the bound of one target ends nothing elsewhere"
    assert (table.circuits, set(table._to_target)) == (3, {"c", "d"})


def test_ends_that_dial_again_do_not_end_one_anothers_circuits():
    table, ended = RelayTable(RelayLimits(per_target=2, life=1000)), list[str]()
    table.reserve("target", "7.7.7.7", 0.0)
    for peer in ("8.8.1.8", "8.8.2.8"):
        table.open(peer, "target", 0.0, peer).on_close = lambda peer=peer: ended.append(peer)
    assert refusal(table.open, "late", "target", SETTLED_SECONDS - 1, "8.8.3.8") == FULL
    assert not ended
    assert table.open("late", "target", SETTLED_SECONDS, "8.8.3.8").is_open
    assert table.open("8.8.1.8", "target", SETTLED_SECONDS + 1, "8.8.1.8").is_open
    assert ended == ["8.8.1.8", "8.8.2.8"]
    assert refusal(table.open, "8.8.2.8", "target", SETTLED_SECONDS + 2, "8.8.2.8") == FULL


def test_one_party_with_accepted_work_leaves_circuits_to_newcomers():
    parties, ended = Parties(), list[str]()
    parties.keep(["9.9.9.0/24"])
    table = RelayTable(RelayLimits(), parties)
    table.reserve("target", "7.7.7.7", 0.0)
    newcomers = [table.open(f"new {number}", "target", 0.0, f"8.8.{number}.8") for number in range(6)]
    for _ in range(8):
        table.open("eve", "target", 0.0, "9.9.9.9").on_close = lambda: ended.append("eve")
    assert (sum(one.is_open for one in newcomers), len(ended)) == (2, 2)


def test_a_key_with_accepted_work_reserves_beside_strangers_of_its_subnet():
    parties = Parties()
    table = RelayTable(RelayLimits(per_party=2), parties)
    parties.keep(["a key with work"])
    for number in range(2):
        table.reserve(f"stranger {number}", "8.8.8.8", 0.0)
    assert refusal(table.reserve, "stranger 2", "8.8.8.8", 0.0) == CROWDED
    table.reserve("a key with work", "8.8.8.8", 0.0)


def test_idle_circuits_of_strangers_leave_a_quarter_to_parties_with_accepted_work():
    parties, ended = Parties(), list[int]()
    parties.keep(["9.9.9.0/24", "known"])
    table = RelayTable(RelayLimits(circuits=8, per_peer=8, per_target=8), parties)
    table.reserve("target", "7.7.7.7", 0.0)
    for number in range(8):
        circuit = table.open(f"sybil {number}", "target", 0.0, f"8.8.8.{number}")
        circuit.on_close = lambda number=number: ended.append(number)
    assert ended == [0, 1]
    node, key = table.open("node", "target", 0.0, "9.9.9.9"), table.open("known", "target", 0.0, "8.8.8.9")
    assert table.open("newcomer", "target", 0.0, "7.7.7.9").is_open
    assert (ended, node.is_open, key.is_open, table.circuits) == ([0, 1, 2], True, True, 8)


def test_all_circuits_share_one_rate():
    table = RelayTable(RelayLimits(rate=1 * MBIT))
    for peer in "bd":
        table.reserve(peer, "10.0.0.1", 0.0)
    one, other = table.open("a", "b", 0.0), table.open("c", "d", 0.0)
    waits = [circuit.consume(MBIT, 100.0) for circuit in (one, other, one)]
    assert waits == pytest.approx([0.0, 0.75, 1.75])


@pytest.mark.parametrize(("size", "now"), [(101, 0.0), (1, 60.0)], ids=["its bytes", "its time"])
def test_a_circuit_is_used_up_by(size, now):
    table = RelayTable(RelayLimits(data=100, duration=60))
    table.reserve("b", "10.0.0.1", 0.0)
    assert table.open("a", "b", 0.0).consume(size, now) is None


def test_a_private_network_has_no_share_limit():
    table = RelayTable(RelayLimits(per_party=1))
    for number in range(3):
        table.reserve(f"gpu {number}", "192.168.0.7", 0.0)
        table.reserve(f"from an unknown place {number}", None, 0.0)
    assert len(holders(table, 0.0)) == 6


def test_where_private_addresses_are_one_party_they_have_its_share():
    parties = Parties(private_is_one=True, proxies=["10.0.0.7"])
    parties.keep(["a key with work"])
    table = RelayTable(RelayLimits(per_party=2), parties)
    for number in range(2):
        table.reserve(f"stranger {number}", "192.168.0.7", 0.0)
    assert refusal(table.reserve, "stranger 2", "192.168.0.8", 0.0) == CROWDED
    table.reserve("a key with work", "192.168.0.7", 0.0)


def test_a_quarter_of_the_reservations_is_kept_for_the_parties_that_are_named():
    parties = Parties()
    parties.keep(["9.9.9.0/24", "peer known", "other"])
    table = RelayTable(RelayLimits(reservations=8, per_party=8, life=1000), parties)
    for number in range(6):
        table.reserve(f"sybil {number}", f"8.8.{number}.8", 0.0)
    assert refusal(table.reserve, "sybil 6", "8.8.6.8", 0.0) == FULL
    table.reserve("sybil 0", "8.8.0.8", 1.0)  # renewed
    table.reserve("honest", "9.9.9.9", 1.0)
    table.reserve("peer known", "7.7.7.7", 1.0)
    assert refusal(table.reserve, "sybil 6", "8.8.6.8", 1.0) == FULL
    assert refusal(table.reserve, "late", "9.9.9.8", 1.0) == FULL
    assert len(holders(table, 1.0)) == 8


def test_without_named_parties_all_reservations_are_for_everybody():
    parties = Parties()
    table = RelayTable(RelayLimits(reservations=4), parties)
    for number in range(4):
        table.reserve(f"peer {number}", f"8.8.{number}.8", 0.0)
    table.keep({"peer 1", "peer 2", "peer 3"})
    parties.keep(["5.5.5.0/24"])
    assert refusal(table.reserve, "peer 9", "8.8.9.8", 0.0) == FULL
    parties.keep([])
    table.reserve("peer 9", "8.8.9.8", 0.0)
