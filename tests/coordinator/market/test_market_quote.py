"""The cost of work by the asks and measurements of a ledger: a quote is what the next epoch would pay."""

from fractions import Fraction

import pytest

from echo2.coordinator.market import quote_text
from echo2.coordinator.market.entries import EpochClosed
from echo2.coordinator.market.epoch_terms import BadTerms
from echo2.coordinator.market.market_quote import QuoteChanges, QuotedMarket, history, quote_markets
from echo2.coordinator.market.throughput import HOUR
from echo2.runtime.errors import LocalFault
from tests.support.market import QUARTER, RUN, Book, cheap, told

NO_CHANGES = QuoteChanges()


def row(book: Book, name: str, changes: QuoteChanges = NO_CHANGES) -> QuotedMarket:
    return next(one for one in quote_markets(history(RUN, book.entries), changes) if one.name == name)


def two() -> Book:
    """Return a book of two newcomers, a at 1,000 and b at 2,000 per RE, and an epoch of which both are active."""
    book = Book()
    begin = cheap(book, budget=10**9)
    for number in range(10):
        book.lease("a", begin, begin + number + 1, weight=1_500)
    book.close(begin + QUARTER)
    return book


def test_a_quote_is_what_the_next_epoch_pays_for_full_delivery() -> None:
    book = Book()
    cheap(book, need=100_000, budget=10**9)
    now = row(book, "as it would open now")
    assert (now.nodes, now.rate, now.short, now.binding) == (2, 120_000, 0, False)
    assert now.pay == (60_000 + 120_000) // 4, "a quarter of an hour of both asks"
    assert now.price == 1_500, "per RE, the mean of 1,000 and 2,000 at equal rates"
    assert now.step(Fraction(8_000)) == 12_000


def test_other_terms_are_quoted_beside_those_of_now() -> None:
    book = two()
    names = [one.name for one in quote_markets(history(RUN, book.entries), NO_CHANGES)]
    assert names[:3] == ["as it would open now", "reserve price times 0.8", "reserve price times 1.25"]
    assert row(book, "need times 0.5").nodes == 1


def test_the_operators_terms_take_the_place_of_the_announced_ones() -> None:
    book = Book()
    cheap(book, budget=10**9)
    dear = row(book, "as it would open now", QuoteChanges(reserve=1_500))
    assert dear.nodes == 1, "b costs more than that"
    assert dear.short == 40_000
    bound = row(book, "as it would open now", QuoteChanges(budget=20_000))
    assert bound.binding
    assert bound.pay <= 20_000
    assert bound.short > 0


def test_terms_that_no_epoch_may_have_are_refused() -> None:
    with pytest.raises(BadTerms, match="reserve of an epoch lies from 1 to"):
        quote_markets(history(RUN, two().entries), QuoteChanges(reserve=0))


def test_a_node_that_is_suspended_is_not_quoted() -> None:
    book = two()
    past = history(RUN, book.entries)
    past.state.suspended["a"] = past.at + 1
    assert quote_markets(past, NO_CHANGES)[0].nodes == 1


def test_spending_stands_beside_the_budget() -> None:
    book = two()
    past = history(RUN, book.entries)
    (spent,) = past.spent
    assert (spent.epoch, spent.milliseconds, spent.budget, spent.work) == (1, QUARTER, 10**9, 15_000)
    assert spent.spent == sum(one.pay for one in book.facts("epoch.closed", EpochClosed)[0].nodes) == 15_000
    assert past.group_weight == 1_500


def test_forfeits_raise_the_budget_that_is_shown() -> None:
    past = history(RUN, told().entries)
    assert past.spent[1].budget == past.spent[0].budget + 3_000


def test_a_ledger_without_a_market_is_said() -> None:
    with pytest.raises(LocalFault, match="`echo2-coord market simulate` shows what one would cost"):
        history(RUN, [])


def test_a_ledger_that_does_not_follow_is_said() -> None:
    entries = [one._replace(facts=b"\x80") if one.kind == "epoch.closed" else one for one in two().entries]
    with pytest.raises(LocalFault, match=r"ledger entry 20: .* check it with `echo2-coord ledger verify`"):
        history(RUN, entries)


def test_the_lines_have_prices_a_step_and_spending() -> None:
    past = history(RUN, two().entries)
    text = "\n".join(quote_text.lines(past, past.terms, quote_markets(past, NO_CHANGES), "USD", 16))
    assert "a step: of the learner, 16 groups of 1.5 RE" in text
    assert "1 closed epochs spent 0.000015 of 1" in text
    assert "2 nodes present" in text
    assert HOUR == 4 * QUARTER


def test_without_work_and_before_a_close_both_are_said() -> None:
    book = Book()
    cheap(book)
    past = history(RUN, book.entries)
    text = "\n".join(quote_text.lines(past, past.terms, quote_markets(past, NO_CHANGES), "USD", 16))
    assert "a step: not known before a group is accepted" in text
    assert "no epoch is closed yet: nothing was spent" in text


@pytest.mark.parametrize("text", ["-1", "1e3", "nan", "", "1.0123456789", "0,5", "9" * 10, "1" * 10_000])
def test_an_amount_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LocalFault, match=r"--budget is .*: write an amount"):
        quote_text.amount_of(text, "--budget")


def test_amounts_are_exact() -> None:
    assert quote_text.amount_of("0.000000001", "--budget") == 1
    assert quote_text.amount_of("12.5", "--budget") == 12_500_000_000
