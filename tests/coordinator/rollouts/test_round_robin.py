"""The order in which waiting names are served, and what is forgotten of names that do not come back."""

from coordinator.rollouts.round_robin import RoundRobin


def test_names_are_served_round_robin_by_the_first_level_then_by_the_second() -> None:
    rounds, served = RoundRobin(), list[str]()
    waiting = [("many", f"m{number}") for number in range(9)] + [("few", "f0"), ("few", "f1")]
    for path in waiting:
        rounds.wait(path, until=10, now=0)
    for _ in range(6):
        (first, *_) = [path for path in waiting if rounds.is_next(path, 1, 0)]
        assert [path for path in waiting if rounds.is_next(path, 1, 0)] == [first]
        rounds.served(first)
        waiting.remove(first)
        served.append(first[1])
    assert served == ["m0", "f0", "m1", "f1", "m2", "m3"]


def test_no_name_waits_for_one_that_does_not_come_back() -> None:
    rounds = RoundRobin()
    rounds.wait(("gone", "a"), until=10, now=0)
    assert not rounds.is_next(("here", "b"), 1, 10)
    assert rounds.is_next(("here", "b"), 2, 10)
    assert rounds.is_next(("here", "b"), 1, 11)
    assert not rounds.anyone(11)


def test_those_that_never_come_back_are_forgotten_while_others_begin_to_wait() -> None:
    """This holds also if no name is served: the learner stands still, while new keys keep coming."""
    rounds = RoundRobin()
    for number in range(5_000):
        rounds.wait(("party", "connection", number), until=number + 100, now=number)
    assert 0 < len(rounds) <= 102


def test_the_next_names_are_listed_round_robin_and_those_that_are_gone_are_dropped() -> None:
    rounds = RoundRobin()
    assert rounds.first(4, 0) == [()]
    rounds.wait(("gone", "a"), until=5, now=0)
    for number in range(9):
        rounds.wait(("many", number), until=10, now=0)
    rounds.wait(("few", 0), until=10, now=0)
    rounds.wait(("few", 1), until=7, now=0)
    assert rounds.first(2, 6) == [("many", 0), ("few", 0)]
    assert rounds.first(6, 6) == [("many", 0), ("few", 0), ("many", 1), ("few", 1), ("many", 2)]
    assert rounds.first(6, 8) == [("many", 0), ("few", 0), ("many", 1), ("many", 2)]
    assert len(rounds) == 10
    assert rounds.first(6, 11) == []
    assert len(rounds) == 0


def test_a_parent_whose_last_names_are_gone_is_no_name_itself() -> None:
    rounds = RoundRobin()
    rounds.wait(("party", "stays"), until=20, now=0)
    rounds.wait(("party", "gone"), until=5, now=0)
    rounds.served(("party", "stays"))
    assert rounds.first(3, 6) == []
    assert len(rounds) == 0
