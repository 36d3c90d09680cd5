"""Waiting groups by version and party: the cost of a query does not grow with their number."""

import contextlib
import hashlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.verdicts.scoring_order import PendingVersion
from echo2.coordinator.verdicts.waiting_groups import PER_OBJECT, PER_TOKEN, DecodedGroups, Undecided, Visit
from echo2.coordinator.verification import submitted_group
from echo2.coordinator.verification.submitted_group import decode_group
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease
from tests.support.group_world import SPEC, T0, World, group, honest_scores, name, root_of
from tests.support.sqlite_cost import instructions


def key(number: int) -> bytes:
    return hashlib.sha256(b"node %d" % number).digest()


def received(world: World, party: str, version: int = 0, node: bytes = key(0)) -> bytes:
    """Submit a group over a connection of `party`; return its lease."""
    lease = world.lease(node, version, Origin(party, party))
    world.submit(group(lease), node)
    return lease.id


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, batch_groups=100_000, per_node=100_000)
    return world


def taken(visit: Visit) -> Iterator[Undecided]:
    while (one := visit.take()) is not None:
        yield one


def test_a_group_is_taken_once_a_visit_and_again_by_the_next_until_it_is_decided(world: World) -> None:
    leases = [received(world, party) for party in ("a", "a", "b")]
    (under,) = world.group_service.waiting()
    visit = world.group_service.visit(under)
    first = visit.take()
    late = received(world, "a")
    assert first is not None
    assert {one.lease.id for one in taken(visit)} == {*leases, late} - {first.lease.id}
    assert visit.take() is None
    assert {one.lease.id for one in taken(world.group_service.visit(under))} == {*leases, late}
    world.decide(first, honest_scores(first.submission))
    assert {one.lease.id for one in taken(world.group_service.visit(under))} == {*leases, late} - {first.lease.id}
    world.decide_all()
    assert world.group_service.waiting() == []
    assert world.group_service.visit(under).take() is None


def test_a_pending_version_states_since_when_its_oldest_group_waits(world: World) -> None:
    world.learner_at(1)
    for version, party in ((1, "b"), (0, "z"), (1, "a")):
        received(world, party, version)
    assert world.group_service.waiting() == [PendingVersion(1, 0, T0 + 20), PendingVersion(1, 1, T0 + 10)]
    assert [one.lease.version for one in world.group_service.list_undecided()] == [0, 1, 1]
    prompt = world.group_service.list_undecided(1)[0].lease.prompt
    assert world.group_service.database.all("SELECT DISTINCT tokens FROM undecided") == [(len(prompt) + 8,)]


def test_waiting_groups_are_there_after_a_restart(world: World) -> None:
    leases = {received(world, party) for party in ("a", "b")}
    world.reopen()
    (under,) = world.group_service.waiting()
    assert {one.lease.id for one in taken(world.group_service.visit(under))} == leases


def look(world: World) -> object:
    """Make the scorer's queries: the versions, and the next two groups of a visit."""
    visit = world.group_service.visit(world.group_service.waiting()[0])
    return visit.take(), visit.take()


@pytest.mark.slow
def test_a_query_of_waiting_groups_costs_no_more_beside_a_thousand_groups(world: World) -> None:
    """On 439044d a join over all waiting groups, and a sort, answer these queries."""
    for number in range(4):
        received(world, f"party {number}", node=key(number))
    before = instructions(world.group_service.database, lambda: look(world))
    for number in range(1_000):
        received(world, f"party {number % 50}", node=key(number))
    after = instructions(world.group_service.database, lambda: look(world))
    assert after <= 1.5 * before + 20, f"{10 * before} instructions beside 4 groups, {10 * after} beside 1,004"


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Collect the submissions that the main process decodes, in order."""
    seen = list[bytes]()

    def counting(data: bytes, type_: type[object]) -> object:
        seen.append(data)
        return decode(data, type_)

    monkeypatch.setattr(submitted_group, "decode", counting)
    return seen


def test_after_a_restart_and_at_a_second_try_it_is_read_from_disk(world: World, decodes: list[bytes]) -> None:
    received(world, "a")
    (under,) = world.group_service.waiting()
    (first,) = taken(world.group_service.visit(under))
    (second,) = taken(world.group_service.visit(under))
    assert [len(decodes), bytes(second.submission.rollouts[0].packed)] == [
        2,
        bytes(first.submission.rollouts[0].packed),
    ]
    assert (second.lease, second.at, second.submission.rollouts[0].logprobs) == (
        first.lease, first.at, first.submission.rollouts[0].logprobs,
    )  # fmt: skip
    world.reopen()
    (again,) = taken(world.group_service.visit(under))
    assert (again.lease, len(decodes)) == (first.lease, 3)


def test_decoded_groups_are_bounded(world: World) -> None:
    for _ in range(3):
        received(world, "a")
    waiting = world.group_service.list_undecided()
    prompt = max(len(one.lease.prompt) for one in waiting)
    size = waiting[0].submission.nbytes + PER_TOKEN * prompt + PER_OBJECT * (1 + SPEC.group_size)
    kept = DecodedGroups(most=2 * size)
    for one in [*waiting, waiting[1]]:
        kept.put(one)
    assert (len(kept), kept.pop(waiting[0].lease.id)) == (2, None)
    assert kept.pop(waiting[1].lease.id) is waiting[1]
    assert "tokens" not in vars(waiting[1].submission.rollouts[0])
    kept.put(waiting[0])
    assert len(kept) == 2


def test_a_padded_submission_counts_with_its_padding(world: World) -> None:
    """An unknown field is ignored, and stays in memory with the packed token ids, which refer to the whole message."""
    lease = world.lease(key(0), origin=Origin("a", "a"))
    plain = encode(group(lease))
    padded = msgspec.msgpack.encode(msgspec.msgpack.decode(plain) | {"padding": bytes(100_000)})
    kept = DecodedGroups(most=100_000)
    kept.put(Undecided(lease, decode_group(plain), 0))
    assert len(kept) == 1
    kept.put(Undecided(lease, decode_group(padded), 0))
    assert len(kept) == 0


def test_small_groups_occupy_no_more_memory_than_the_bound() -> None:
    lease = Lease(
        id=name("lease", 0), node=key(0), nonce=name("nonce", 0), task="reverse", task_version=1, index=0, prompt=[],
        seeds=[name("seed", 0)] * 8, limit=24, era=0, version=0, root=root_of(0, 0), sent=0, expires=1,
    )  # fmt: skip
    submission = encode(group(lease, ["1234567"] * 8))
    most = 1 << 20
    kept = DecodedGroups(most)
    tracemalloc.start()
    try:
        for number in range(500):
            one = msgspec.structs.replace(lease, id=name("lease", number), prompt=list(range(1000, 1064)))
            kept.put(Undecided(one, decode_group(bytes(bytearray(submission))), 0))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 50 < len(kept) < 500
    assert used < 1.25 * most


def test_a_group_whose_transaction_was_taken_back_is_never_scored(world: World) -> None:
    lease = world.lease(key(0), origin=Origin("a", "a"))
    with contextlib.suppress(RuntimeError), world.group_service.database.transaction():
        world.group_service.submissions.submit(key(0), encode(group(lease, ["1", "2"])), world.now)
        raise RuntimeError
    assert world.group_service.waiting() == []
    world.group_service.submissions.submit(key(0), encode(group(lease, ["333", "444"])), world.now)
    (one,) = taken(world.group_service.visit(world.group_service.waiting()[0]))
    assert len(one.submission.rollouts[0].tokens) == 4
