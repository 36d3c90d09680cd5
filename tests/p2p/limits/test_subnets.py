"""Test the addresses that share a subnet, and the requests that a connection may send."""

import pytest

from echo2.p2p.limits.subnets import ASKS_BURST, ASKS_RATE, subnet_of
from echo2.p2p.limits.token_bucket import TokenBuckets

SUBNETS = {
    "two addresses of one /24": ("8.8.8.1", "8.8.8.0/24"),
    "an IPv6 site": ("2606:4700:1:2::3", "2606:4700:1::/48"),
    "an IPv4 address written as IPv6": ("::ffff:8.8.8.8", "8.8.8.0/24"),
    "loopback is one owner's": ("127.0.0.1", None),
    "a private network is one owner's": ("192.168.7.9", None),
    "link-local with its zone": ("fe80::1%eth0", None),
    "unique local": ("fd00::1", None),
    "no address": ("example", None),
}


@pytest.mark.parametrize("name", SUBNETS)
def test_the_subnet_that_counts(name):
    ip, subnet = SUBNETS[name]
    assert subnet_of(ip) == subnet


def test_requests_beyond_the_rate_are_delayed_and_answered():
    buckets = TokenBuckets(ASKS_RATE, ASKS_BURST)
    waits = [buckets.consume("eve", 0) for _ in range(int(ASKS_BURST) + 50)]
    assert waits[: int(ASKS_BURST)] == pytest.approx([0] * int(ASKS_BURST))
    assert waits[-1] == pytest.approx(50 / ASKS_RATE)
    assert buckets.consume("bob", 0) == 0
    assert buckets.consume("eve", 100) == 0
