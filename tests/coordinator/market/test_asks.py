"""Asks are sealed before they are known, opened as they were sealed, and refused in words where they are wrong."""

import math
from fractions import Fraction

import pytest

from echo2.coordinator.market.asks import StandingAsks, check_opened, check_sealed
from echo2.protocol.sealed_asks import LEAST_ASK, MOST_ASK, BadAsk, check_ask, commitment

RUN, SALT = b"r" * 32, b"s" * 16
ASK = 120_000_000


def sealed(ask: int = ASK, node: str = "a", epoch: int = 7, run: bytes = RUN) -> StandingAsks:
    return StandingAsks({}, {node: commitment(run, node, epoch, ask, SALT)})


WRONG_ASKS = {
    "negative": (-1, "not negative"),
    "zero": (0, "lies from"),
    "below the least": (LEAST_ASK - 1, "lies from"),
    "above the most": (MOST_ASK + 1, "lies from"),
    "huge": (10**100, "lies from"),
    "a float": (0.12, "whole number"),
    "NaN": (math.nan, "whole number"),
    "infinite": (math.inf, "whole number"),
    "a fraction": (Fraction(1, 3), "whole number"),
    "text": ("1000000", "whole number"),
    "true": (True, "whole number"),
    "nothing": (None, "whole number"),
}


@pytest.mark.parametrize("case", WRONG_ASKS)
def test_wrong_asks_are_refused_in_words(case: str) -> None:
    ask, says = WRONG_ASKS[case]
    with pytest.raises(BadAsk, match=says) as caught:
        check_ask(ask)
    assert len(str(caught.value)) < 160
    with pytest.raises(BadAsk, match=says):
        check_opened(sealed(), RUN, "a", 7, ask, SALT)


def test_an_ask_is_opened_as_it_was_sealed() -> None:
    assert check_opened(sealed(), RUN, "a", 7, ASK, SALT) == ASK


def test_an_ask_that_was_not_sealed_so_is_refused() -> None:
    for ask, node, epoch, run in ((ASK + 1, "a", 7, RUN), (ASK, "a", 8, RUN), (ASK, "a", 7, b"x" * 32)):
        with pytest.raises(BadAsk, match="not the ask that was sealed"):
            check_opened(sealed(), run, node, epoch, ask, SALT)
    with pytest.raises(BadAsk, match="not the ask that was sealed"):
        check_opened(sealed(), RUN, "a", 7, ASK, b"t" * 16)
    with pytest.raises(BadAsk, match="no ask was sealed"):
        check_opened(sealed(), RUN, "b", 7, ASK, SALT)
    with pytest.raises(BadAsk, match="at least 16 bytes"):
        check_opened(sealed(), RUN, "a", 7, ASK, b"short")


def test_another_nodes_commitment_cannot_be_opened_as_ones_own() -> None:
    copied = StandingAsks({}, {"b": sealed().sealed["a"]})
    with pytest.raises(BadAsk, match="not the ask that was sealed"):
        check_opened(copied, RUN, "b", 7, ASK, SALT)


def test_an_ask_rises_by_a_quarter_at_most_and_falls_at_will() -> None:
    def opened(ask: int) -> int:
        return check_opened(sealed(ask)._replace(asks={"a": ASK}), RUN, "a", 7, ask, SALT)

    assert opened(150_000_000) == 150_000_000
    assert opened(LEAST_ASK) == LEAST_ASK
    with pytest.raises(BadAsk, match="from 120000000 to at most 150000000, not 150000001"):
        opened(150_000_001)


def test_one_ask_is_sealed_per_epoch() -> None:
    check_sealed(StandingAsks({}, {}), "a", b"h" * 32)
    with pytest.raises(BadAsk, match="sealed for this epoch already"):
        check_sealed(sealed(), "a", b"h" * 32)
    with pytest.raises(BadAsk, match="32 bytes"):
        check_sealed(StandingAsks({}, {}), "a", b"h" * 31)
