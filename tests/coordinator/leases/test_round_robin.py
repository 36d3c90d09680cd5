"""The order in which waiting names are served, and what is forgotten of names that do not come back."""

from echo2.coordinator.leases.round_robin import RoundRobin


def test_names_are_served_round_robin_by_the_first_level_then_by_the_second() -> None:
    rounds, served = RoundRobin(), list[str]()
    waiting = [("many", f"m{number}") for number in range(9)] + [("few", "f0"), ("few", "f1")]
    for path in waiting:
        rounds.wait(path, until=10, now=0)
    for _ in range(6):
        (first, *_) = [path for path in waiting if rounds.is_next(path, 1, 0)]
        assert [path for path in waiting if rounds.is_next(path, 1, 0)] == [first]
        rounds.on_service(first)
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


def test_of_names_that_all_come_late_each_is_served_in_its_turn() -> None:
    """Four keys of a subnet that ask every 15 s and were told to be back within 10 were never served, and 30 such
    subnets left an honest fleet a third of its leases for five minutes."""
    rounds, served = RoundRobin(), list[int]()
    for number in range(12):
        path, now = ("party", number % 4), 4 * number
        if number >= 4 and rounds.is_next(path, 1, now):
            rounds.on_service(path)
            served.append(number % 4)
        else:
            rounds.wait(path, until=now + 10, now=now)
    assert served[:4] == [0, 1, 2, 3]


def test_those_that_never_come_back_are_forgotten_while_others_begin_to_wait() -> None:
    """This holds also if no name is served: the learner stands still, while new keys keep coming."""
    rounds = RoundRobin()
    for number in range(5_000):
        rounds.wait(("party", "connection", number), until=number + 100, now=number)
    assert 0 < len(rounds) <= 102
