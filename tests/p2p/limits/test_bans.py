"""Bans end by themselves, grow with repetition, and forgive a few mistakes."""

from echo2.p2p.limits.bans import FORGET, FORGIVEN, KEPT, LONGEST, MEMORY, TERM, Bans


def test_a_ban_ends_by_itself():
    bans = Bans()
    assert bans.ban("eve", 0) == TERM
    assert bans.banned("eve", TERM - 1)
    assert not bans.banned("eve", TERM)
    assert not bans.banned("bob", 0)


def test_a_repeated_offence_is_banned_for_longer_up_to_a_day():
    bans, now, terms = Bans(), 0.0, []
    for _ in range(6):
        terms.append(bans.ban("eve", now))
        now += terms[-1] + 1
    assert terms[:3] == [TERM, 4 * TERM, 16 * TERM]
    assert terms[-1] == LONGEST


def test_a_second_ban_within_the_first_changes_nothing():
    bans = Bans()
    bans.ban("eve", 0)
    assert bans.ban("eve", TERM / 2) == TERM / 2
    assert not bans.banned("eve", TERM)


def test_an_old_offence_is_forgotten():
    bans = Bans()
    bans.ban("eve", 0)
    assert bans.ban("eve", TERM + MEMORY) == TERM


def test_only_so_many_bans_are_remembered():
    bans = Bans()
    for number in range(KEPT + 1):
        bans.ban(str(number), 0)
    assert not bans.banned("0", 1)
    assert bans.banned("1", 1)


def test_a_mistake_is_forgiven_and_a_repeated_one_bans():
    bans = Bans()
    assert [bans.charge("eve", 0) for _ in range(FORGIVEN)] == [None] * FORGIVEN
    assert not bans.banned("eve", 0)
    assert bans.charge("eve", 1) == TERM
    assert bans.remaining("eve", 1) == TERM
    assert not bans.banned("bob", 1)
    assert bans.charge("eve", 1 + TERM) == 4 * TERM, "a ban does not wash off what led to it"


def test_one_mistake_per_hour_never_bans():
    bans = Bans()
    assert all(bans.charge("clumsy", hour * FORGET) is None for hour in range(100))
