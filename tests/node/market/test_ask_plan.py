"""The node's next step towards the ask that it wants: what it sends, and when."""

import pytest

from echo2.node.market.ask_plan import (
    EPOCHLESS_LENGTH_MS,
    EPOCHLESS_POLL_MS,
    LEAST_WAIT,
    LOOKS_PER_EPOCH,
    Await,
    KnownMarket,
    OpenSealed,
    Seal,
    next_step,
)
from echo2.node.trust.market_store import StoredAsk
from echo2.protocol.market import EpochTerms, MarketResponse
from echo2.protocol.sealed_asks import LEAST_ASK, MOST_ASK

MINUTE = 60_000
CLOSES, OPENS, LONG = 1_000 * MINUTE, 1_002 * MINUTE, 15 * MINUTE
ASK, OWN = 120_000_000, b"h" * 32
STORED = StoredAsk(7, ASK, b"s" * 16, OWN)


def terms(epoch: int = 7, closes: int = CLOSES, opens: int = OPENS, milliseconds: int = LONG) -> EpochTerms:
    return EpochTerms(epoch=epoch, closes=closes, opens=opens, milliseconds=milliseconds, need=1, reserve=1)


COMING = terms()


def known(
    *, coming: EpochTerms | None = COMING, running: EpochTerms | None = None, now: int = CLOSES - MINUTE,
    wanted: int | None = ASK, stands: int | None = None, sealed: bytes | None = None,
    stored: StoredAsk | None = None, given_up: bool = False, lot: float = 0.5,
) -> KnownMarket:  # fmt: skip
    answer = MarketResponse(currency="USD", coming=coming, running=running, ask=stands, sealed=sealed)
    return KnownMarket(answer, now, wanted, stored, given_up, lot)


def waits(step: object) -> int:
    assert isinstance(step, Await)
    return step.milliseconds


def test_an_ask_that_does_not_stand_yet_is_sealed() -> None:
    assert next_step(known()) == Seal(7, ASK, None)
    assert next_step(known(stands=ASK + 1)) == Seal(7, ASK, None)


def test_an_ask_rises_as_far_as_one_epoch_lets_it() -> None:
    assert next_step(known(stands=ASK // 2)) == Seal(7, ASK // 2 * 5 // 4, None)
    assert next_step(known(stands=LEAST_ASK, wanted=MOST_ASK)) == Seal(7, LEAST_ASK * 5 // 4, None)
    assert next_step(known(stands=MOST_ASK, wanted=LEAST_ASK)) == Seal(7, LEAST_ASK, None)


def test_the_ask_that_stands_is_not_sent_again_and_the_next_epoch_is_awaited() -> None:
    own_part = LONG // LOOKS_PER_EPOCH // 2
    assert waits(next_step(known(stands=ASK))) == OPENS - (CLOSES - MINUTE) + own_part
    assert waits(next_step(known(wanted=None))) == OPENS - (CLOSES - MINUTE) + own_part


def test_an_ask_of_an_earlier_process_is_sent_again_whatever_is_wanted_by_now() -> None:
    assert next_step(known(stored=STORED, wanted=ASK // 2)) == Seal(7, ASK, STORED)
    assert next_step(known(stored=STORED._replace(epoch=6), wanted=ASK // 2)) == Seal(7, ASK // 2, None)


def test_a_sealed_ask_waits_until_the_asks_have_closed_and_is_opened_then() -> None:
    wait = waits(next_step(known(sealed=OWN, stored=STORED)))
    assert CLOSES < CLOSES - MINUTE + wait < OPENS
    assert next_step(known(sealed=OWN, stored=STORED, now=CLOSES + 1)) == OpenSealed(STORED)
    assert isinstance(next_step(known(sealed=OWN, stored=STORED, now=CLOSES)), Await)


def test_nodes_open_their_asks_at_different_times_within_the_window() -> None:
    early, late = (waits(next_step(known(sealed=OWN, stored=STORED, lot=lot))) for lot in (0.0, 0.999))
    assert CLOSES - (CLOSES - MINUTE) < early < late < OPENS - (CLOSES - MINUTE)


def test_an_ask_that_missed_the_close_is_not_sealed_later() -> None:
    assert waits(next_step(known(now=CLOSES + 1))) > 0
    assert waits(next_step(known(now=CLOSES + 1, stored=STORED))) > 0


def test_an_epoch_that_opens_late_still_takes_the_ask() -> None:
    assert next_step(known(sealed=OWN, stored=STORED, now=OPENS + MINUTE)) == OpenSealed(STORED)


@pytest.mark.parametrize("stored", [None, STORED._replace(hash=b"x" * 32)])
def test_two_daemons_on_one_key_are_told(stored: StoredAsk | None) -> None:
    for now in (CLOSES - 1, CLOSES + 1):
        step = next_step(known(sealed=OWN, stored=stored, now=now))
        assert isinstance(step, Await)
        assert "another daemon works with the same key" in step.trouble


def test_a_refused_ask_waits_for_the_next_epoch() -> None:
    assert waits(next_step(known(stored=STORED, given_up=True))) >= OPENS - (CLOSES - MINUTE)


def test_where_no_epoch_is_announced_an_ask_is_sealed_early_in_the_window_before_the_end() -> None:
    window, end = OPENS - CLOSES, OPENS + LONG
    running, now = terms(), OPENS + MINUTE
    for lot in (0.0, 0.999):
        wait = waits(next_step(known(coming=None, running=running, stands=ASK - 1, now=now, lot=lot)))
        assert end - 2 * window < now + wait < end - 3 * window // 2 + window // 8
    idle = waits(next_step(known(coming=None, running=running, stands=ASK, now=now)))
    assert idle == LONG - MINUTE + LONG // LOOKS_PER_EPOCH // 2


def test_a_late_announcement_is_looked_for_until_it_comes() -> None:
    wait = waits(next_step(known(coming=None, running=terms(), stands=ASK - 1, now=OPENS + LONG - MINUTE)))
    assert wait == (OPENS - CLOSES) * 3 // 8


def test_a_node_without_any_ask_that_stands_looks_all_the_time() -> None:
    window = OPENS - CLOSES
    assert waits(next_step(known(coming=None, running=terms(), now=OPENS + 1))) < window // 2
    assert LEAST_WAIT < waits(next_step(known(coming=None))) <= EPOCHLESS_POLL_MS
    assert EPOCHLESS_POLL_MS < waits(next_step(known(coming=None, wanted=None))) < EPOCHLESS_LENGTH_MS


def test_terms_that_leave_no_window_are_looked_at_as_any_epoch() -> None:
    running = terms(closes=OPENS)
    assert (
        waits(next_step(known(coming=None, running=running, stands=ASK - 1, now=OPENS + 1))) == LONG // LOOKS_PER_EPOCH
    )


@pytest.mark.parametrize("now", [0, OPENS + 10**9, 1 << 52])
def test_a_clock_that_is_far_off_costs_two_epochs_at_most_and_asks_never_without_a_pause(now: int) -> None:
    for one in (
        known(now=now, stands=ASK),
        known(now=now, sealed=OWN, stored=STORED),
        known(now=now, coming=None, running=terms()),
    ):
        step = next_step(one)
        if isinstance(step, Await):
            assert LEAST_WAIT <= step.milliseconds <= 2 * LONG


def test_a_late_epoch_is_looked_at_and_not_asked_without_end() -> None:
    assert waits(next_step(known(stands=ASK, now=OPENS + 1))) == LONG // LOOKS_PER_EPOCH
