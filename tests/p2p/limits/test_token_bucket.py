"""The one token bucket: bytes at an uplink, requests of a peer, dials at a subnet."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.p2p.limits.token_bucket import MOST_BUCKETS, ROUNDING_SECONDS, TokenBucket, TokenBuckets


def test_a_full_bucket_gives_its_burst_at_once_and_then_its_rate() -> None:
    bucket = TokenBucket(2.0, 3.0)
    assert [bucket.consume(1, 100.0) for _ in range(5)] == pytest.approx([0, 0, 0, 0.5, 1.0])


def test_a_debt_is_paid_before_anything_else_passes() -> None:
    bucket = TokenBucket(10.0, 5.0)
    bucket.consume(25, 0.0)
    assert bucket.delay(0, 0.0) == pytest.approx(2.0)
    assert bucket.delay(1, 1.0) == pytest.approx(1.1)
    assert bucket.delay(0, 2.0) == 0


def test_asking_for_the_delay_consumes_no_token() -> None:
    bucket = TokenBucket(1.0, 1.0)
    assert [bucket.delay(1, 0.0) for _ in range(3)] == [0, 0, 0]


def test_without_a_rate_there_is_no_delay() -> None:
    bucket = TokenBucket(None, 0.0)
    assert [bucket.consume(1 << 40, 0.0), bucket.delay(1 << 40, 0.0)] == [0, 0]


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_rate_that_is_not_positive_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        TokenBucket(rate, 1.0)


def test_sums_of_fractions_cost_no_token() -> None:
    bucket = TokenBucket(50.0, 200.0)
    now = 98_765.4321
    assert [bucket.consume(1, now) for _ in range(200)] == [0.0] * 200
    assert bucket.consume(1, now) == pytest.approx(0.02, abs=ROUNDING_SECONDS)


@given(
    rate=st.floats(0.01, 1e4),
    burst=st.floats(1, 1e3),
    gaps=st.lists(st.floats(0, 10), min_size=1, max_size=60),
)
def test_no_more_passes_than_the_burst_and_the_rate_allow(rate: float, burst: float, gaps: list[float]) -> None:
    buckets, now, passed = TokenBuckets(rate, burst), 0.0, 0
    for gap in gaps:
        now += gap
        passed += buckets.admit("eve", now) == 0
    assert passed <= burst + rate * now + rate * ROUNDING_SECONDS + 1e-6


def test_a_refused_request_costs_no_token_and_tells_when_to_retry() -> None:
    buckets = TokenBuckets(0.5, 1.0)
    assert [buckets.admit("eve", 0.0) for _ in range(3)] == [0.0, 2.0, 2.0]
    assert [buckets.admit("bob", 0.0), buckets.admit("eve", 2.0)] == [0.0, 0.0]


@pytest.mark.parametrize("use", [TokenBuckets.admit, TokenBuckets.consume])
def test_the_most_recently_used_names_are_remembered(use: Callable[[TokenBuckets, str, float], float]) -> None:
    buckets = TokenBuckets(0.001, 1.0)
    for name in ("old", "eve"):
        use(buckets, name, 0.0)
    for number in range(2 * MOST_BUCKETS):
        use(buckets, str(number), 1.0)
        if not number % 1000:
            use(buckets, "eve", 1.0)
    assert len(buckets._buckets) == MOST_BUCKETS
    assert buckets.delay("old", 1.0) == 0, "forgotten, and so full"
    assert buckets.delay("eve", 1.0) > 0
