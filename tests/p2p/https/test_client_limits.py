"""Limits per HTTPS client: households, totals, rates, and bounded memory."""

from p2p.https.client_limits import ClientLimiter, HttpsLimits, client_key
from p2p.limits.token_bucket import KEPT


def test_connections_are_counted_per_household_and_buckets_are_forgotten():
    door = ClientLimiter(HttpsLimits(connections=3, per_visitor=2, rate=1.0, burst=2.0))
    hosts = ("2001:db8::1", "2001:db8::2", "2001:db8::3", "192.0.2.1", "192.0.2.2")
    refused = [why and why[0] for why in map(door.enter, hosts)]
    assert refused == [None, None, "https-address", None, "https"]
    door.leave("2001:db8::2")
    assert door.enter("192.0.2.2") is None
    assert [door.ask("192.0.2.1", 0.0) for _ in range(3)] == [0.0, 0.0, 1.0]
    assert [door.ask("192.0.2.1", 1.0), door.ask("192.0.2.9", 1.0)] == [0.0, 0.0]
    for number in range(2 * KEPT):
        door.ask(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 2.0)
    assert door.ask("192.0.2.1", 2.0) == 0.0, "it was forgotten, and what is forgotten is full again"
    assert [client_key("::ffff:192.0.2.1"), client_key("fe80::1%eth0")] == ["192.0.2.1", "fe80::/64"]
