"""The buffer's draw: the one place where the staleness rule is guaranteed."""

import contextlib
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.metrics import run_metrics
from echo2.protocol.leases import Lease
from tests.support.group_world import SPEC, TEXT, World, group

RIGHT = "the right answer"


def received(world: World, version: int, count: int = 1, texts: list[str] | None = None) -> list[bytes]:
    leases = [world.lease(version=version) for _ in range(count)]
    for lease in leases:
        answer = TEXT.decode(lease.prompt)[3::-1]
        world.submit(group(lease, texts and [answer if text == RIGHT else text for text in texts]))
    return [lease.id for lease in leases]


def drawn(world: World) -> list[bytes]:
    batch = world.group_service.draw(world.now)
    return [] if batch is None else [group.id for group in batch]


def test_the_oldest_version_goes_first_then_the_order_of_receipt(world: World) -> None:
    world.learner_at(1)
    newer = received(world, 1, 2)
    older = received(world, 0, 2)
    world.decide_all()
    assert drawn(world) == older
    assert drawn(world) == newer
    assert world.group_service.buffer.histogram == [2, 2, 0]


def test_a_group_at_the_limit_is_drawn_and_one_beyond_never_is(world: World) -> None:
    ids = received(world, 0, 2)
    world.decide_all()
    world.learner_at(3)
    assert drawn(world) == []
    assert world.group_service.count_buffered() == 0
    world.learner_at(2)
    assert drawn(world) == ids
    assert world.group_service.buffer.histogram == [0, 0, 2]


@pytest.mark.slow
def test_a_thousand_groups_of_equal_rewards_are_paid_learned_from_and_stop_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=2)
    for number in range(500):
        ids = received(world, number, 2, ["111", "111"])
        assert all(one.weight > 0 for one in world.decide_all())
        assert drawn(world) == ids
        world.learner_at(number + 1)
    assert isinstance(world.lease(version=500), Lease)


@pytest.mark.slow
def test_with_refill_a_thousand_groups_of_equal_rewards_are_paid_and_the_draw_waits_for_others(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=2, refill=True)
    for _ in range(1000):
        received(world, 0, 1, ["111", "111"])
        assert all(one.weight > 0 for one in world.decide_all())
    assert drawn(world) == []
    assert (world.group_service.count_buffered(), world.group_service.buffer.flat(0, 1)) == (0, 1000)
    ids = received(world, 0, 2, [RIGHT, "111"])
    world.decide_all()
    assert drawn(world) == ids


def test_too_old_when_decided_is_paid_but_not_trainable(world: World) -> None:
    received(world, 0)
    world.learner_at(3)
    (receipt,) = world.decide_all()
    assert (receipt.verdict, receipt.trainable, receipt.weight) == ("accepted", False, 140)
    assert run_metrics.counts(world.group_service.database, world.now).too_old == 1
    assert world.group_service.database.value("SELECT count(*) FROM buffer") == 0


def test_another_era_is_never_drawn_but_paid(world: World) -> None:
    received(world, 0, 2)
    world.decide_all()
    late = world.lease()
    world.learner_at(0, era=2)
    assert world.group_service.draw(world.now) is None
    assert world.group_service.count_buffered() == 0
    world.submit(group(late))
    (receipt,) = world.decide_all()
    assert (receipt.verdict, receipt.trainable) == ("accepted", False)


def test_no_group_is_drawn_twice_and_half_a_batch_not_at_all(world: World) -> None:
    ids = received(world, 0, 3)
    world.decide_all()
    assert drawn(world) == ids[:2]
    assert world.group_service.draw(world.now) is None
    more = received(world, 0)
    world.decide_all()
    assert drawn(world) == [ids[2], *more]


def test_after_a_crash_the_drawn_groups_are_those_of_the_checkpoint(world: World) -> None:
    ids = received(world, 0, 4)
    world.decide_all()
    assert drawn(world) == ids[:2]
    assert drawn(world) == ids[2:]
    world.reopen(drawn=ids[:2])
    assert drawn(world) == ids[2:]
    world.reopen()
    assert drawn(world) == ids[:2]


@pytest.mark.parametrize("refill", [False, True])
def test_groups_without_variance_are_drawn_unless_they_are_to_be_refilled(tmp_path: Path, refill: bool) -> None:
    world = World(tmp_path)
    world.group_service.buffer.refill = refill
    flat = received(world, 0, 1, ["0", "0"])
    varied = received(world, 0, 2, ["0", RIGHT])
    world.decide_all()
    assert world.group_service.count_buffered() == 3 - refill
    assert drawn(world) == (varied if refill else [*flat, varied[0]])


def test_by_signal_groups_that_differ_most_go_first_and_no_group_beyond_the_limit(tmp_path: Path) -> None:
    world = World(tmp_path, spec=msgspec.structs.replace(SPEC, group_size=4), draw="signal")
    flat = received(world, 0, 2, ["0"] * 4)
    one = received(world, 0, 1, [RIGHT, "0", "0", "0"])
    half = received(world, 0, 1, [RIGHT, RIGHT, "0", "0"])
    world.decide_all()
    world.learner_at(1)
    newer = received(world, 1, 2, [RIGHT, RIGHT, "0", "0"])
    world.decide_all()
    assert drawn(world) == [*half, newer[0]], "equal ones by age"
    assert drawn(world) == [*one, newer[1]], "a batch names its groups oldest first"
    world.learner_at(3)
    assert drawn(world) == [], "S is the hard limit"
    paid = "SELECT count(*) FROM verdicts WHERE weight > 0 AND lease IN (?, ?)"
    assert world.group_service.database.value(paid, tuple(flat)) == 2


def test_groups_of_a_file_without_signals_go_by_variance(tmp_path: Path) -> None:
    world = World(tmp_path, draw="signal")
    flat = received(world, 0, 2, ["0", "0"])
    varied = received(world, 0, 2, ["0", RIGHT])
    world.decide_all()
    world.group_service.database.do("UPDATE buffer SET signal = varied")  # no group has a signal of its own
    assert drawn(world) == varied
    assert drawn(world) == flat


def left(world: World) -> int:
    """Count the groups that may be drawn, one by one."""
    at, buffer = world.group_service.progress, world.group_service.buffer
    assert at is not None
    where = "era = ? AND version >= ? AND varied >= ? AND lease NOT IN (SELECT lease FROM set_aside)"
    rows = world.group_service.database.all(
        f"SELECT lease FROM buffer WHERE {where} AND lease NOT IN (SELECT lease FROM temp.drawn)",
        (at.era, max(0, at.step - world.spec.staleness), buffer.refill),
    )
    return len(rows)


class Undone(Exception):
    """Undoes a transaction."""


@pytest.mark.parametrize("refill", [False, True])
def test_the_count_follows_each_change_of_the_buffer(tmp_path: Path, refill: bool) -> None:
    world = World(tmp_path)
    service = world.group_service
    service.buffer.refill = refill
    counts = list[int]()

    def check() -> None:
        counts.append(world.group_service.count_buffered())
        assert counts[-1] == left(world) == sum(world.group_service.buffer.by_version(*place(world)).values())

    ids = received(world, 0, 3, ["0", RIGHT]) + received(world, 0, 2, ["0", "0"])
    check()
    world.decide_all()
    check()
    service.buffer.set_aside([ids[0], ids[0]], "the learner failed at it", world.now)
    check()
    first = drawn(world)
    check()
    service.buffer.set_aside(first, "the learner failed at it", world.now)
    check()
    world.learner_at(1)
    received(world, 1, 3, ["0", RIGHT])
    world.decide_all()
    check()
    with contextlib.suppress(Undone), service.database.transaction():
        drawn(world)
        service.buffer.set_aside([ids[4]], "undone", world.now)
        raise Undone
    check()
    second = drawn(world)
    check()
    world.reopen(drawn=second)
    world.group_service.buffer.refill = refill
    check()
    world.reopen()
    world.group_service.buffer.refill = refill
    check()
    world.learner_at(4)
    check()
    assert counts[-1] == 0
    assert len(set(counts)) > 3, "the counts differ"


def place(world: World) -> tuple[int, int]:
    at = world.group_service.progress
    assert at is not None
    return at.step, at.era
