"""Bans end by themselves, grow with repetition, and forgive a few mistakes."""

from echo2.p2p.limits.bans import (
    BAN_MEMORY_SECONDS,
    BAN_SECONDS,
    CHARGE_SECONDS,
    FORGIVEN_CHARGES,
    LONGEST_BAN_SECONDS,
    MOST_BANS,
    Bans,
)


def test_a_ban_ends_by_itself():
    bans = Bans()
    assert bans.ban("eve", 0) == BAN_SECONDS
    assert bans.is_banned("eve", BAN_SECONDS - 1)
    assert not bans.is_banned("eve", BAN_SECONDS)
    assert not bans.is_banned("bob", 0)


def test_a_repeated_offence_is_banned_for_longer_up_to_a_day():
    bans, now, terms = Bans(), 0.0, []
    for _ in range(6):
        terms.append(bans.ban("eve", now))
        now += terms[-1] + 1
    assert terms[:3] == [BAN_SECONDS, 4 * BAN_SECONDS, 16 * BAN_SECONDS]
    assert terms[-1] == LONGEST_BAN_SECONDS


def test_a_second_ban_within_the_first_changes_nothing():
    bans = Bans()
    bans.ban("eve", 0)
    assert bans.ban("eve", BAN_SECONDS / 2) == BAN_SECONDS / 2
    assert not bans.is_banned("eve", BAN_SECONDS)


def test_an_old_offence_is_forgotten():
    bans = Bans()
    bans.ban("eve", 0)
    assert bans.ban("eve", BAN_SECONDS + BAN_MEMORY_SECONDS) == BAN_SECONDS


def test_only_so_many_bans_are_remembered():
    bans = Bans()
    for number in range(MOST_BANS + 1):
        bans.ban(str(number), 0)
    assert not bans.is_banned("0", 1)
    assert bans.is_banned("1", 1)


def test_a_mistake_is_forgiven_and_a_repeated_one_bans():
    bans = Bans()
    assert [bans.charge("eve", 0) for _ in range(FORGIVEN_CHARGES)] == [None] * FORGIVEN_CHARGES
    assert not bans.is_banned("eve", 0)
    assert bans.charge("eve", 1) == BAN_SECONDS
    assert bans.remaining("eve", 1) == BAN_SECONDS
    assert not bans.is_banned("bob", 1)
    assert bans.charge("eve", 1 + BAN_SECONDS) == 4 * BAN_SECONDS, "a ban does not wash off what led to it"


def test_one_mistake_per_hour_never_bans():
    bans = Bans()
    assert all(bans.charge("clumsy", hour * CHARGE_SECONDS) is None for hour in range(100))
