"""Requests for leases: the leases that answer them, the refusals, and the room."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.leases.lease_terms import InFlight, LeaseTerms, Progress, free_slots
from echo2.protocol.leases import Lease
from echo2.tasks.guess import Guess
from tests.support.group_world import ALICE, BOB, SPEC, World, group, opened

TERMS = LeaseTerms(staleness=2, batch_groups=4, group_size=2, limit=8, engines=["transformers/float32"])


def test_a_lease_binds_the_version_that_the_node_holds(world: World) -> None:
    world.learner_at(1)
    lease = world.lease(version=0)
    assert (lease.version, lease.node, lease.sent, len(lease.seeds)) == (0, ALICE, world.now, 2)
    assert len(set(lease.seeds)) == 2
    assert world.lease(version=1).version == 1


def test_the_same_request_gets_the_same_lease_again_even_after_a_restart(world: World) -> None:
    ask = world.ask()
    first = world.group_service.lease(ALICE, ask, world.now)
    world.reopen(away=5)
    assert world.group_service.lease(ALICE, ask, world.now) == first
    assert world.group_service.lease(BOB, ask, world.now) != first


def test_more_groups_than_prompts_wrap_with_fresh_seeds(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=1000, task=Three())
    leases = [world.lease() for _ in range(9)]
    turns = [{lease.index for lease in leases[n : n + 3]} for n in (0, 3, 6)]
    assert turns == [{0, 1, 2}] * 3
    assert len({seed for lease in leases for seed in lease.seeds}) == 18


class Three(Guess):
    """A task of three prompts."""

    def size(self, split: str) -> int:
        return 3


REFUSED: dict[str, tuple[Callable[[World], None], dict[str, object], str, str]] = {
    "weights that nobody published": (lambda w: None, {"root": bytes(32)}, "wrong-version", "hold version 0"),
    "a version to come": (lambda w: None, {"version": 7}, "wrong-version", "hold version 0"),
    "a version of another era": (lambda w: w.publish(0, 0), {"era": 0}, "wrong-version", "hold version 0"),
    "a version too old to come back in time": (lambda w: w.learner_at(3), {}, "stale-version", "hold version 3"),
    "an engine of another class": (lambda w: None, {"engine": "llamacpp/q4/cpu"}, "engine", "transformers/float32"),
    "an engine whose name only begins like one": (
        lambda w: None,
        {"engine": "transformers/float32x/cpu"},
        "engine",
        "",
    ),
    "a run that is finished": (lambda w: stand(w, finished=True), {}, "finished", "finished"),
    "a run that is paused": (lambda w: stand(w, paused=True), {}, "paused", "paused"),
    "a learner that has not started": (
        lambda w: setattr(w.group_service, "progress", None),
        {},
        "not-ready",
        "no version",
    ),
}


def stand(world: World, **changes: bool) -> None:
    assert world.group_service.progress is not None
    world.group_service.progress = msgspec.structs.replace(world.group_service.progress, **changes)


@pytest.mark.parametrize(("prepare", "asked", "code", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_no_lease_for(
    world: World, prepare: Callable[[World], None], asked: dict[str, object], code: str, said: str
) -> None:
    prepare(world)
    answer = world.refusal(**asked)  # type: ignore[arg-type]
    assert answer.code == code
    assert said in answer.sentence
    assert (answer.retry_after is None) == (code in ("engine", "finished"))


def test_a_node_holds_a_bounded_number_of_leases(tmp_path: Path) -> None:
    world = World(tmp_path, per_node=2)
    first = world.lease()
    world.lease()
    assert world.refusal().code == "too-many-leases"
    world.lease(BOB)
    world.submit(group(first))
    world.lease()


def test_leases_stop_when_no_more_groups_can_be_used_and_go_on_when_the_learner_moves(world: World) -> None:
    given = [world.lease() for _ in range(6)]
    assert world.refusal().code == "no-room"
    for lease in given[:4]:
        world.submit(group(lease))
    assert world.refusal().code == "no-room"
    world.decide_all()
    assert world.refusal().code == "no-room"
    assert world.group_service.draw(world.now) is not None
    world.learner_at(1)
    assert world.refusal(0).code == "newer-version"
    assert "hold version 1" in world.refusal(0).sentence
    assert [world.lease(version=1).version for _ in range(2)] == [1, 1]
    assert world.refusal(1).code == "no-room"


@pytest.mark.parametrize(
    ("step", "version", "buffered", "load", "left"),
    [
        (5, 5, 0, InFlight(0, 0), 12),
        (5, 4, 0, InFlight(0, 0), 8),
        (5, 3, 0, InFlight(0, 0), 4),
        (5, 5, 4, InFlight(3, 2), 3),
        (5, 3, 4, InFlight(3, 2), -5),
    ],
)
def test_free_slots_follow_the_formula(step: int, version: int, buffered: int, load: InFlight, left: int) -> None:
    progress = Progress(era=1, step=step, version=step, root=bytes(32))
    assert free_slots(progress, TERMS, version, buffered, load) == left


def test_sequential_mode_has_room_for_one_batch_under_the_newest_version_alone(tmp_path: Path) -> None:
    world = World(tmp_path, spec=msgspec.structs.replace(SPEC, staleness=0))
    for _ in range(2):
        world.submit(group(world.lease()))
    assert world.refusal().code == "no-room"
    world.decide_all()
    assert world.group_service.draw(world.now) is not None
    world.learner_at(1)
    assert world.refusal(0).code == "stale-version"
    world.lease(version=1)


def test_a_lease_is_signed_by_the_channel_key(world: World) -> None:
    answer = world.group_service.lease(ALICE, world.ask(), world.now)
    assert opened("lease", answer, Lease).node == ALICE
