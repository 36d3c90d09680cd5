"""A canary costs its node a group of work and the operator a comparison; it changes nothing for anybody else."""

import itertools
import sqlite3
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from echo2.coordinator.accounts.vesting import VESTED_AFTER
from echo2.coordinator.leases.kinds.canaries import (
    MOST_OWED,
    CanaryShare,
    KnownAnswer,
    KnownRollout,
    verdict_by_answer,
)
from echo2.coordinator.leases.kinds.canary_answers import KEPT_ANSWERS, LOOKED_AT
from echo2.coordinator.metrics.canary_counts import canary_view
from echo2.coordinator.metrics.run_metrics import counts
from echo2.coordinator.verification.verification import judge
from echo2.engines.engine import SampleScore
from echo2.ledger.ledger_entries import accrued_account
from echo2.p2p.identity import peer_id
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease
from echo2.protocol.requests import Refusal
from tests.support import sqlite_cost
from tests.support.canary_world import DAVE, ERIN, NEWCOMERS, CanaryWorld
from tests.support.group_world import ALICE, BOB, SPEC, group, honest_scores, name, opened, rollout
from tests.support.ledger_sums import check_sums
from tests.support.twin_world import HOMES


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CanaryWorld]:
    world = CanaryWorld(tmp_path)
    world.prove(BOB)
    world.answered(world.given(BOB))
    yield world
    check_sums(world.group_service.database)
    world.group_service.ledger.verify()


def facts(world: CanaryWorld, lease: Lease) -> dict[str, object]:
    entry = world.group_service.ledger.find(f"lease:{lease.id.hex()}")
    return msgspec.msgpack.decode(entry.facts)


# --- the pure core


def test_a_group_agrees_by_its_tokens_its_turns_and_its_log_probabilities(world: CanaryWorld) -> None:
    rollouts = [rollout(world.given(BOB), text) for text in ("000", "11")]
    known = [
        KnownRollout(np.asarray(one.tokens, np.int32), one.turns, np.full(len(one.tokens), -0.5, np.float32))
        for one in rollouts
    ]
    verdict = verdict_by_answer(rollouts, KnownAnswer(known, 1))
    assert (verdict.code, verdict.audited) == ("ok", "canary")
    assert (verdict.ties.sampled, verdict.ties.near_ties) == (sum(len(one.tokens) for one in rollouts), 1)
    other = msgspec.structs.replace(rollouts[1], tokens=[5, *rollouts[1].tokens[1:]])
    split = msgspec.structs.replace(rollouts[1], turns=[1, len(rollouts[1].tokens) - 1])
    far = msgspec.structs.replace(rollouts[1], logprobs=struct.pack("<3f", -0.5, -0.9, -0.5))
    for wrong in ([rollouts[0], other], [rollouts[0], split], [rollouts[0], far], rollouts[:1], rollouts[::-1]):
        assert verdict_by_answer(wrong, KnownAnswer(known, 0)) is None


def test_a_draw_without_an_answer_is_kept_within_a_bound() -> None:
    share = CanaryShare(0.5)
    low, high = bytes(4), b"\xff" * 4
    assert not share.draw(high)
    assert all(share.draw(low) for _ in range(20))
    for _ in range(MOST_OWED):
        assert share.draw(high)
        share.on_grant()
    assert not share.draw(high)
    assert not CanaryShare(0.0).draw(low)


# --- a newcomer


def test_a_newcomers_first_lease_is_a_canary_and_its_second_is_not(world: CanaryWorld) -> None:
    first = world.joins(DAVE)
    assert world.kind(first) == "canary"
    answer = world.ask_for(DAVE, home=NEWCOMERS[DAVE])
    assert answer.code == "too-many-leases"
    world.submit(group(first), DAVE)
    assert isinstance(world.ask_for(DAVE, home=NEWCOMERS[DAVE]), Refusal)
    (receipt,) = world.decide_all()
    assert (receipt.verdict, receipt.code, receipt.trainable) == ("accepted", "canary", False)
    assert world.scored.count(first.id) == 0
    assert world.kind(world.joins(DAVE)) == ""


def test_no_field_of_a_canary_tells_that_it_is_one(world: CanaryWorld) -> None:
    canary = world.joins(DAVE)
    world.answered(canary)
    sent, lasts = world.now, canary.expires - canary.sent
    other = world.joins(DAVE)
    assert (other.sent, other.expires - other.sent) == (sent, lasts)
    fields = [set(msgspec.json.decode(msgspec.json.encode(one))) for one in (canary, other)]
    assert fields[0] == fields[1]
    same = ("node", "task", "task_version", "limit", "era", "version", "root", "calibration",
            "ranges_asked", "at_once")  # fmt: skip
    assert [getattr(canary, one) for one in same] == [getattr(other, one) for one in same]
    assert [len(one) for one in canary.seeds] == [len(one) for one in other.seeds]
    assert abs(len(encode(canary)) - len(encode(other))) < 16  # prompts differ


def test_until_it_is_decided_a_canary_is_answered_like_any_other_lease(world: CanaryWorld) -> None:
    canary, other = world.joins(DAVE), world.given(BOB)
    answers = [world.submit(group(lease), lease.node) for lease in (canary, other)]
    assert all(answers)
    assert len(answers[0]) == len(answers[1])


def test_a_canary_that_agreed_is_stated_in_the_ledger_and_its_pay_vests_after_ten_further_groups(
    world: CanaryWorld,
) -> None:
    canary = world.joins(DAVE)
    weight, dave = world.answered(canary).weight, peer_id(DAVE)
    assert facts(world, canary)["audited"] == "canary"
    assert facts(world, canary)["rules"] == 3
    assert world.unvested(dave) == weight > 0
    earned = 0
    for _ in range(VESTED_AFTER):
        assert (world.unvested(dave), world.group_service.ledger.balance(accrued_account(dave))) == (weight, earned)
        other = world.joins(DAVE)
        earned += world.answered(other).weight
        world.learn()
        assert facts(world, other)["audited"] == "exact"
    assert (world.unvested(dave), world.group_service.ledger.balance(accrued_account(dave))) == (0, earned + weight)
    assert world.group_service.database.value("SELECT count(*) FROM unvested") == 0
    entry = world.group_service.ledger.find(f"vested:{canary.id.hex()}")
    assert entry.kind == "canary.vested"


def test_a_canary_whose_pay_is_held_is_not_reversed_since_it_would_be_paid_all_the_same(world: CanaryWorld) -> None:
    lease = world.joins(DAVE)
    assert world.kind(lease) == "canary"
    world.answered(lease)
    held = world.unvested(peer_id(DAVE))
    assert held > 0
    with pytest.raises(LookupError, match="its pay is held until 10 further groups"):
        world.group_service.reverse(lease.id, "operator", "a false one", world.now)
    assert world.unvested(peer_id(DAVE)) == held


def test_a_canary_that_differs_is_scored_like_any_other_group_and_paid_alike(world: CanaryWorld) -> None:
    canary = world.joins(DAVE)
    receipt = world.answered(canary, texts=["7", "8"])  # right as well, by the scorer
    assert world.scored[-1] == canary.id
    assert (receipt.verdict, receipt.code, receipt.trainable) == ("accepted", "canary", False)
    assert facts(world, canary)["audited"] == "exact"
    assert world.unvested(peer_id(DAVE)) == receipt.weight > 0
    view = canary_view(world.group_service.database, 1, world.version)
    assert (view.given, view.agreed, view.scored, view.refused) == (1, 0, 1, 0)


def test_a_newcomer_who_returns_other_tokens_is_refused_by_the_scorer_and_gets_another_canary(
    world: CanaryWorld,
) -> None:
    world.answered(world.given(BOB))
    canary = world.joins(DAVE)
    world.submit(group(canary, texts=["9", "9"]), DAVE)
    (waiting,) = world.group_service.list_undecided()
    assert world.group_service.compare_known(waiting) is None
    wrong = [
        SampleScore(logprobs=one.logprobs, margins=[1.0] * len(one.margins))
        for one in honest_scores(group(canary, texts=["9", "9"]))
    ]
    receipt = world.decide(waiting, wrong)
    assert (receipt.verdict, receipt.code) == ("refused", "seeded-choice")
    assert world.unvested(peer_id(DAVE)) == 0
    assert canary_view(world.group_service.database, 1, world.version).refused == 1
    again = world.joins(DAVE)
    assert world.kind(again) == "canary"
    assert again.seeds != canary.seeds


def test_each_answer_is_used_once_so_two_newcomers_never_have_the_same(world: CanaryWorld) -> None:
    one, other = world.joins(DAVE), world.joins(ERIN)
    assert (world.kind(one), world.kind(other)) == ("canary", "canary")
    assert one.seeds != other.seeds
    query = "SELECT count(*) FROM buffer WHERE era = 1 AND version = ?"
    answers = world.group_service.database.value(query, (world.version,))
    kinds = [world.kind(world.joins(name("further", number, 32))) for number in range(answers)]
    assert kinds == ["canary"] * (answers - 2) + ["", ""]
    row = "SELECT randomblob(16), node, randomblob(16), position, era, version, sent, expires, state"
    query = (
        f"INSERT INTO leases (id, node, nonce, position, era, version, sent, expires, state, document, sealed, attempt,"
        f" connection, party, twin, counts) {row}, document, sealed, attempt, connection, party, twin, counts"
        " FROM leases WHERE id = ?"
    )
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        world.group_service.database.do(query, (one.id,))


def test_a_newcomer_who_hands_in_the_group_of_another_newcomer_is_scored(world: CanaryWorld) -> None:
    world.answered(world.given(BOB))
    one, other = world.joins(DAVE), world.joins(ERIN)
    answer = group(one, texts=["1", "2"])
    world.submit(answer, DAVE)
    world.submit(msgspec.structs.replace(answer, lease=other.id), ERIN)
    waiting = world.group_service.list_undecided()
    assert [world.group_service.compare_known(group) for group in waiting] == [None, None]
    world.decide_all()


def test_a_canary_answered_before_it_was_leased_is_an_unknown_lease_and_leaves_nothing(world: CanaryWorld) -> None:
    database = world.group_service.database
    tables = ("submissions", "evidence", "verdicts", "strikes", "nodes", "entries")
    before = [database.value(f"SELECT count(*) FROM {table}") for table in tables]
    known = database.value("SELECT lease FROM buffer ORDER BY at DESC LIMIT 1")
    record = world.group_service.leases.find(known)
    foreseen = msgspec.structs.replace(group(record.lease), lease=name("foreseen", 0))
    answer = world.group_service.submissions.submit(DAVE, encode(foreseen), world.now)
    assert answer.code == "unknown-lease"
    answer = world.group_service.submissions.submit(DAVE, encode(group(record.lease)), world.now)
    assert answer.code == "not-owner"
    assert [database.value(f"SELECT count(*) FROM {table}") for table in tables] == before
    assert world.answered(world.joins(DAVE)).code == "canary"


# --- nobody waits, nothing else changes


def test_without_an_answer_at_hand_a_newcomer_gets_a_normal_lease_at_once(tmp_path: Path) -> None:
    world = CanaryWorld(tmp_path)
    assert world.kind(world.joins(DAVE)) == ""


@pytest.mark.slow
def test_a_newcomer_gets_its_first_lease_exactly_when_it_would_without_canaries(tmp_path: Path) -> None:
    given = []
    for share in (0.0, 0.005):
        (tmp_path / str(share)).mkdir()
        world = CanaryWorld(tmp_path / str(share), canaries=share)
        world.prove(BOB)
        moments = []
        for number in range(40):
            if number % 3 == 0 and not isinstance(held := world.ask_for(BOB), Refusal):
                world.answered(held)
            node = name("newcomer", number, 32)
            answer = world.ask_for(node, home=Origin(node.hex(), f"10.9.{number}.0/24"))
            moments.append(isinstance(answer, Lease))
            world.now += 500
        given.append(moments)
    assert any(given[0])
    assert sum(given[1]) >= sum(given[0])
    assert all(with_canaries or not without for without, with_canaries in zip(*given, strict=True))


def test_a_canary_counts_neither_in_the_room_nor_in_the_law_nor_in_the_share_of_new_keys(world: CanaryWorld) -> None:
    service = world.group_service
    assert service.progress is not None

    def counted() -> object:
        shares = service.database.all("SELECT * FROM shares ORDER BY share, era, version")
        assert service.progress is not None
        leases = [lease for (lease,) in service.database.all("SELECT id FROM leases WHERE node = ?", (DAVE,))]
        return service.leases.load(service.progress, world.now), shares, service.leases.waiting_among(leases)

    before = counted()
    canary = world.joins(DAVE)
    assert counted() == before
    world.submit(group(canary), DAVE)
    assert counted() == before
    buffered = service.count_buffered()
    world.decide_all()
    assert counted() == before
    assert service.count_buffered() == buffered
    total = counts(service.database, world.now)
    assert (total.canaries, total.too_old) == (1, 0)


def test_no_row_of_the_buffer_can_be_a_canary(world: CanaryWorld) -> None:
    canary = world.joins(DAVE)
    query = "INSERT INTO buffer SELECT ?, era, version, at, varied, behaviour, NULL, signal FROM buffer LIMIT 1"
    with pytest.raises(sqlite3.IntegrityError, match="no place in the buffer"):
        world.group_service.database.do(query, (canary.id,))
    with pytest.raises(sqlite3.IntegrityError, match="does not count"):
        world.group_service.database.do("UPDATE leases SET counts = 1 WHERE id = ?", (canary.id,))


def test_a_canary_that_expires_returns_no_position_and_counts_in_the_budgets(world: CanaryWorld) -> None:
    database = world.group_service.database
    canary = world.joins(DAVE)
    again = database.all("SELECT * FROM again")
    world.now = canary.expires + 1
    world.group_service.tick(world.now)
    assert database.all("SELECT * FROM again") == again
    assert database.value("SELECT state FROM leases WHERE id = ?", (canary.id,)) == "expired"
    assert database.value("SELECT sum(expired) FROM budgets") >= 1
    assert world.joins(DAVE).seeds != canary.seeds  # the answer is spent


def test_an_answer_of_the_own_party_is_never_chosen(world: CanaryWorld) -> None:
    near = name("near", 0, 32)
    lease = world.given(near, home=Origin("n", HOMES[BOB].party))
    assert world.kind(lease) == ""


@pytest.mark.slow
def test_a_draw_reads_no_more_among_many_groups_of_the_own_party(tmp_path: Path) -> None:
    world = CanaryWorld(tmp_path, batch_groups=400)
    world.group_service.canaries.answers._entropy = lambda size: b"\x80" * size  # as many leases on both sides
    costs = []
    for _ in range(2):
        for _ in range(3 * LOOKED_AT):
            world.answered(world.given(BOB))
        choose = partial(world.group_service.canaries.answers.choose, BOB, HOMES[BOB], 1, world.version, world.now)
        assert choose() is None
        costs.append(sqlite_cost.instructions(world.group_service.database, choose, every=1))
    assert costs[1] <= 1.1 * costs[0]


def test_a_class_that_is_not_exact_and_a_served_task_have_no_canaries(tmp_path: Path) -> None:
    reference = msgspec.structs.replace(SPEC.tasks[0], kind="served")
    world = CanaryWorld(tmp_path, spec=msgspec.structs.replace(SPEC, tasks=[reference]))
    assert world.group_service.canaries.share.share > 0
    world.given(BOB)
    assert world.kind(world.joins(DAVE)) == ""
    assert world.group_service.wanted_answer() is None


# --- the scorer's answers, and the lot


def test_the_scorers_answer_comes_first_and_has_seeds_that_no_node_has_seen(world: CanaryWorld) -> None:
    world.joins(ERIN)
    world.given(BOB)
    world.made()
    canary = world.joins(DAVE)
    assert world.kind(canary) == "canary"
    seeds = [opened("lease", row[0], Lease).seeds for row in world.group_service.database.all(
        "SELECT sealed FROM leases WHERE sealed != x'' AND id != ?", (canary.id,))]  # fmt: skip
    assert canary.seeds not in seeds
    receipt = world.answered(canary)
    assert (receipt.code, receipt.trainable) == ("canary", False)
    assert facts(world, canary)["audited"] == "canary"
    view = canary_view(world.group_service.database, 1, world.version)
    assert (view.of_scorer, view.of_proven, view.agreed) == (1, 1, 1)
    assert view.largest_share == 1.0


def test_an_answer_whose_earlier_lease_became_a_canary_meanwhile_keeps_no_newcomer_waiting(world: CanaryWorld) -> None:
    """The scorer makes an answer for the prompt of a lease, and while it does so the lease's own group is given as a
    canary: both are of one position, and a set of twins has one canary."""
    service = world.group_service
    service.canaries.answers._wanted = 1  # as after a newcomer under a version without answers
    in_buffer = "SELECT l.position FROM buffer b JOIN leases l ON l.id = b.lease WHERE b.version = ?"
    answers = [position for (position,) in service.database.all(in_buffer, (world.version,))]
    while (wanted := service.wanted_answer()) is None or wanted.position not in answers:
        pass

    def positions(count: int) -> list[int]:
        leases = [world.joins(name("newcomer", next(numbers), 32)) for _ in range(count)]
        query = "SELECT position FROM leases WHERE id = ?"
        return [service.database.value(query, (lease.id,)) for lease in leases]

    numbers = itertools.count()
    assert wanted.position in positions(len(answers))
    world.made_of(wanted)
    assert wanted.position not in positions(2)


def test_answers_of_the_scorer_are_few_and_go_when_they_are_of_no_use(world: CanaryWorld) -> None:
    for number in range(6):
        world.joins(name("newcomer", number, 32))
        world.given(BOB)
    for _ in range(KEPT_ANSWERS):
        world.made()
    assert world.group_service.wanted_answer() is None
    rows = "SELECT count(*) FROM canary_answers"
    assert world.group_service.database.value(rows) == KEPT_ANSWERS
    world.group_service.forget([], world.version + 10, 1, world.now)
    assert world.group_service.database.value(rows) == 0


@pytest.mark.slow
def test_later_every_node_gets_its_share_of_canaries_from_others(tmp_path: Path) -> None:
    world = CanaryWorld(tmp_path, canaries=0.05)
    world.prove(ALICE, BOB)
    for _ in range(300):
        for node in (ALICE, BOB):
            world.answered(world.given(node))
        world.learn()
    kinds = dict(world.group_service.database.all("SELECT twin, count(*) FROM leases GROUP BY twin"))
    owners = [
        node for (node,) in world.group_service.database.all("SELECT DISTINCT node FROM leases WHERE twin = 'canary'")
    ]
    assert sorted(owners) == sorted([ALICE, BOB])
    assert 0.02 < kinds["canary"] / sum(kinds.values()) < 0.09
    check_sums(world.group_service.database)


# --- a crash between lease and verdict


@pytest.mark.parametrize("by_scorer", [False, True])
def test_a_coordinator_that_is_killed_between_lease_and_verdict_still_compares(
    world: CanaryWorld, by_scorer: bool
) -> None:
    if by_scorer:
        world.joins(ERIN)
        world.given(BOB)
        world.made()
    canary = world.joins(DAVE)
    drawn = list(world.drawn)
    world.reopen(away=1_000, drawn=drawn)
    world.submit(group(canary), DAVE)
    world.reopen(away=1_000, drawn=drawn)
    receipts = {one.lease: one for one in world.decide_all()}
    assert receipts[canary.id].code == "canary"
    assert facts(world, canary)["audited"] == "canary"
    assert canary.id not in world.scored


def test_a_canary_whose_answer_is_no_longer_stored_is_scored(world: CanaryWorld) -> None:
    canary = world.joins(DAVE)
    world.group_service.database.do("UPDATE submissions SET payload = NULL WHERE lease IN (SELECT lease FROM buffer)")
    assert world.answered(canary).code == "canary"
    assert world.scored[-1] == canary.id
    assert judge(group(canary).rollouts, honest_scores(group(canary))).accepted
