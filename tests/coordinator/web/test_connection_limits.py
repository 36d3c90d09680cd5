"""Limits on connections and requests of the page."""

import pytest

from echo2.coordinator.web.connection_limits import REQUEST_BURST, ClientConnections, WebLimits, public

HERE, THERE, ELSEWHERE = "8.8.8.8", "9.9.9.9", "1.1.1.1"


def limited(**limits: int) -> ClientConnections:
    return ClientConnections(WebLimits(**limits))


def test_a_new_connection_evicts_the_one_idle_longest() -> None:
    connections = limited(connections=2)
    assert [connections.add(one, ip, now) for one, ip, now in (("a", HERE, 0.0), ("b", THERE, 1.0))] == [None, None]
    connections.admit("a", HERE, 2.0)
    connections.on_answer("a", 3.0)
    assert connections.add("c", ELSEWHERE, 4.0) == "b"
    assert len(connections) == 2


def test_the_address_with_the_most_connections_loses_one_first() -> None:
    connections = limited(connections=4)
    for one, ip in (("old", THERE), ("a", HERE), ("b", HERE), ("c", HERE)):
        connections.add(one, ip, 0.0)
    assert connections.add("new", ELSEWHERE, 1.0) == "a"


def test_a_busy_connection_is_never_evicted() -> None:
    connections = limited(connections=1)
    connections.add("a", HERE, 0.0)
    connections.admit("a", HERE, 0.0)
    refused = connections.refusal(THERE)
    assert refused is not None
    assert refused[0] == "web"
    connections.on_answer("a", 1.0)
    assert connections.refusal(THERE) is None


def test_a_public_address_has_a_connection_limit_and_a_proxy_on_loopback_has_none() -> None:
    connections = limited(per_address=2)
    for number in range(2):
        connections.add(number, HERE, 0.0)
    refused = connections.refusal(HERE)
    assert refused is not None
    assert refused[0] == "web-address"
    assert connections.refusal(THERE) is None
    for number in range(100):
        assert connections.refusal("127.0.0.1") is None
        connections.add(("proxy", number), "127.0.0.1", 0.0)
        assert connections.admit(("proxy", number), "127.0.0.1", 0.0) == 0.0
    connections.remove(0)
    assert connections.refusal(HERE) is None


def test_requests_of_a_public_address_are_rate_limited() -> None:
    connections = limited()
    waits = [connections.admit("a", HERE, 0.0) for _ in range(int(REQUEST_BURST) + 1)]
    assert waits[:-1] == [0.0] * int(REQUEST_BURST)
    assert waits[-1] > 0
    assert connections.admit("b", THERE, 0.0) == 0.0
    assert connections.admit("a", HERE, 1.0) == 0.0


def test_an_idle_connection_is_overdue_and_a_busy_one_is_not() -> None:
    connections = limited()
    for one in "abc":
        connections.add(one, HERE, 0.0)
    connections.admit("a", HERE, 1.0)
    connections.admit("b", HERE, 1.0)
    connections.on_answer("b", 20.0)
    assert connections.overdue(WebLimits.idle) == ["c"]
    assert connections.overdue(20.0 + WebLimits.idle) == ["c", "b"]


@pytest.mark.parametrize(
    ("ip", "name"),
    {
        "IPv4": ("8.8.8.8", "8.8.8.8"),
        "a household": ("2606:4700:1:2:3:4:5:6", "2606:4700:1:2::/64"),
        "loopback": ("127.0.0.1", None),
        "loopback, IPv6": ("::1", None),
        "a private network": ("192.168.1.7", None),
        "no address": ("nowhere", None),
    }.values(),
)
def test_limits_apply_per_public_address(ip: str, name: str | None) -> None:
    assert public(ip) == name
