"""An epoch from its terms to the release of pay: entries in, entries out."""

from collections.abc import Callable

import msgspec
import pytest

from echo2.coordinator.market.entries import EpochClosed, EpochOpened, NewEntry
from echo2.coordinator.market.epoch_plan import offers
from echo2.coordinator.market.epoch_terms import BadTerms
from echo2.coordinator.market.epochs import (
    announce,
    benchmark,
    close_epoch,
    draw,
    forfeit,
    group_owners,
    open_ask,
    open_epoch,
    release,
    seal_ask,
    vest,
)
from echo2.coordinator.market.market_replay import NotReproduced, replay_market
from echo2.coordinator.market.throughput import HOUR
from echo2.ledger.epoch_facts import ClosedNode
from echo2.ledger.ledger_entries import ESCROW, FORFEIT, FUND, ROUNDING, Posting
from echo2.protocol.sealed_asks import BadAsk, commitment
from echo2.runtime.units import DAY
from tests.support.market import BEACON, QUARTER, RUN, SALT, Book, announced, cheap, told

MINUTE = 60_000


def rows(book: Book) -> dict[str, ClosedNode]:
    return {row.node: row for row in book.facts("epoch.closed", EpochClosed)[-1].nodes}


def test_an_epoch_pays_accepted_work_at_its_prices() -> None:
    book = Book()
    begin = cheap(book, budget=10**9)
    for number in range(10):
        book.lease("a", begin + number * MINUTE, begin + (number + 1) * MINUTE)
    book.lease("b", begin, begin + MINUTE, weight=0)
    book.close(begin + QUARTER)
    assert rows(book)["a"] == ClosedNode("a", 1000, 10_000, 10 * MINUTE, 10_000, 2_000, True)
    assert rows(book)["b"] == ClosedNode("b", 2000, 0, MINUTE, 0, 0, True)
    assert +book.balances == {"node:a:accrued": 8_000, "node:a:unvested": 2_000}
    assert book.balances[FUND] == -10_000


def test_what_is_paid_becomes_payable_after_the_holdback_and_a_day() -> None:
    book = Book()
    begin = cheap(book)
    for number in range(100):
        book.lease("a", begin, begin + number + 1)
    book.close(begin + QUARTER)
    assert book.balances["node:a:payable"] == 80_000 - 32_000
    assert vest(book.state, begin + QUARTER) is None
    assert release(book.state, begin + QUARTER) is None
    at = cheap(book)
    book.close(begin + QUARTER + DAY)
    assert at < begin + QUARTER + DAY
    assert +book.balances == {"node:a:payable": 100_000}
    assert book.state.tranches == {}


def test_probation_does_not_begin_anew_while_pay_is_held() -> None:
    book = Book()
    begin = cheap(book)
    for number in range(10):
        book.lease("a", begin, begin + number + 1)
    book.close(begin + QUARTER)
    assert book.balances["node:a:payable"] == 0, "all of it is among the newest 40 reference rollouts"
    cheap(book)
    book.close(begin + QUARTER + DAY)
    assert book.balances["node:a:payable"] == 10_000
    cheap(book)
    book.close(begin + QUARTER + 2 * DAY)
    assert book.state.measurements == {}


def test_pay_of_probation_is_not_released() -> None:
    book = Book()
    begin = cheap(book)
    for number in range(9):
        book.lease("a", begin, begin + number + 1, weight=100_000)
    book.close(begin + QUARTER)
    assert book.balances["node:a:payable"] == 0
    at = cheap(book)
    book.lease("a", at, at + 1)
    book.close(at + QUARTER)
    assert book.balances["node:a:payable"] > 0


def test_a_forfeit_raises_the_next_budget_and_does_not_spare_the_operator() -> None:
    book = Book()
    begin = cheap(book)
    book.lease("a", begin, begin + 1, weight=10_000)
    book.close(begin + QUARTER)
    book.add(forfeit(book.state, begin + QUARTER, "a", 3_000, "a false group", b"l" * 16))
    assert book.balances[FORFEIT] == 3_000
    fund = book.balances[FUND]
    at = cheap(book, budget=60_000)
    opened = book.facts("epoch.opened", EpochOpened)[-1]
    assert opened.forfeits == 3_000
    assert (book.balances[ESCROW], book.balances[FORFEIT]) == (63_000, 0)
    book.lease("b", at, at + 1, weight=5_000)
    book.close(at + QUARTER)
    assert book.balances[FUND] == fund - 10_000, "the operator pays all of what is within its budget"
    assert (book.balances[ESCROW], book.balances[FORFEIT]) == (0, 3_000)
    # beyond the operator's part forfeits pay
    at = cheap(book, budget=44_000)
    for node in ("a", "b"):
        book.lease(node, at, at + 1, weight=10**9)
    book.close(at + QUARTER)
    assert book.balances[FORFEIT] < 3_000
    assert book.balances[FUND] == fund - 54_000


def test_a_reversal_takes_no_more_than_is_unvested_or_held_back() -> None:
    book = Book()
    begin = cheap(book)
    for number in range(10):
        book.lease("a", begin, begin + number + 1, weight=10_000)
    book.close(begin + QUARTER)
    payable = book.balances["node:a:payable"]
    book.add(forfeit(book.state, begin + QUARTER, "a", 10**9, "all", b"l" * 16))
    assert book.balances["node:a:payable"] == payable == 48_000
    assert book.balances["node:a:accrued"] == book.balances["node:a:unvested"] == 0
    assert book.balances[FORFEIT] == 52_000


def test_the_last_opened_ask_stands_and_one_that_stays_sealed_changes_nothing() -> None:
    book = Book()
    cheap(book)
    book.close(QUARTER)
    book.add(announce(book.state, QUARTER + 1, announced(2, QUARTER + 10)))
    book.add(seal_ask(book.state, QUARTER + 2, "a", 2, commitment(RUN, "a", 2, 70_000, SALT)))
    book.add(seal_ask(book.state, QUARTER + 2, "b", 2, commitment(RUN, "b", 2, 110_000, SALT)))
    book.add(draw(book.state, QUARTER + 11, BEACON))
    book.add(open_ask(book.state, QUARTER + 11, "b", 2, 110_000, SALT))
    book.add(open_epoch(book.state, QUARTER + 12, ["a", "b"]))
    assert book.state.asks == {"a": 60_000, "b": 110_000}
    assert book.state.sealed == {}


def test_a_node_is_offered_with_an_ask_and_a_rate_and_an_incumbent_after_an_epoch() -> None:
    book = Book()
    begin = cheap(book)
    book.add(benchmark(begin, "c", 60_000))
    known = book.state

    def offered() -> dict[bytes, tuple[bool, bool]]:
        found = offers(["a", "b", "c", "d"], known.asks, known.measurements, known.benchmarks, known.incumbents)
        return {offer.node: (offer.incumbent, offer.newcomer) for offer in found}

    assert offered() == {b"a": (False, True), b"b": (False, True)}, "c has no ask, d neither ask nor rate"
    for number in range(30):
        book.lease("a", begin + number * MINUTE, begin + (number + 1) * MINUTE)
    book.lease("b", begin, None)
    book.close(begin + QUARTER)
    assert offered() == {b"a": (True, False)}, "b delivered nothing in an hour"


def test_an_epoch_may_be_closed_before_its_time() -> None:
    book = Book()
    begin = cheap(book)
    book.lease("a", begin, begin + 5)
    book.close(begin + 10)
    assert rows(book)["a"].pay == 1_000
    assert cheap(book) > begin
    assert book.state.epoch == 2


def test_a_node_that_delivered_nothing_is_a_newcomer_again_after_a_day() -> None:
    book = Book()
    begin = cheap(book)
    book.lease("b", begin, None)
    book.close(begin + QUARTER)
    assert book.state.measurements["b"].rate(60_000) == 0
    at = cheap(book)
    book.close(at + DAY + HOUR)
    at = cheap(book)
    book.close(at + QUARTER)
    assert "b" not in book.state.measurements


def test_free_keys_leave_nothing_behind() -> None:
    book = Book()
    begin = cheap(book)
    for number in range(10):
        book.lease("a", begin, begin + number + 1)
    book.close(begin + QUARTER)
    at = book.epoch(begin + QUARTER, [], {}, need=0)
    assert book.state.asks == {"a": 60_000}, "b never had a lease"
    assert book.state.benchmarks == {"a": 60_000}
    book.close(at + 3 * DAY)
    at = book.epoch(at + 3 * DAY, [], {}, need=0)
    book.close(at + QUARTER)
    book.epoch(at + QUARTER, [], {}, need=0)
    state = book.state
    assert state.asks == state.benchmarks == state.measurements == state.tranches == {}


def test_no_key_is_sealed_behind_the_draw_whatever_its_time() -> None:
    book = announced_book()
    book.add(draw(book.state, 11, BEACON))
    with pytest.raises(BadTerms, match="asks of epoch 1 are closed"):
        seal_ask(book.state, 5, "a", 1, b"h" * 32)


def test_a_successor_that_may_have_been_chosen_by_its_lot_sits_one_epoch_out() -> None:
    class Rotated(msgspec.Struct):
        node: str
        successor: str

    book = Book()
    begin = cheap(book)
    book.close(begin + QUARTER)
    at = begin + QUARTER
    book.add(announce(book.state, at, announced(2, at + 10, need=100_000)))
    book.add(NewEntry(at + 1, "key.rotated", "1", Rotated("b", "c")))
    book.add(draw(book.state, at + 11, BEACON))
    book.add(NewEntry(at + 12, "key.rotated", "2", Rotated("a", "d")))
    book.add(open_epoch(book.state, at + 13, ["c", "d"]))
    assert book.state.open is not None
    assert [one.node for one in book.state.open.plan.market.nodes] == [b"c"]
    book.close(at + QUARTER)
    book.epoch(at + QUARTER, ["c", "d"], {}, need=100_000)
    assert {one.node for one in book.state.open.plan.market.nodes} == {b"c", b"d"}


def test_an_ask_withdrawn_after_the_beacon_stays() -> None:
    book = Book()
    begin = cheap(book)
    with pytest.raises(BadTerms, match="no terms are announced for epoch 2"):
        open_ask(book.state, begin + 1, "a", 2, 60_000, SALT)
    assert book.state.open is not None
    assert {node.node for node in book.state.open.plan.market.nodes} == {b"a", b"b"}


def test_a_node_that_leaves_hands_in_at_its_last_price_within_the_budget() -> None:
    book = Book()
    begin = cheap(book, run_off=2 * QUARTER)
    book.lease("a", begin, begin + 1)
    book.close(begin + QUARTER)
    at = book.epoch(begin + QUARTER, ["b"], {}, need=50_000, reserve=4_000, cap=1000, run_off=2 * QUARTER)
    book.lease("a", begin + 2, at + 5)
    book.close(at + QUARTER)
    assert rows(book)["a"] == ClosedNode("a", 1000, 1_000, at + 3 - begin, 1_000, 200, False)
    at = book.epoch(at + 3 * QUARTER, ["b"], {}, need=50_000, reserve=4_000, cap=1000)
    book.lease("a", begin + 3, at + 5)
    book.close(at + 1)
    assert "a" not in rows(book), "its run-off has ended"


def test_without_a_run_off_late_work_is_not_paid() -> None:
    book = Book()
    begin = cheap(book)
    book.close(begin + QUARTER)
    at = book.epoch(begin + QUARTER, ["b"], {}, need=50_000, reserve=4_000, cap=1000)
    book.lease("a", begin + 2, at + 5)
    book.close(at + QUARTER)
    assert "a" not in rows(book)
    assert book.balances["node:a:accrued"] == 0


class Judged(msgspec.Struct):
    node: str
    until: int = 0


JUDGED: dict[str, tuple[list[str], bool]] = {
    "suspended": (["suspended 1000"], False),
    "suspended, and that has ended": (["suspended 11"], True),
    "banned": (["banned"], False),
    "banned, then suspended, and that has ended": (["banned", "suspended 11"], False),
    "suspended, then banned": (["suspended 11", "banned"], False),
    "banned and suspended, then unbanned": (["banned", "suspended 1000", "unbanned"], True),
}


@pytest.mark.parametrize("case", JUDGED)
def test_suspended_and_banned_nodes_are_not_among_those_present(case: str) -> None:
    steps, present = JUDGED[case]
    book = Book()
    for number, step in enumerate(steps):
        kind, _, until = step.partition(" ")
        book.add(NewEntry(0, f"node.{kind}", f"{number}", Judged("a", int(until or 0))))
    book.add(announce(book.state, 1, announced(1, 10)))
    book.add(draw(book.state, 11, BEACON))
    book.add(open_epoch(book.state, 11, ["d", "a"]))
    assert book.facts("epoch.opened", EpochOpened)[0].present == (["a", "d"] if present else ["d"])
    book.close(12)
    book.epoch(13, ["a", "d"], {})
    assert book.facts("epoch.opened", EpochOpened)[1].present == (["a", "d"] if present else ["d"])


def test_a_refused_group_that_is_paid_after_all_ends_a_suspension() -> None:
    class Reversed(msgspec.Struct):
        node: str
        weight: int
        paid: bool

    book = Book()
    book.add(NewEntry(0, "node.suspended", "s", Judged("a", (1 << 53) - 1)))
    book.add(NewEntry(1, "lease.reversed", "r", Reversed("a", 1000, True)))
    assert not book.state.is_barred("a", 2)


def test_an_epoch_without_work_nodes_need_or_budget_moves_nothing() -> None:
    for terms in ({"need": 0}, {"budget": 0}, {"reserve": 1}, {}):
        book = Book()
        begin = book.epoch(0, [], {}, **terms)
        book.close(begin + QUARTER)
        assert +book.balances == {}
        assert book.balances[FUND] == 0
    book = Book()
    begin = cheap(book)
    book.close(begin + QUARTER)
    assert +book.balances == {}


def test_a_key_without_accepted_work_has_no_balance() -> None:
    book = Book()
    begin = cheap(book, budget=10**12)
    book.lease("b", begin, None)
    book.lease("b", begin, begin + 5, weight=0)
    book.close(begin + QUARTER)
    assert not [account for account in book.balances if account.startswith("node:b")]


def test_a_clock_that_goes_back_costs_nobody_anything() -> None:
    book = Book()
    begin = cheap(book)
    book.lease("a", begin, begin - 5)
    book.close(begin - 10)
    assert rows(book)["a"].pay == 1_000
    assert rows(book)["a"].leased == 0


WRONG_TERMS = {
    "a negative budget": ({"budget": -1}, "budget of an epoch"),
    "a huge budget": ({"budget": 10**30}, "budget of an epoch"),
    "a huge need": ({"need": 10**30}, "need of an epoch"),
    "no reserve price": ({"reserve": 0}, "reserve of an epoch"),
    "no length": ({"milliseconds": 0}, "milliseconds of an epoch"),
    "asks that are closed already": ({"closes": 5}, "must be known before"),
}


@pytest.mark.parametrize("case", WRONG_TERMS)
def test_wrong_terms_are_refused_in_words(case: str) -> None:
    changed, says = WRONG_TERMS[case]
    with pytest.raises(BadTerms, match=says) as caught:
        announce(Book().state, 5, msgspec.structs.replace(announced(1, 10), **changed))
    assert len(str(caught.value)) < 160


def announced_book() -> Book:
    book = Book()
    book.add(announce(book.state, 0, announced(1, 10)))
    return book


OUT_OF_ORDER: dict[str, tuple[Callable[[Book], object], str]] = {
    "an ask sealed after the close": (lambda b: seal_ask(b.state, 11, "a", 1, b"h" * 32), "asks of epoch 1 are closed"),
    "an ask for another epoch": (lambda b: seal_ask(b.state, 5, "a", 2, b"h" * 32), "no terms are announced"),
    "an ask opened early": (lambda b: open_ask(b.state, 10, "a", 1, 60_000, SALT), "opened once they are closed"),
    "a lottery drawn early": (lambda b: draw(b.state, 10, BEACON), "drawn once, after its asks close"),
    "a short beacon": (lambda b: draw(b.state, 11, b"b"), "32 bytes, not 1"),
    "an epoch opened early": (lambda b: open_epoch(b.state, 10, []), "and its lottery is drawn"),
    "an epoch closed before it is open": (lambda b: close_epoch(b.state, 20), "no epoch is open"),
    "terms a second time": (lambda b: b.add(announce(b.state, 1, announced(1, 20))), "fixed already"),
    "terms of a later epoch": (lambda b: announce(Book().state, 1, announced(3, 20)), "not the next one, which is 1"),
    "a forfeit of nothing": (lambda b: forfeit(b.state, 5, "a", 0, "", b"l" * 16), "a forfeit lies from 1"),
    "a benchmark of nothing": (lambda b: benchmark(5, "a", 0), "a benchmark lies from 1"),
}


@pytest.mark.parametrize("case", OUT_OF_ORDER)
def test_steps_out_of_order_are_refused_in_words(case: str) -> None:
    step, says = OUT_OF_ORDER[case]
    book = announced_book()
    with pytest.raises(BadTerms, match=says):
        step(book)
    book.add(group_owners(book.state, 9, {"b": b"t", "a": b"t"}))
    book.add(draw(book.state, 11, BEACON))
    with pytest.raises(BadTerms, match="drawn once"):
        draw(book.state, 11, BEACON)
    book.add(open_epoch(book.state, 11, []))
    with pytest.raises(BadTerms, match="epoch 1 is not closed"):
        open_epoch(book.state, 30, [])


def test_a_replay_of_the_entries_has_the_same_state() -> None:
    book = told()
    state = replay_market(RUN, book.entries)
    assert vars(state) == vars(book.state)


def test_a_replay_names_the_entry_that_does_not_follow() -> None:
    book = told()
    kinds = {"epoch.opened", "epoch.closed", "vested", "released", "forfeited", "ask.opened"}
    for place, entry in enumerate(book.entries):
        if entry.kind not in kinds:
            continue
        forged = entry._replace(postings=(*entry.postings, Posting(FUND, -1), Posting(ROUNDING, 1)))
        for wrong in (forged, entry._replace(facts=entry.facts + b"\x00"), entry._replace(facts=b"\x80")):
            with pytest.raises(NotReproduced) as caught:
                replay_market(RUN, [*book.entries[:place], wrong, *book.entries[place + 1 :]])
            assert caught.value.seq == entry.seq


def test_a_replay_finds_a_dropped_acceptance_and_a_changed_price() -> None:
    book = told()
    accepted = [entry for entry in book.entries if entry.kind == "lease.accepted"]
    closed = next(entry for entry in book.entries if entry.kind == "epoch.closed")
    with pytest.raises(NotReproduced) as caught:
        replay_market(RUN, [entry for entry in book.entries if entry is not accepted[5]])
    assert caught.value.seq == closed.seq
    terms = next(entry for entry in book.entries if entry.kind == "epoch.announced")
    cheaper = msgspec.msgpack.encode(msgspec.structs.replace(announced(1, 11), budget=1))
    with pytest.raises(NotReproduced):
        replay_market(RUN, [entry._replace(facts=cheaper) if entry is terms else entry for entry in book.entries])


def test_owners_of_an_epoch_count_in_it_and_wrong_pairs_are_refused() -> None:
    book = Book()
    book.add(benchmark(0, "a", 60_000))
    book.add(announce(book.state, 1, announced(1, 10, need=60_000)))
    book.add(group_owners(book.state, 5, {"a": b"t"}))
    book.add(draw(book.state, 11, BEACON))
    with pytest.raises(BadAsk, match="no ask was sealed"):
        open_ask(book.state, 11, "a", 1, 60_000, SALT)
    book.add(open_epoch(book.state, 11, ["a"]))
    assert book.state.owners == {"a": b"t"}
    book.close(20)
    with pytest.raises(BadTerms, match="no terms are announced"):
        group_owners(book.state, 30, {"a": b"t"})
