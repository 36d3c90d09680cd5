"""The answer to a submission, and its content in run.sqlite."""

import os

import msgspec
import pytest

from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Submission, VerdictsRequest
from echo2.protocol.requests import Refusal
from tests.support.group_world import ALICE, BOB, World, group, rollout
from tests.support.sqlite_cost import statements


def refused(world: World, data: bytes, node: bytes = ALICE) -> Refusal:
    answer = world.group_service.submissions.submit(node, data, world.now)
    assert answer.retry_after is None
    return answer


def test_the_same_submission_twice_is_the_same_submission(world: World) -> None:
    lease = world.lease()
    first = world.submit(group(lease))
    assert world.submit(group(lease)) == first
    world.decide_all()
    assert world.submit(group(lease)) == first
    world.now += 10**9
    assert world.submit(group(lease)) == first
    assert world.group_service.ledger.tip().entries == 2


def test_other_bytes_for_the_same_lease_are_refused_and_both_are_kept(world: World) -> None:
    lease = world.lease()
    world.submit(group(lease))
    other = encode(group(lease, ["7", "8"]))
    assert refused(world, other).code == "other-bytes"
    assert refused(world, encode(group(lease, ["9", "9"]))).code == "other-bytes"
    rows = world.group_service.database.all(
        "SELECT s.payload, s.conflicts, e.payload FROM submissions s JOIN evidence e ON e.lease = s.lease"
    )
    assert rows == [(encode(group(lease)), 2, other)]
    (receipt,) = world.decide_all()
    assert receipt.verdict == "accepted"


def test_another_key_can_neither_read_nor_change_a_lease(world: World) -> None:
    lease = world.lease(ALICE)
    bad = encode(group(lease, rollouts=[]))
    assert refused(world, bad, BOB).code == "not-owner"
    assert refused(world, encode(group(lease)), BOB).code == "not-owner"
    assert world.group_service.submissions.verdicts(
        BOB, VerdictsRequest(leases=[lease.id], confirmed=[lease.id])
    ).unknown == [lease.id]
    assert world.submit(group(lease), ALICE)
    world.decide_all()
    told = world.group_service.submissions.verdicts(BOB, VerdictsRequest(leases=[lease.id], confirmed=[lease.id]))
    assert (told.receipts, told.unknown) == ([None], [lease.id])
    assert world.group_service.database.value("SELECT confirmed FROM verdicts") == 0


LOCAL = Submission(lease=b"?" * 16, era=1, version=0, root=bytes(32), rollouts=[])
NOT_TAKEN = {
    "no bytes": (b"", "malformed"),
    "no submission": (b"\x93\x01\x02\x03", "malformed"),
    "a lease that was never given": (encode(LOCAL), "unknown-lease"),
    "more bytes than a group can have": (b"\x00" * 400_000, "too-large"),
    "a million empty maps": (b"\xdd\x00\x0f\x00\x00" + b"\x80" * 100_000, "malformed"),
}  # fmt: skip


def test_a_group_that_is_not_wanted_is_not_read(world: World) -> None:
    """The most expensive ids of 16 rollouts take 32 ms to decode. The ids here are malformed: decoding would fail."""
    lease, given = world.lease(), world.lease()
    world.submit(group(given))

    def with_ids_that_are_none(lease: bytes) -> bytes:
        data = encode(msgspec.structs.replace(LOCAL, lease=lease, rollouts=[rollout(given, "1")]))
        ids = data.index(b"\xa6tokens") + 8
        return data[:ids] + b"\xc0" + data[ids + 1 :]

    assert refused(world, with_ids_that_are_none(b"?" * 16)).code == "unknown-lease"
    assert refused(world, with_ids_that_are_none(lease.id), BOB).code == "not-owner"
    assert refused(world, with_ids_that_are_none(given.id)).code == "other-bytes"
    assert refused(world, with_ids_that_are_none(lease.id)).code == "malformed"


@pytest.mark.parametrize(("data", "code"), NOT_TAKEN.values(), ids=NOT_TAKEN.keys())
def test_not_taken_at_all(world: World, data: bytes, code: str) -> None:
    lease = world.lease()
    assert refused(world, data).code == code
    assert world.group_service.database.value("SELECT count(*) FROM submissions") == 0
    world.submit(group(lease))


def test_received_in_the_last_millisecond_is_in_time(world: World) -> None:
    lease = world.lease()
    world.now = lease.expires - 10
    assert world.submit(group(lease))
    world.now += 10**9
    world.group_service.tick(world.now)
    (receipt,) = world.decide_all()
    assert (receipt.verdict, receipt.weight) == ("accepted", 2 * 70)


def test_a_question_about_256_leases_that_are_none_is_one_statement(world: World) -> None:
    names = [os.urandom(16) for _ in range(256)]
    with statements(world.group_service.database) as run:
        answer = world.group_service.submissions.verdicts(ALICE, VerdictsRequest(leases=names))
    assert answer.unknown == names
    assert answer.receipts == [None] * 256
    assert 1 <= len(run) <= 2, f"{len(run)} statements for one request, at most 2"


def test_the_confirmation_of_256_receipts_that_are_none_is_one_statement(world: World) -> None:
    request = VerdictsRequest(leases=[], confirmed=[os.urandom(16) for _ in range(256)])
    with statements(world.group_service.database) as run:
        world.group_service.submissions.verdicts(ALICE, request)
    assert 1 <= len(run) <= 4, f"{len(run)} statements for one confirmation, at most 4"
