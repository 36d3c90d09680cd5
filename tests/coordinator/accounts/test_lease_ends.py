"""Ends of new keys' leases: one entry per minute, and receipts that are verified against it."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from echo2.coordinator.accounts.end_proofs import EndProofs
from echo2.coordinator.accounts.lease_ends import (
    ENDS_KEPT_MS,
    ENTRY_DUE_MS,
    FOR_REFUSED,
    MOST_ENDS,
    MOST_KEYS,
    OTHER_KEYS,
    sha256,
)
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.ledger.ledger_entries import Entry
from echo2.ledger.ledger_facts import LeaseCounts, LeasesEnded
from echo2.p2p.identity import peer_id
from echo2.p2p.swarm import merkle
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import VerdictsRequest
from tests.support.group_world import ALICE, BOB, World, group


def key(number: int) -> bytes:
    return hashlib.sha256(b"stranger %d" % number).digest()


def facts(entry: Entry) -> LeasesEnded:
    return msgspec.msgpack.decode(entry.facts, type=LeasesEnded)


def rows(world: World) -> list[tuple[Any, ...]]:
    return world.group_service.database.all("SELECT lease, document, entry FROM ends ORDER BY lease")


def test_the_expired_leases_of_new_keys_in_a_minute_are_one_entry(tmp_path: Path) -> None:
    """On 439044d each end has an entry of its own, which stays for ever."""
    world = World(tmp_path, batch_groups=1_000)
    for number in range(200):
        world.lease(key(number))
    world.now += 300_001
    before = world.group_service.ledger.tip().entries
    while world.group_service.tick(world.now):
        pass
    for _ in range(120):
        world.now += 1_000
        world.group_service.tick(world.now)
    assert world.group_service.database.value("SELECT count(*) FROM leases WHERE state = 'expired'") == 200
    assert world.group_service.ledger.tip().entries - before == 1


def test_the_entry_states_the_number_of_ends_per_key(world: World) -> None:
    for node, many in ((ALICE, 2), (BOB, 1)):
        for _ in range(many):
            world.refused(group(world.lease(node), rollouts=[]), node)
    world.lease(BOB)
    world.now += 300_001
    world.group_service.tick(world.now)  # now the first ones have waited for a minute
    (entry,) = world.group_service.ledger.entries()
    assert (entry.kind, entry.postings) == ("leases.ended", ())
    told = facts(entry)
    assert {one.node: (one.without_group, one.refused, one.wrong) for one in told.counts} == {
        peer_id(ALICE): (0, 2, 0),
        peer_id(BOB): (0, 1, 0),
    }
    assert told.ends == 3
    assert world.group_service.accounts.account(ALICE).groups == 2
    world.now += ENTRY_DUE_MS
    world.group_service.tick(world.now)
    _, entry = world.group_service.ledger.entries()
    assert [(one.node, one.without_group) for one in facts(entry).counts] == [(peer_id(BOB), 1)]
    world.group_service.ledger.verify()


def test_a_receipt_given_before_the_entry_holds_against_it(world: World) -> None:
    """The receipt names no entry, but the leaf of the Merkle tree in the future entry."""
    receipts = [world.refused(group(world.lease(node), rollouts=[]), node) for node in 2 * (ALICE, BOB)]
    assert {receipt.entry for receipt in receipts} == {0}
    world.now += ENTRY_DUE_MS
    world.group_service.tick(world.now)
    (entry,) = (one for one in world.group_service.ledger.entries() if one.kind == "leases.ended")
    kept = rows(world)
    assert {row[2] for row in kept} == {entry.seq}
    leaves = [document for _, document, _ in kept]
    for receipt in receipts:
        index = [row[0] for row in kept].index(receipt.lease)
        assert receipt.entry_hash == merkle.leaf_hash(leaves[index], sha256)
        proof = merkle.proof(leaves, index, sha256)
        assert merkle.verify(facts(entry).root, leaves[index], index, len(leaves), proof, sha256)
        end = msgspec.msgpack.decode(leaves[index], type=LeaseOutcome)
        assert (end.lease, end.code, end.submission_hash) == (receipt.lease, receipt.code, receipt.submission_hash)


def test_a_late_group_of_a_new_key_points_at_the_same_leaf(world: World) -> None:
    lease = world.lease()
    world.now = lease.expires + 1
    world.group_service.tick(world.now)
    world.now += ENTRY_DUE_MS
    world.group_service.tick(world.now)
    receipt = world.refused(group(lease))
    ((_, document, _),) = rows(world)
    assert (receipt.code, receipt.entry, receipt.entry_hash) == ("late", 0, merkle.leaf_hash(document, sha256))


def test_a_known_key_keeps_an_entry_for_each_lease(world: World) -> None:
    for _ in range(3):
        world.accepted(ALICE)
    receipt = world.refused(group(world.lease(), rollouts=[]))
    entry = world.group_service.ledger.find(f"lease:{receipt.lease.hex()}")
    assert (receipt.entry, receipt.entry_hash) == (entry.seq, entry.hash)
    assert rows(world) == []


def test_a_restart_forgets_no_end_and_tells_none_twice(world: World) -> None:
    first = world.refused(group(world.lease(), rollouts=[]))
    world.reopen(away=ENTRY_DUE_MS)
    world.group_service.tick(world.now)
    world.reopen(away=ENTRY_DUE_MS)
    world.group_service.tick(world.now)
    (entry,) = world.group_service.ledger.entries()
    assert facts(entry).ends == 1
    assert (
        world.group_service.submissions.verdicts(ALICE, VerdictsRequest(leases=[first.lease])).receipts[0] is not None
    )


def put(world: World, number: int, code: str = "expired") -> None:
    """End a lease of the key `number`."""
    end = LeaseOutcome(
        node=peer_id(key(number)), lease=number.to_bytes(16, "big"), era=1, version=0, sent=0, expires=0,
        received=None, code=code, rollouts=0, tokens_in=0, tokens_out=0, weight=0, trainable=False,
        submission_hash=None,
    )  # fmt: skip
    world.group_service.lease_ends.put(end.lease, msgspec.msgpack.encode(end), world.now)


def written(world: World) -> list[LeasesEnded]:
    while world.group_service.lease_ends.write_entry(world.now):
        pass
    return [facts(entry) for entry in world.group_service.ledger.entries() if entry.kind == "leases.ended"]


def test_many_ends_take_several_entries(world: World) -> None:
    with world.group_service.database.transaction():
        for number in range(MOST_ENDS + 1):
            put(world, number)
    world.now += ENTRY_DUE_MS
    assert [world.group_service.lease_ends.write_entry(world.now) for _ in range(3)] == [MOST_ENDS, 1, 0]
    assert [facts(entry).ends for entry in world.group_service.ledger.entries()] == [MOST_ENDS, 1]


def test_keys_beyond_a_thousand_a_minute_are_one_row_and_strikes_keep_theirs(world: World) -> None:
    """3,000 keys let a lease expire; one hands in false tokens, and one a group without form."""
    with world.group_service.database.transaction():
        for number in range(3_000):
            put(world, number, {1_111: "seeded-choice", 2_222: "form"}.get(number, "expired"))
    world.now += ENTRY_DUE_MS
    (told,) = written(world)
    others, *named = told.counts
    assert others == LeaseCounts(OTHER_KEYS, 2_500, 0, 0)
    assert [one.node for one in named] == sorted(one.node for one in named)
    assert len(named) == MOST_KEYS - FOR_REFUSED
    struck = {one.node: (one.refused, one.wrong) for one in named if one.refused}
    assert struck == {peer_id(key(1_111)): (1, 1), peer_id(key(2_222)): (1, 0)}
    assert told.ends == 3_000
    accounts = world.group_service.accounts
    assert accounts.account(key(1_111)).groups == accounts.account(key(2_222)).groups == 1
    assert world.group_service.database.value("SELECT count(*) FROM ends WHERE entry IS NULL") == 0
    world.group_service.ledger.verify()


def test_the_entries_of_a_minute_share_the_thousand(world: World) -> None:
    """More leases expire than an entry covers; the strike behind them keeps its row."""
    with world.group_service.database.transaction():
        for number in range(MOST_ENDS + 5):
            put(world, number, "seeded-choice" if number == MOST_ENDS + 4 else "expired")
    world.now += ENTRY_DUE_MS
    first, second = written(world)
    assert len(first.counts) == MOST_KEYS - FOR_REFUSED + 1
    assert second.counts == [LeaseCounts(OTHER_KEYS, 4, 0, 0), LeaseCounts(peer_id(key(MOST_ENDS + 4)), 0, 1, 1)]


def test_no_more_than_a_thousand_keys_have_a_row_whatever_their_groups(world: World) -> None:
    with world.group_service.database.transaction():
        for number in range(1_200):
            put(world, number, "form")
    world.now += ENTRY_DUE_MS
    (told,) = written(world)
    assert told.counts[0] == LeaseCounts(OTHER_KEYS, 0, 200, 0)
    assert len(told.counts) == MOST_KEYS + 1


def test_the_next_minute_has_a_thousand_of_its_own(world: World) -> None:
    with world.group_service.database.transaction():
        for number in range(MOST_ENDS + 5):
            put(world, number)
    world.now += ENTRY_DUE_MS
    assert len(written(world)) == 2
    put(world, MOST_ENDS + 5)
    world.now += ENTRY_DUE_MS
    assert written(world)[2].counts == [LeaseCounts(peer_id(key(MOST_ENDS + 5)), 1, 0, 0)]


def test_an_end_in_the_row_without_a_name_is_proved_by_the_root(world: World) -> None:
    with world.group_service.database.transaction():
        for number in range(MOST_KEYS + 1):
            put(world, number)
    world.now += ENTRY_DUE_MS
    (told,) = written(world)
    named = {one.node for one in told.counts}
    summed = next(number for number in range(MOST_KEYS + 1) if peer_id(key(number)) not in named)
    size = world.group_service.ledger.tip().entries
    (proof,) = EndProofs(world.group_service.database).proofs([summed.to_bytes(16, "big")], size)
    assert msgspec.msgpack.decode(proof.outcome, type=LeaseOutcome).node == peer_id(key(summed))
    assert merkle.verify(told.root, proof.outcome, proof.index, told.ends, proof.path, sha256)


def test_the_rows_of_an_entry_go_together_after_a_day_and_its_counts_stay(world: World) -> None:
    receipt = world.refused(group(world.lease(), rollouts=[]))
    expired = world.lease(BOB)
    world.now = expired.expires + 1
    world.group_service.tick(world.now)
    world.now += ENTRY_DUE_MS
    world.group_service.tick(world.now)
    assert len(rows(world)) == 2
    world.now += ENDS_KEPT_MS - 1
    world.group_service.tick(world.now)
    assert len(rows(world)) == 1, "the refused group's, told of 300 s earlier, is gone"
    world.now += 1
    world.group_service.tick(world.now)
    assert rows(world) == []
    assert sum(facts(entry).ends for entry in world.group_service.ledger.entries()) == 2
    world.group_service.ledger.verify()
    assert (
        world.group_service.submissions.verdicts(ALICE, VerdictsRequest(leases=[receipt.lease])).receipts[0] is not None
    )
    answer = world.group_service.submissions.submit(BOB, encode(group(expired)), world.now)
    assert answer.code == "unknown-lease"
