"""Limits per HTTPS client: households, totals, rates, and bounded memory."""

from echo2.p2p.https.client_limits import ClientLimiter, HttpsLimits, client_key
from echo2.p2p.limits.token_bucket import MOST_BUCKETS


def test_connections_are_counted_per_household_and_buckets_are_forgotten():
    limiter = ClientLimiter(HttpsLimits(connections=3, per_visitor=2, rate=1.0, burst=2.0))
    hosts = ("2001:db8::1", "2001:db8::2", "2001:db8::3", "192.0.2.1", "192.0.2.2")
    refused = [why and why[0] for why in map(limiter.enter, hosts)]
    assert refused == [None, None, "https-address", None, "https"]
    limiter.leave("2001:db8::2")
    assert limiter.enter("192.0.2.2") is None
    assert [limiter.ask("192.0.2.1", 0.0) for _ in range(3)] == [0.0, 0.0, 1.0]
    assert [limiter.ask("192.0.2.1", 1.0), limiter.ask("192.0.2.9", 1.0)] == [0.0, 0.0]
    for number in range(2 * MOST_BUCKETS):
        limiter.ask(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 2.0)
    assert limiter.ask("192.0.2.1", 2.0) == 0.0, "its bucket was forgotten, and a new one is full"
    assert [client_key("::ffff:192.0.2.1"), client_key("fe80::1%eth0")] == ["192.0.2.1", "fe80::/64"]
