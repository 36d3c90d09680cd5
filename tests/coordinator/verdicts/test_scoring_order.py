"""The version whose groups the scorer scores next."""

import random

from echo2.coordinator.verdicts.scoring_order import LONGEST_WAIT, VISIT_GROUPS, PendingVersion, next_version


def test_where_nothing_waits_nothing_is_next() -> None:
    assert next_version([], 3, 0, 0) is None


def test_the_loaded_version_is_first_then_the_nearest_then_the_older() -> None:
    waiting = [PendingVersion(1, version, since=0) for version in (2, 4, 5, 7)]
    for present, chosen in ((5, 5), (3, 2), (6, 5), (9, 7), (None, 2)):
        assert next_version(waiting, present, 1, 0) == PendingVersion(1, chosen, 0)


def test_a_version_that_has_waited_too_long_is_next_at_any_distance() -> None:
    near, far = PendingVersion(1, 7, since=1_000), PendingVersion(1, 2, since=0)
    assert next_version([far, near], 7, LONGEST_WAIT - 1, 0) == near
    assert next_version([far, near], 7, LONGEST_WAIT, 0) == far
    assert next_version([far, PendingVersion(1, 9, since=-5)], 7, LONGEST_WAIT, 0) == PendingVersion(1, 9, -5)


def test_what_only_the_next_draw_can_take_is_first_and_what_none_can_is_last() -> None:
    too_old, last, fresh, present = (PendingVersion(1, version, since=0) for version in (2, 3, 6, 8))
    assert next_version([too_old, last, fresh, present], 8, 1, oldest=3) == last
    assert next_version([too_old, fresh], 2, 1, oldest=3) == fresh
    assert next_version([too_old], 8, 1, oldest=3) == too_old
    assert next_version([too_old, present], 8, LONGEST_WAIT, oldest=3) == too_old


def serve(every: int) -> tuple[int, int, int]:
    """Simulate a scorer: a group per `every` ms for one of three versions, 90 ms per group, two seconds per change of
    version. Return (changes of version, groups scored, longest wait)."""
    rng, now, present, changes, worst, looked = random.Random(1), 0, 0, 0, 0, 0
    queue: list[tuple[int, int]] = []
    coming = [(number * every, rng.choice((5, 6, 7))) for number in range(4_000)]
    while looked < 2_000:
        while coming[0][0] <= now:
            queue.append(coming.pop(0))
        first: dict[int, int] = {}
        for at, version in queue:
            first.setdefault(version, at)
        chosen = next_version([PendingVersion(1, version, at) for version, at in first.items()], present, now, 0)
        if chosen is None:
            now = coming[0][0]
            continue
        if chosen.version != present:
            present, changes, now = chosen.version, changes + 1, now + 2_000
        for group in [one for one in queue if one[1] == present][:VISIT_GROUPS]:
            queue.remove(group)
            worst, looked, now = max(worst, now - group[0]), looked + 1, now + 90
    return changes, looked, worst


def test_below_capacity_no_group_waits_long() -> None:
    changes, looked, worst = serve(every=200)
    assert worst < 2 * LONGEST_WAIT
    assert changes < looked / 4


def test_near_its_limit_the_scorer_changes_versions_seldom() -> None:
    changes, looked, worst = serve(every=100)
    assert worst < 3 * LONGEST_WAIT
    assert changes < looked / 20
