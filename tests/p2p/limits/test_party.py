"""Who a party is: subnets, private addresses, keys with accepted work, and proxies."""

import pytest

from echo2.p2p.limits.party import PRIVATE, Parties, Party, TrustedProxies, household_of, is_subnet, subnet_of
from echo2.p2p.limits.subnets import ASKS_BURST, ASKS_RATE
from echo2.p2p.limits.token_bucket import TokenBuckets

SUBNETS = {
    "two addresses of one /24": ("8.8.8.1", "8.8.8.0/24", "8.8.8.1"),
    "an IPv6 site": ("2606:4700:1:2::3", "2606:4700:1::/48", "2606:4700:1:2::/64"),
    "an IPv4 address written as IPv6": ("::ffff:8.8.8.8", "8.8.8.0/24", "8.8.8.8"),
    "loopback is one owner's": ("127.0.0.1", None, "127.0.0.1"),
    "loopback, IPv6": ("::1", None, "::/64"),
    "a private network is one owner's": ("192.168.7.9", None, "192.168.7.9"),
    "link-local with its zone": ("fe80::1%eth0", None, "fe80::/64"),
    "unique local": ("fd00::1", None, "fd00::/64"),
    "no address": ("example", None, "example"),
}


@pytest.mark.parametrize("name", SUBNETS)
def test_the_subnet_and_the_household_that_count(name: str) -> None:
    ip, subnet, household = SUBNETS[name]
    assert (subnet_of(ip), household_of(ip)) == (subnet, household)
    assert Parties().at(ip) == Party(subnet or "", household)


def test_private_connections_are_parties_of_their_own_in_a_lan() -> None:
    parties = Parties(private_is_one=True)
    parties.tell_addresses(["/ip4/192.168.0.7/tcp/4310/p2p/host"])
    parties.accept("10.0.0.1")
    assert [parties.name(None, connection) for connection in ("alice", "bob")] == ["alice", "bob"]


PUBLIC_ONES = {
    "it is reached at one": lambda parties: parties.tell_addresses(["/ip4/8.8.8.8/tcp/4310"]),
    "it is reached by a name": lambda parties: parties.tell_addresses(["/dns4/run.example.org/tcp/4310"]),
    "a node came from one": lambda parties: parties.accept("9.9.9.9"),
}


@pytest.mark.parametrize("why", PUBLIC_ONES)
def test_where_the_run_has_public_addresses_private_ones_are_one_party(why: str) -> None:
    parties = Parties(private_is_one=True)
    PUBLIC_ONES[why](parties)
    parties.keep(["alice"])
    assert [parties.name(None, connection) for connection in ("alice", "bob", "eve")] == ["alice", PRIVATE, PRIVATE]
    assert parties.at("10.0.0.1") == Party(PRIVATE, "10.0.0.1")
    assert not parties.at("10.0.0.1").is_public
    lan = Parties()
    PUBLIC_ONES[why](lan)
    assert lan.name(None, "bob") == "bob", 'network.private_parties = "connection"'


def test_a_trusted_proxy_means_that_the_run_has_public_addresses() -> None:
    assert Parties(private_is_one=True, proxies=["10.0.0.7"]).private_is_one


def test_a_subnet_is_its_own_party_whatever_key_connects_from_it() -> None:
    parties = Parties(private_is_one=True)
    parties.keep(["alice", "8.8.8.0/24"])
    assert parties.name("9.9.9.0/24", "alice") == "9.9.9.0/24"
    assert parties.known_subnets == 1
    assert [is_subnet(name) for name in ("8.8.8.0/24", "2606::/48", "relay/peer", "https/10.0.0.1/5", PRIVATE)] == [
        True, True, False, False, False,
    ]  # fmt: skip


FORWARDED = {
    "from a trusted proxy": ("10.0.0.7", ["8.8.8.8"], "8.8.8.8"),
    "the client's own entries come first and do not count": ("10.0.0.7", ["1.2.3.4, 9.9.9.9", "8.8.8.8"], "8.8.8.8"),
    "through two trusted proxies": ("10.0.0.7", ["1.2.3.4, 8.8.8.8, 10.0.1.9"], "8.8.8.8"),
    "from anybody else": ("10.9.0.7", ["8.8.8.8"], "10.9.0.7"),
    "no address in it": ("10.0.0.7", ["8.8.8.8, unknown"], "10.0.0.7"),
    "none": ("10.0.0.7", [], "10.0.0.7"),
}


@pytest.mark.parametrize("name", FORWARDED)
def test_the_client_that_trusted_proxies_forward_for(name: str) -> None:
    ip, headers, client = FORWARDED[name]
    assert TrustedProxies(["10.0.0.7", "10.0.1.0/24"]).client_of(ip, headers) == client


@pytest.mark.parametrize("network", ["0.0.0.0/0", "::/0", "10.0.0.7/24", "proxy.example"])
def test_what_names_no_proxy_is_refused(network: str) -> None:
    with pytest.raises(ValueError, match=network.partition("/")[0]):
        TrustedProxies([network])


def test_requests_beyond_the_rate_are_delayed_and_answered() -> None:
    buckets = TokenBuckets(ASKS_RATE, ASKS_BURST)
    waits = [buckets.consume("eve", 0) for _ in range(int(ASKS_BURST) + 50)]
    assert waits[: int(ASKS_BURST)] == pytest.approx([0] * int(ASKS_BURST))
    assert waits[-1] == pytest.approx(50 / ASKS_RATE)
    assert buckets.consume("bob", 0) == 0
    assert buckets.consume("eve", 100) == 0
