"""Limits per client of a listener: households, totals, rates, eviction, keys at private addresses, bounded memory."""

from echo2.coordinator.web.page_listener import WebLimits
from echo2.p2p.https.client_limits import ClientConnections, HttpsLimits
from echo2.p2p.limits.party import Parties
from echo2.p2p.limits.token_bucket import MOST_BUCKETS

HERE, THERE, ELSEWHERE, PROXY = "8.8.8.8", "9.9.9.9", "1.1.1.1", "10.0.0.7"


def limited(**limits: object) -> ClientConnections:
    return ClientConnections(HttpsLimits(**limits))


def page(**limits: object) -> ClientConnections:
    return ClientConnections(WebLimits(**limits))


def entered(connections: ClientConnections, ip: str, *, busy: bool = True) -> str:
    """Return the limit that refuses a new connection; "" after it was admitted."""
    if (refused := connections.refusal(ip)) is not None:
        return refused[0]
    connection = object()
    connections.add(connection, ip, 0.0)
    if busy:
        connections.admit(connection, 0.0)
    return ""


def test_connections_are_counted_per_household_and_in_all() -> None:
    connections = limited(connections=3, per_visitor=2)
    hosts = ("2606:4700:1:2::1", "2606:4700:1:2::2", "2606:4700:1:2::3", HERE, THERE)
    assert [entered(connections, host) for host in hosts] == ["", "", "https-address", "", "https"]


def test_requests_are_limited_per_household_and_buckets_are_forgotten() -> None:
    connections = limited(rate=1.0, burst=2.0)
    for connection, ip in (("a", HERE), ("b", HERE), ("c", THERE)):
        connections.add(connection, ip, 0.0)
    assert [connections.admit(one, 0.0) for one in "abac"] == [0.0, 0.0, 1.0, 0.0]
    assert connections.admit("a", 1.0) == 0.0
    for number in range(2 * MOST_BUCKETS):
        connections.admit("a", 2.0, f"8.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert [connections.admit("a", 2.0) for _ in "12"] == [0.0, 0.0], "its bucket was forgotten, and a new one is full"


def test_a_new_connection_evicts_the_one_idle_longest() -> None:
    connections = page(connections=2)
    assert [connections.add(one, ip, now) for one, ip, now in (("a", HERE, 0.0), ("b", THERE, 1.0))] == [None, None]
    connections.admit("a", 2.0)
    connections.on_answer("a", 3.0)
    assert connections.add("c", ELSEWHERE, 7.0) == "b"
    assert len(connections) == 2
    assert connections.add("d", THERE, 8.0) == "a", "who has just come has time for a first request"
    assert connections.add("e", HERE, 9.0) == "c"


def test_the_household_with_the_most_connections_loses_one_first() -> None:
    connections = page(connections=4)
    for one, ip in (("old", THERE), ("a", HERE), ("b", HERE), ("c", HERE)):
        connections.add(one, ip, 0.0)
    assert connections.add("new", ELSEWHERE, 1.0) == "a"


def test_a_busy_connection_is_not_evicted_for_another_household() -> None:
    connections = page(connections=1)
    connections.add("a", HERE, 0.0)
    connections.admit("a", 0.0)
    assert entered(connections, THERE) == "web"
    connections.on_answer("a", 1.0)
    assert entered(connections, THERE) == ""


def test_half_a_body_gives_way_before_a_handshake_and_a_body_that_comes() -> None:
    """Attackers behind a proxy that hides all clients, whose bodies never end, cut off each honest handshake."""
    connections = limited(per_visitor=3, connections=4)
    for one in ("half", "coming", "new"):
        connections.add(one, PROXY, 0.0)
    for one in ("half", "coming"):
        connections.admit(one, 0.0)
        connections.on_part(one, 100, 0.0)
    connections.on_part("coming", 5_000, 1.0)
    assert list(connections.waiting) == ["new"]
    assert connections.overdue(1000.0) == ["new"], "the least rate ends bodies"
    connections.admit("new", 1.0)
    connections.on_part("new", 0, 1.0)
    assert connections.add("another", PROXY, 2.0) == "half"
    connections.on_whole("new")
    assert connections.add("and another", PROXY, 2.0) == "coming"
    assert connections.add("one more", PROXY, 2.0) == "another", "a whole request keeps its place"
    assert entered(connections, HERE) == ""
    assert entered(connections, THERE) == "", "at the bound of all connections too"
    connections.on_part("half", 10, 2.0)
    connections.on_answer("half", 2.0)
    assert "half" not in connections.waiting, "it has gone"
    assert connections.add("the last", PROXY, 2.0) == "one more"


def test_a_byte_now_and_then_keeps_no_body_a_place_before_one_that_has_come() -> None:
    """Before, each byte moved a body behind all handshakes: 128 bodies that dripped kept 60 of 60 newcomers out."""
    connections = limited(per_visitor=8, connections=99)
    for number in range(8):
        connections.add(number, PROXY, 0.0)
        connections.admit(number, 0.0)
    for tenth in range(30):
        for number in range(8):
            connections.on_part(number, tenth, tenth / 10)
    evicted = [connections.add(f"new {number}", PROXY, 3.0 + number / 10) for number in range(8)]
    assert evicted == list(range(8)), "the newcomers live"
    assert connections.add("one more", PROXY, 4.0) == "new 0", "only one that came later is before them"


def test_a_body_at_the_least_rate_gives_way_after_whoever_sends_nothing_and_before_as_many_newcomers() -> None:
    connections = limited(per_visitor=5, connections=99)
    for one in ("slow", "steady", "hoard", "silent", "served"):
        connections.add(one, PROXY, 0.0)
    for one in ("slow", "steady", "hoard"):
        connections.admit(one, 0.0)
        connections.on_part(one, 0, 0.0)
    connections.on_part("slow", 1_000, 5.5)
    connections.on_part("steady", 40_000, 6.0)
    connections.on_part("hoard", 10_000_000, 0.0)
    connections.on_answer("served", 5.9)
    gone = [connections.add(f"new {number}", PROXY, 6.0) for number in range(3)]
    assert gone == ["slow", "silent", "served"]
    for one in ("new 1", "new 2"):
        connections.on_part(one, 40_000, 6.5)
    assert connections.add("new 3", PROXY, 7.0) == "hoard", "many bytes at once pay for ten seconds"
    assert connections.add("new 4", PROXY, 7.0) == "steady"


def test_connections_that_come_again_at_once_cut_off_no_body_that_pays() -> None:
    """Before, each newcomer evicted a body before any other newcomer: who came again at once cut off all bodies."""
    connections = limited(connections=16)
    for number in range(15):
        connections.add(number, f"8.8.{number}.8", 0.0)
    connections.add("honest", THERE, 0.0)
    connections.admit("honest", 0.0)
    for step in range(100):
        connections.on_part("honest", 1_000 * step, step / 10)
        gone = connections.add(15 + step, f"8.8.{step % 15}.8", step / 10)
        assert gone == step, "the oldest of those that came"
    for number in range(100, 116):
        connections.add(f"body {number}", f"8.9.{number}.8", 10.0)
        connections.admit(f"body {number}", 10.0)
        connections.on_part(f"body {number}", 40_000, 10.0)
    assert str(connections.add("newcomer", HERE, 10.5)).startswith("body"), "nor do bodies keep newcomers out"


def test_with_the_page_a_private_address_has_no_bound_of_its_own() -> None:
    connections = page(per_visitor=2)
    assert [entered(connections, HERE) for _ in "123"] == ["", "", "web-address"]
    assert [entered(connections, PROXY) for _ in range(100)] == [""] * 100
    connections.add("proxy", PROXY, 0.0)
    assert [connections.admit("proxy", 0.0) for _ in range(1000)] == [0.0] * 1000
    waits = [connections.admit("proxy", 0.0, HERE) for _ in range(1000)]
    assert waits[0] == 0.0, "a client for whom a proxy speaks"
    assert waits[-1] > 0


def test_a_trusted_proxy_at_a_public_address_has_no_bound_either() -> None:
    connections = page(per_visitor=2, parties=Parties(proxies=[HERE]))
    assert [entered(connections, HERE) for _ in range(50)] == [""] * 50
    assert [entered(connections, THERE) for _ in "123"] == ["", "", "web-address"]


def test_over_https_a_private_address_at_its_bound_loses_an_idle_connection_or_the_oldest() -> None:
    connections = limited(per_visitor=2)
    connections.add("a", PROXY, 0.0)
    connections.admit("a", 0.0)
    connections.add("b", PROXY, 0.0)
    assert connections.add("c", PROXY, 0.0) == "b"
    connections.admit("c", 0.0)
    assert connections.add("d", PROXY, 0.0) == "a"
    assert entered(connections, HERE) == ""


def test_the_connection_of_a_key_with_accepted_work_is_no_longer_its_address_s() -> None:
    connections = limited(per_visitor=2, rate=1.0, burst=1.0)
    connections.add("honest", PROXY, 0.0)
    connections.recognise("honest", "alice")
    for number in range(5):
        connections.add(number, PROXY, 0.0)
        connections.admit(number, 0.0)
    assert connections.admit("honest", 0.0) == 0.0, "a bucket of its own"
    assert len(connections) == 3
    connections.remove("honest")
    assert len(connections) == 2


def test_strangers_cannot_lock_out_subnets_with_accepted_work() -> None:
    parties = Parties()
    parties.keep(["8.8.8.0/24", "8.8.4.0/24", "a peer at a private address"])
    connections = limited(connections=8, per_visitor=8, parties=parties)
    assert [entered(connections, f"9.9.9.{number}") for number in range(8)] == [""] * 6 + ["https"] * 2
    assert [entered(connections, HERE), entered(connections, HERE)] == ["", ""]
    assert entered(connections, "8.8.4.4") == "https"


def test_an_idle_connection_is_overdue_and_a_busy_one_is_not() -> None:
    connections = page()
    for one in "abc":
        connections.add(one, HERE, 0.0)
    connections.admit("a", 1.0)
    connections.admit("b", 1.0)
    connections.on_answer("b", 20.0)
    assert connections.overdue(WebLimits.idle) == ["c"]
    assert connections.overdue(20.0 + WebLimits.idle) == ["c", "b"]
