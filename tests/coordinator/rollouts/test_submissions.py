"""What a node is answered for a submission, and what the books keep of it."""

import msgspec
import pytest

from coordinator.accounts.ledger import ESCROW, FUND, accrued
from coordinator.accounts.pay import points
from coordinator.rollouts.verdicts import LeaseOutcome
from p2p.identity import peer_id
from p2p.wire_types import encode
from protocol.leases import Receipt, Submission, VerdictsRequest
from protocol.requests import Refusal
from tests.support.group_world import ALICE, BOB, RUN, World, group, honest_scores, opened, rollout


def refused(world: World, data: bytes, node: bytes = ALICE) -> Refusal:
    answer = world.group_service.submissions.submit(node, data, world.now)
    assert isinstance(answer, Refusal)
    assert answer.retry_after is None
    return answer


def test_the_same_submission_twice_is_the_same_submission(world: World) -> None:
    lease = world.lease()
    first = world.submit(group(lease))
    assert world.submit(group(lease)) == first
    world.decide_all()
    decided = world.submit(group(lease))
    assert decided.received == first.received
    assert decided.receipt is not None
    world.now += 10**9
    assert world.submit(group(lease)) == decided
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


def test_a_stranger_neither_learns_nor_damages_anything(world: World) -> None:
    lease = world.lease(ALICE)
    bad = encode(group(lease, rollouts=[]))
    assert refused(world, bad, BOB).code == "not-owner"
    assert refused(world, encode(group(lease)), BOB).code == "not-owner"
    assert world.group_service.submissions.verdicts(
        BOB, VerdictsRequest(leases=[lease.id], confirmed=[lease.id])
    ).unknown == [lease.id]
    answer = world.submit(group(lease), ALICE)
    assert answer.received is not None
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
    """The dearest ids of 16 rollouts take 32 ms to read, each time. Those here are none: a look would show it."""
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
    assert world.submit(group(lease)).received is not None
    world.now += 10**9
    world.group_service.tick(world.now)
    (receipt,) = world.decide_all()
    assert (receipt.verdict, receipt.weight) == ("accepted", 2 * 70)


@pytest.mark.parametrize("swept", [True, False])
def test_received_after_expiry_is_refused_with_a_receipt_that_names_the_expiry(world: World, swept: bool) -> None:
    world.group_service.accounts.remark(ALICE, "node.vouched", "a key that is known", world.now)
    lease = world.lease()
    world.now = lease.expires
    if swept:
        world.now += 1
        assert world.group_service.tick(world.now) == 1
    receipt = world.refused(group(lease))
    assert (receipt.code, receipt.weight) == ("late", 0)
    assert receipt.reason.startswith("Received 1")
    entry = world.group_service.ledger.find(f"lease:{lease.id.hex()}")
    assert entry is not None
    assert (entry.kind, entry.seq, entry.hash) == ("lease.expired", receipt.entry, receipt.entry_hash)
    assert world.group_service.ledger.tip().entries == 2
    assert world.group_service.undecided() == []
    assert world.group_service.tick(world.now) == 0


def test_a_lease_that_never_came_back_has_one_entry(world: World) -> None:
    world.group_service.accounts.remark(ALICE, "node.vouched", "a key that is known", world.now)
    lease = world.lease()
    world.now = lease.expires + 1
    assert [world.group_service.tick(world.now) for _ in range(3)] == [1, 0, 0]
    (entry,) = world.group_service.ledger.entries(after=1)
    end = msgspec.msgpack.decode(entry.facts, type=LeaseOutcome)
    assert (entry.kind, end.code, end.received, end.expires) == ("lease.expired", "expired", None, lease.expires)
    assert world.group_service.submissions.verdicts(ALICE, VerdictsRequest(leases=[lease.id])).unknown == [lease.id]


def test_a_receipt_says_all_that_the_node_needs_offline(world: World) -> None:
    lease = world.lease()
    world.submit(group(lease))
    world.decide_all()
    (sealed,) = world.group_service.submissions.verdicts(ALICE, VerdictsRequest(leases=[lease.id])).receipts
    assert sealed is not None
    assert len(sealed) <= 1024
    receipt = opened("receipt", sealed, Receipt)
    assert (receipt.run, receipt.node, receipt.lease, receipt.version) == (RUN, ALICE, lease.id, 0)
    assert (receipt.verdict, receipt.code, receipt.reason, receipt.trainable) == ("accepted", "ok", "", True)
    entry = world.group_service.ledger.find(f"lease:{lease.id.hex()}")
    assert entry is not None
    assert (receipt.entry, receipt.entry_hash) == (entry.seq, entry.hash)
    assert dict(entry.postings) == {ESCROW: -receipt.weight, accrued(peer_id(ALICE)): receipt.weight}
    end = msgspec.msgpack.decode(entry.facts, type=LeaseOutcome)
    assert (end.rollouts, end.tokens_in, end.tokens_out, end.weight) == (2, 2 * 5, 2 * 4, receipt.weight)


def test_a_refused_group_is_paid_nothing_and_never_drawn(world: World) -> None:
    lease = world.lease()
    world.submit(group(lease))
    (waiting,) = world.group_service.undecided()
    scores = honest_scores(waiting.submission)
    scores[1].margins[2] = 0.01
    receipt = world.decide(waiting, scores)
    assert (receipt.verdict, receipt.code, receipt.weight) == ("refused", "seeded-choice", 0)
    assert "Sample 1, sampled token 2" in receipt.reason
    assert world.group_service.buffered() == 0
    assert world.group_service.ledger.balances() == {}
    assert world.decide(waiting, honest_scores(waiting.submission)) == receipt


def test_a_group_that_nobody_can_score_is_the_operators_fault(world: World) -> None:
    world.submit(group(world.lease()))
    (waiting,) = world.group_service.undecided()
    receipt = opened("receipt", world.group_service.refuse_unscorable(waiting, world.now), Receipt)
    assert (receipt.verdict, receipt.code) == ("refused", "not-scorable")


def test_given_tokens_of_an_environment_count_as_input(world: World) -> None:
    lease = world.lease()
    long = [rollout(lease, "12345"), rollout(lease, "1")]
    world.submit(group(lease, rollouts=long))
    (receipt,) = world.decide_all()
    assert receipt.weight == points(5 + 6) + points(5 + 2)


def test_points_come_from_the_fund(world: World) -> None:
    for _ in range(3):
        world.accepted()
        world.group_service.draw()
    balances = world.group_service.ledger.balances()
    assert sum(balances.values()) == 0
    assert [account for account, amount in balances.items() if amount < 0] == [FUND]


LONG = 3_600_000
"""Milliseconds beyond the end of any lease here."""


def test_long_groups_are_forgotten_a_few_megabytes_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row A4: no hold above 50 ms. On 439044d one call forgets the tokens of all groups, however long they are."""
    leases = [world.accepted().id for _ in range(5)]
    (size,) = {len(data) for (data,) in world.group_service.database.all("SELECT payload FROM submissions")}
    monkeypatch.setattr("coordinator.rollouts.token_storage.SLICE_BYTES", 2 * size)
    forgotten = [world.group_service.tokens.forget(leases, 0, 1, 2, world.now + LONG) for _ in range(4)]
    assert forgotten == [2, 2, 1, 0]


def test_tokens_are_dropped_only_when_a_durable_checkpoint_covers_their_draw(world: World) -> None:
    first, _ = world.accepted(), world.accepted()
    world.group_service.draw()
    world.now += 1000

    def dropped(covered: list[bytes], step: int = 0) -> int:
        return world.group_service.tokens.forget(covered, step, 1, 2, world.now + LONG)

    assert dropped([]) == 0, "drawn, but by no durable checkpoint"
    assert world.group_service.tokens.forget([first.id], 0, 1, 2, world.now) == 0, "the challenge window is open"
    assert dropped([first.id]) == 1
    world.reopen(drawn=[first.id])
    assert world.group_service.buffered() == 1
    assert dropped([first.id], step=3) == 1, "the checkpoint is past its staleness limit"
    assert world.group_service.submissions.verdicts(ALICE, VerdictsRequest(leases=[first.id])).receipts[0] is not None
