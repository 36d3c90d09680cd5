"""The least rate: when a wait is given up."""

import pytest

from echo2.p2p.limits.least_rate import LEAST_RATE, RATE_SECONDS, Flow, LeastRate


def ended(arrivals: list[tuple[float, int]], until: float = 1000.0) -> float:
    """Return when a wait is given up for which so many bytes arrive at these times."""
    rate = LeastRate(Flow(0, 0.0), 0.0)
    while rate.deadline < until:
        now = rate.deadline
        arrived = [(at, nbytes) for at, nbytes in arrivals if at <= now]
        flow = Flow(sum(nbytes for _, nbytes in arrived), max((at for at, _ in arrived), default=0.0))
        if not rate.extend(flow, now):
            return now
    return until


def test_silence_ends_a_wait_after_the_seconds_of_the_rate() -> None:
    assert ended([]) == RATE_SECONDS


@pytest.mark.parametrize("stops", [0.1, 3.0, 9.9, 25.0, 300.0])
def test_a_wait_ends_at_most_these_seconds_after_the_last_byte(stops: float) -> None:
    arrivals = [(number / 10, 800) for number in range(round(10 * stops) + 1)]
    assert stops < ended(arrivals) <= stops + RATE_SECONDS


def test_a_byte_now_and_then_ends_it_as_silence_does() -> None:
    assert ended([(float(second), 1) for second in range(1000)]) < RATE_SECONDS + 1


def test_bytes_beyond_the_rate_earn_no_time_to_rest() -> None:
    assert ended([(0.5, 100_000_000)]) == 0.5 + RATE_SECONDS


def test_the_rate_is_what_it_says_over_any_time() -> None:
    for share, passes in ((1.05, True), (0.9, False)):
        arrivals = [(number / 4, round(share * LEAST_RATE / 4)) for number in range(4000)]
        assert (ended(arrivals, 900.0) == 900.0) == passes
