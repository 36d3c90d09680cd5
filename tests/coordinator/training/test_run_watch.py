"""The watch sets failing batches aside and pauses the run; both survive a restart."""

import pytest

from echo2.coordinator.training.pauses import FIRST_PAUSE_MS
from echo2.coordinator.training.run_watch import Watch
from tests.support.group_world import World


@pytest.fixture
def resumed() -> list[str]:
    """Return the list to which every end of a pause adds."""
    return []


@pytest.fixture
def watch(world: World, resumed: list[str]) -> Watch:
    return watch_of(world, resumed)


def watch_of(world: World, resumed: list[str]) -> Watch:
    return Watch(world.group_service, lambda: world.now / 1000, lambda: resumed.append("resumed"))


def fail_twice(watch: Watch, world: World) -> bytes:
    lease = world.accepted().id
    for _ in range(2):
        watch.on_failure([lease], "ValueError: absurd")
    return lease


def test_a_batch_that_fails_twice_is_set_aside_for_good(watch: Watch, world: World) -> None:
    lease = world.accepted().id
    watch.on_failure([lease], "ValueError: absurd")
    assert watch.view().set_aside == []
    watch.on_failure([lease], "ValueError: absurd")
    assert watch.view().reasons == {"ValueError: absurd": 1}
    assert world.group_service.database.all("SELECT lease FROM set_aside") == [(lease,)]
    world.reopen()
    assert watch_of(world, []).view().reasons == {"ValueError: absurd": 1}


def test_three_such_batches_pause_the_run_until_the_time_is_over(
    watch: Watch, world: World, resumed: list[str]
) -> None:
    for _ in range(3):
        assert not world.group_service.paused
        fail_twice(watch, world)
    assert world.group_service.paused
    paused = watch.view().paused
    assert paused is not None
    assert (paused.kind, paused.until) == ("batches", world.now + FIRST_PAUSE_MS)
    world.now += FIRST_PAUSE_MS
    watch.look()
    assert not world.group_service.paused
    assert resumed == ["resumed"]


def test_a_pause_survives_a_restart_and_ends_by_resume(watch: Watch, world: World) -> None:
    watch.stop("moving house")
    world.reopen()
    resumed: list[str] = []
    later = watch_of(world, resumed)
    assert world.group_service.paused
    assert later.view().paused is not None
    assert later.resume()
    assert not later.resume()
    assert not world.group_service.paused
    assert resumed == ["resumed"]


def test_a_wait_for_groups_is_explained_after_a_minute(watch: Watch, world: World) -> None:
    watch.waits()
    assert watch.view().waiting == ""
    world.now += 60_000
    watch.waits()
    assert "0 of 2 groups of the next batch are ready" in watch.view().waiting
    watch.on_draw()
    assert watch.view().waiting == ""
