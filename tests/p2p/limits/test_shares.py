"""Shares of a pool: who gives way, for whom, and that nothing is left over."""

from random import Random

from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.shares import Shares


def occupy(shares: Shares[str], holder: str, origin: Origin, amount: int) -> str | None:
    """Occupy a part of a pool; return the first connection that has to give way."""
    return next(shares.occupy(holder, origin, amount), None)


def pool(most: int = 100, strangers: int = 60, per_party: int | None = None) -> Shares[str]:
    return Shares(most, strangers, per_party)


def stranger(party: str) -> Origin:
    return Origin(party, party)


def proven(party: str) -> Origin:
    return Origin(party, party, True)


def test_a_pool_with_room_asks_nobody_to_give_way() -> None:
    shares = pool()
    assert all(occupy(shares, f"c{number}", stranger(f"p{number}"), 6) is None for number in range(10))
    assert shares.total == 60


def test_the_stranger_party_with_most_gives_way_by_its_largest_connection() -> None:
    shares = pool()
    occupy(shares, "a1", stranger("a"), 20)
    occupy(shares, "a2", stranger("a"), 22)
    occupy(shares, "b", stranger("b"), 18)
    assert occupy(shares, "new", stranger("new"), 1) == "a2"
    occupy(shares, "a2", stranger("a"), 0)
    assert occupy(shares, "new", stranger("new"), 2) is None


def test_strangers_never_take_the_part_of_parties_with_accepted_work() -> None:
    shares = pool()
    occupy(shares, "eve", stranger("eve"), 60)
    assert occupy(shares, "node", proven("node"), 40) is None
    assert occupy(shares, "eve", stranger("eve"), 61) == "eve"
    assert occupy(shares, "node", proven("node"), 41) == "eve", "a stranger gives way before a proven party"


def test_a_proven_party_gives_way_where_no_stranger_is_left() -> None:
    shares = pool()
    occupy(shares, "one", proven("one"), 70)
    assert occupy(shares, "two", proven("two"), 31) == "one"


def test_a_proven_party_with_more_than_three_quarters_gives_way_before_strangers() -> None:
    shares = pool()
    occupy(shares, "new", stranger("new"), 20)
    assert occupy(shares, "one", proven("one"), 75) is None
    assert occupy(shares, "late", stranger("late"), 6) == "new", "at three quarters it keeps what it has"
    occupy(shares, "late", stranger("late"), 0)
    assert occupy(shares, "one", proven("one"), 81) == "one"


def test_a_party_beyond_its_own_limit_gives_way_to_itself() -> None:
    shares = pool(per_party=10)
    occupy(shares, "big", stranger("p"), 8)
    assert occupy(shares, "small", stranger("p"), 3) == "big"


def test_connections_give_way_until_there_is_room() -> None:
    shares = pool()
    for number in range(6):
        occupy(shares, f"a{number}", stranger("a"), 10)
    gone = list[str]()
    for crowded in shares.occupy("new", stranger("new"), 25):
        gone.append(crowded)
        shares.leave(crowded)
    assert len(gone) == 3
    assert shares.total == 55


def test_what_shrinks_makes_nobody_give_way() -> None:
    shares = pool()
    occupy(shares, "a", stranger("a"), 60)
    occupy(shares, "b", stranger("b"), 5)
    assert occupy(shares, "b", stranger("b"), 4) is None


def test_the_sums_are_those_of_the_connections_also_when_their_party_changes() -> None:
    random, shares, amounts = Random(1), pool(), dict[str, int]()
    for _ in range(5000):
        holder, party = f"c{random.randrange(20)}", f"p{random.randrange(5)}"
        amounts[holder] = random.choice((0, 0, random.randrange(10)))
        occupy(shares, holder, random.choice((stranger, proven))(party), amounts[holder])
        assert shares.total == sum(amounts.values())
    for holder in amounts:
        occupy(shares, holder, stranger("p"), 0)
    assert shares.total == 0
    assert not shares._of_party
    assert not shares._known
