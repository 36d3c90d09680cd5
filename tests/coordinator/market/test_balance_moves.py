"""The balance of a replaced key: it waits, moves whole, and stays where that is disputed. Forfeits find it."""

import pytest

from echo2.coordinator.market.balance_moves import dispute, due, move_balance
from echo2.coordinator.market.entries import BalanceMoved, Forfeited, NewEntry
from echo2.coordinator.market.epoch_terms import BadTerms
from echo2.coordinator.market.epochs import forfeit, release, vest
from echo2.coordinator.market.market_replay import replay_market
from echo2.coordinator.market.packed_state import pack_state, unpack_state
from echo2.ledger.balance_waits import BALANCE_WAIT_MS, BalanceWait
from echo2.ledger.ledger_entries import transfer
from echo2.ledger.ledger_facts import KeyRotated
from echo2.ledger.payout_facts import PayoutEnded
from echo2.runtime.units import DAY
from tests.support.market import QUARTER, RUN, Book, cheap

LEASE = b"l" * 16


def earned(groups: int = 12) -> tuple[Book, int]:
    """Return a book in which node a has earned, and has a run-off, and the time of the close."""
    book = Book()
    begin = cheap(book, run_off=DAY)
    for number in range(groups):
        book.lease("a", begin, begin + number + 1)
    book.close(begin + QUARTER)
    return book, begin + QUARTER


def replace(book: Book, node: str, successor: str, at: int) -> None:
    fact = KeyRotated(node=node, successor=successor)
    book.add(NewEntry(at, "key.rotated", f"key:{successor}:{len(book.entries) + 1}", fact))


def balance(book: Book, node: str) -> tuple[int, ...]:
    return tuple(book.balances[f"node:{node}:{name}"] for name in ("accrued", "unvested", "payable"))


def settle(book: Book, at: int) -> None:
    for new in (vest, release):
        book.add(new(book.state, at))


def agrees(book: Book) -> None:
    """The entries alone lead to the same state, and so does a snapshot."""
    assert vars(replay_market(RUN, book.entries)) == vars(book.state)
    if book.state.open is None:
        assert vars(unpack_state(RUN, pack_state(book.state))) == vars(book.state)


def test_nothing_moves_within_72_hours_and_all_of_it_then() -> None:
    book, at = earned()
    before = sum(balance(book, "a"))
    replace(book, "a", "n", at)
    with pytest.raises(BadTerms, match="moves from"):
        move_balance(book.state, at + BALANCE_WAIT_MS - 1, "a")
    assert due(book.state, at + BALANCE_WAIT_MS - 1) == []
    settle(book, at + 2 * DAY)  # pay vests and is released to the old key meanwhile
    assert balance(book, "a") == (0, 0, before)
    assert due(book.state, at + BALANCE_WAIT_MS) == ["a"]
    book.add(move_balance(book.state, at + BALANCE_WAIT_MS, "a"))
    assert (balance(book, "a"), balance(book, "n")) == ((0, 0, 0), (0, 0, before))
    (fact,) = book.facts("balance.moved", BalanceMoved)
    assert fact == BalanceMoved(node="a", successor="n", accrued=0, unvested=0, payable=before)
    assert due(book.state, at + BALANCE_WAIT_MS) == []
    assert move_balance(book.state, at + BALANCE_WAIT_MS + 1, "a") is None
    agrees(book)


def test_a_disputed_balance_stays_for_good() -> None:
    book, at = earned()
    before = sum(balance(book, "a"))
    replace(book, "a", "n", at)
    book.add(dispute(book.state, at + BALANCE_WAIT_MS - 1, "a"))
    with pytest.raises(BadTerms, match="disputed already"):
        dispute(book.state, at + BALANCE_WAIT_MS - 1, "a")
    with pytest.raises(BadTerms, match="stays with it"):
        move_balance(book.state, at + BALANCE_WAIT_MS, "a")
    assert due(book.state, at + 10 * BALANCE_WAIT_MS) == []
    settle(book, at + BALANCE_WAIT_MS)
    assert balance(book, "a") == (0, 0, before)
    agrees(book)


def test_a_disputed_balance_on_probation_is_released_once_its_wait_has_ended() -> None:
    """Its key works no more: the tenth accepted group in a row, which ends probation, never comes."""
    book, at = earned(9)
    before = sum(balance(book, "a"))
    replace(book, "a", "n", at)
    book.add(dispute(book.state, at + DAY, "a"))
    book.add(vest(book.state, at + BALANCE_WAIT_MS - 1))
    assert release(book.state, at + BALANCE_WAIT_MS - 1) is None
    agrees(book)
    book.add(forfeit(book.state, at + BALANCE_WAIT_MS - 1, "a", 100, "a false group", LEASE))
    book.add(release(book.state, at + BALANCE_WAIT_MS))
    assert balance(book, "a") == (0, 0, before - 100)
    agrees(book)


def test_of_a_key_on_probation_whose_replacement_nobody_disputes_nothing_is_released() -> None:
    book, at = earned(9)
    replace(book, "a", "n", at)
    book.add(vest(book.state, at + BALANCE_WAIT_MS))
    assert release(book.state, at + 2 * BALANCE_WAIT_MS) is None
    book.add(move_balance(book.state, at + 2 * BALANCE_WAIT_MS, "a"))
    assert release(book.state, at + 3 * BALANCE_WAIT_MS) is None
    agrees(book)


def test_a_dispute_comes_from_a_replaced_key_and_in_time() -> None:
    book, at = earned()
    with pytest.raises(BadTerms, match="was not replaced"):
        dispute(book.state, at, "a")
    with pytest.raises(BadTerms, match="stays with it"):
        move_balance(book.state, at + BALANCE_WAIT_MS, "a")
    replace(book, "a", "n", at)
    with pytest.raises(BadTerms, match="is over"):
        dispute(book.state, at + BALANCE_WAIT_MS, "a")
    assert book.state.waits["a"].disputed is False


def test_tranches_go_with_their_times_to_a_key_that_has_its_own() -> None:
    """A long epoch closes just before the move: its pay is not vested, and joins that of the successor."""
    book, at = earned()
    replace(book, "a", "b", at)
    begin = cheap(book)
    for number in range(11):
        book.lease("a", begin, begin + number + 1, weight=2_000)
        book.lease("b", begin, begin + number + 1, weight=3_000)
    close = at + BALANCE_WAIT_MS - QUARTER
    book.close(close)
    old, own = book.state.tranches["a"], book.state.tranches["b"]
    assert all(one.unvested for one in (*old, *own))
    sums = [sum(pair) for pair in zip(balance(book, "a"), balance(book, "b"), strict=True)]
    book.add(move_balance(book.state, at + BALANCE_WAIT_MS, "a"))
    assert sorted(book.state.tranches["b"]) == sorted([*old, *own])
    assert balance(book, "b") == tuple(sums)
    settle(book, close + DAY)
    assert balance(book, "b") == (0, 0, sum(sums))
    agrees(book)


def test_a_forfeit_finds_the_pay_at_the_new_key_and_before_at_the_old_one() -> None:
    book, at = earned(9)  # on probation: nothing is released
    replace(book, "a", "n", at)
    book.add(forfeit(book.state, at + 1, "a", 100, "a false group", LEASE))
    book.add(move_balance(book.state, at + BALANCE_WAIT_MS, "a"))
    there = sum(balance(book, "n"))
    book.add(forfeit(book.state, at + BALANCE_WAIT_MS + 1, "a", 70, "another one", b"m" * 16))
    facts = book.facts("forfeited", Forfeited)
    assert [(one.node, one.lacking) for one in facts] == [("a", 0), ("n", 0)]
    assert sum(balance(book, "n")) == there - 70
    agrees(book)


def test_probation_that_had_ended_has_ended_for_the_pay_that_moved() -> None:
    """The successor never works, and its measurement is forgotten: what moves is released all the same."""
    book, at = earned(12)
    replace(book, "a", "n", at)
    begin = cheap(book)
    book.lease("a", begin, begin + 1, weight=50_000)
    book.close(at + BALANCE_WAIT_MS - 2 * QUARTER)
    cheap(book)
    book.close(at + BALANCE_WAIT_MS - QUARTER)
    assert (book.state.proven("a", at + BALANCE_WAIT_MS), book.state.proven("n", at + BALANCE_WAIT_MS)) == (True, False)
    book.add(move_balance(book.state, at + BALANCE_WAIT_MS, "a"))
    assert book.state.proven("n", at + BALANCE_WAIT_MS)
    settle(book, at + BALANCE_WAIT_MS + DAY)
    assert balance(book, "n")[:2] == (0, 0)
    agrees(book)


def test_of_a_chain_each_hop_waits_by_itself() -> None:
    book, at = earned()
    before = sum(balance(book, "a"))
    replace(book, "a", "n", at)
    replace(book, "n", "o", at + DAY)
    book.add(move_balance(book.state, at + BALANCE_WAIT_MS, "a"))
    assert sum(balance(book, "n")) == before
    assert due(book.state, at + BALANCE_WAIT_MS) == []
    assert due(book.state, at + BALANCE_WAIT_MS + DAY) == ["n"]
    book.add(move_balance(book.state, at + BALANCE_WAIT_MS + DAY, "n"))
    assert sum(balance(book, "o")) == before
    agrees(book)


def test_a_dispute_of_the_first_key_of_a_chain_keeps_its_own_alone() -> None:
    book, at = earned()
    replace(book, "a", "b", at)
    replace(book, "b", "o", at + DAY - QUARTER)
    begin = cheap(book)
    book.lease("b", begin, begin + 1)
    book.close(begin + QUARTER)
    book.add(dispute(book.state, at + 2 * DAY, "a"))
    kept, other = sum(balance(book, "a")), sum(balance(book, "b"))
    assert due(book.state, at + 2 * BALANCE_WAIT_MS) == ["b"]
    book.add(move_balance(book.state, at + 2 * BALANCE_WAIT_MS, "b"))
    assert (sum(balance(book, "a")), sum(balance(book, "o"))) == (kept, other)
    agrees(book)


def test_money_that_comes_back_later_follows_by_an_entry_of_its_own() -> None:
    book, at = earned()
    replace(book, "a", "n", at)
    settle(book, at + 2 * DAY)
    amount = book.balances["node:a:payable"]
    fact = PayoutEnded(payment=bytes(16), number=1, node="a")
    book.add(NewEntry(at + 2 * DAY, "payout.sent", "payout:0", fact, transfer("node:a:payable", "paid:csv", amount)))
    assert due(book.state, at + BALANCE_WAIT_MS) == []
    back = transfer("paid:csv", "node:a:payable", amount)
    book.add(NewEntry(at + 9 * DAY, "payout.returned", "payout:1", fact, back))
    book.add(move_balance(book.state, at + 9 * DAY, "a"))
    assert balance(book, "n") == (0, 0, amount)
    assert book.state.payable == {"n": amount}
    agrees(book)


def test_a_key_that_takes_over_again_is_no_replaced_one() -> None:
    book, at = earned()
    replace(book, "a", "n", at)
    book.add(move_balance(book.state, at + BALANCE_WAIT_MS, "a"))
    replace(book, "n", "a", at + BALANCE_WAIT_MS)
    assert set(book.state.waits) == {"n"}
    book.add(move_balance(book.state, at + 2 * BALANCE_WAIT_MS, "n"))
    assert due(book.state, at + 9 * BALANCE_WAIT_MS) == []
    assert sum(balance(book, "a")) > 0
    agrees(book)


class CountedKey(str):
    """A key that counts the look-ups of all such keys."""

    __slots__ = ()
    looked_up = 0

    def __hash__(self) -> int:
        CountedKey.looked_up += 1
        return super().__hash__()


def test_replaced_keys_without_money_are_not_looked_at() -> None:
    state = Book().state
    state.waits = {CountedKey(f"k{number:05}"): BalanceWait("z", DAY) for number in range(10_000)}
    state.payable, state.tranches = {"k00007": 5, "z": 1}, {"k00009": (), "y": ()}
    CountedKey.looked_up = 0
    assert due(state, DAY - 1) == []
    assert due(state, DAY) == ["k00007", "k00009"]
    assert CountedKey.looked_up < 20
