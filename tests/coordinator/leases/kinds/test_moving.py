"""Groups that a lost node has begun are finished by another one, and both are paid what one would have been."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echo2.coordinator.accounts.strikes import ENOUGH
from echo2.coordinator.leases.delivery_record import read_delivery_record
from echo2.coordinator.leases.kinds.moving import (
    REPORT_EVERY,
    WAIT,
    LeaseFacts,
    SampleProgress,
    continues,
    is_in_time,
    is_worth_moving,
    progress_after,
)
from echo2.coordinator.verification.verification import judge
from echo2.engines.engine import SampleScore
from echo2.ledger.ledger_facts import BegunOutcome
from echo2.p2p.identity import peer_id
from echo2.p2p.wire_types import encode
from echo2.protocol.group_weights import GroupLengths, begun_weight, group_weight, rollout_points, whole_weight
from echo2.protocol.leases import Lease, Receipt
from echo2.protocol.partial_groups import PartialRequest, PartialResponse, PartialSample
from echo2.protocol.requests import Refusal
from echo2.tasks.tokenizer import EOS
from tests.support.costs import COSTS
from tests.support.group_world import ALICE, BOB, HELLO, TEXT, group, name, opened
from tests.support.ledger_sums import check_sums
from tests.support.moving_world import KNOWN, LEAST_BETWEEN, MovingWorld, part
from tests.support.sqlite_cost import instructions
from tests.support.twin_world import CAROL

SIX, FIVE = TEXT.encode("123456"), TEXT.encode("23456")
FACTS = LeaseFacts(samples=2, limit=8, vocabulary=40, ends=(EOS,))
NEW = name("dora", 0, 32)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MovingWorld]:
    world = MovingWorld(tmp_path)
    world.prove(ALICE, BOB, CAROL, groups=KNOWN)
    yield world
    check_sums(world.group_service.database)
    world.group_service.ledger.verify()
    world.close()


def finished(world: MovingWorld, node: bytes, **changes: Any) -> Lease:
    """Give a node the lease that goes on behind a lost one."""
    lease = world.given(node, **changes)
    assert lease.begun, "it is a lease of a new prompt"
    return lease


def entries(world: MovingWorld, kind: str) -> list[BegunOutcome]:
    return [
        msgspec.msgpack.decode(entry.facts, type=BegunOutcome)
        for entry in world.group_service.ledger.entries() if entry.kind == kind
    ]  # fmt: skip


# --- the pure rules


def test_a_report_continues_where_the_last_one_ended_and_a_sample_without_new_tokens_is_free() -> None:
    before = [SampleProgress(3), SampleProgress(8, ended=True)]
    assert continues(before, [part([1], first=3), part([], first=0)])
    assert not continues(before, [part([1], first=2), part([], first=8)])
    assert not continues(before, [part([1], first=3), part([1], first=7)])


def test_progress_ends_a_sample_at_its_end_token_or_at_the_limit() -> None:
    after = progress_after([SampleProgress(3), SampleProgress(6)], [part([7, EOS]), part([7, 7])], FACTS)
    assert after == [SampleProgress(5, ended=True), SampleProgress(8, ended=True)]
    after = progress_after([SampleProgress(3), SampleProgress(6)], [part([7]), part([])], FACTS)
    assert after == [SampleProgress(4), SampleProgress(6)]


WRONG_REPORTS = {
    "tokens behind an end": (SampleProgress(3, ended=True), part([7])),
    "more than the limit": (SampleProgress(7), part([7, 7])),
    "a token outside the vocabulary": (SampleProgress(), part([40])),
    "an end inside": (SampleProgress(), part([EOS, 7])),
    "too few log-probabilities": (SampleProgress(), msgspec.structs.replace(part([7, 7]), logprobs=b"\0" * 4)),
    "a log-probability above 0": (SampleProgress(), msgspec.structs.replace(part([7]), logprobs=b"\0\0\x80\x3f")),
    "a log-probability that is none": (SampleProgress(), msgspec.structs.replace(part([7]), logprobs=b"\0\0\xc0\x7f")),
}


@pytest.mark.parametrize("what", WRONG_REPORTS)
def test_the_form_of_a_report_is_refused(what: str) -> None:
    before, wrong = WRONG_REPORTS[what]
    fault = progress_after([SampleProgress(), before], [part([7]), wrong], FACTS)
    assert isinstance(fault, str)
    assert fault.startswith("sample 1: ")


def test_a_lease_is_worth_moving_with_as_many_tokens_as_its_prompts_have_and_one_step_to_spare() -> None:
    assert is_worth_moving(tokens=80, prompt=10, samples=8)
    assert not is_worth_moving(tokens=79, prompt=10, samples=8)
    assert not is_worth_moving(tokens=0, prompt=0, samples=8)
    assert is_in_time(version=10, step=13, staleness=4)
    assert not is_in_time(version=10, step=14, staleness=4)


@pytest.mark.parametrize("prompt", [1, 5, 63, 4_000])
def test_both_nodes_together_earn_what_one_would_have_and_a_long_prompt_is_not_earned_by_a_few_tokens(
    prompt: int,
) -> None:
    whole, begun = [[120], [1], [8_192]], [60, 1, 0]
    for costs in (None, COSTS, msgspec.structs.replace(COSTS, attention=0)):
        first = begun_weight(costs, prompt, begun)
        second = group_weight(costs, GroupLengths(prompt, whole, begun))
        assert first + second == whole_weight(costs, prompt, whole)
        assert second >= whole_weight(costs, prompt, [[] for _ in whole])
        if costs is None or not costs.attention:
            assert 0 <= first <= whole_weight(costs, 0, [[61]]) + 2


# --- the life of a moved lease


def test_a_lost_group_is_finished_by_another_node_and_both_are_paid(world: MovingWorld) -> None:
    service = world.group_service
    balance = dict(service.ledger.balances())
    lost = world.lost(ALICE, SIX, FIVE)
    assert lost.report_every == REPORT_EVERY
    assert world.group_service.leases.begun.waiting() == [], "the tokens are scored first"
    world.verify()
    lease = finished(world, BOB)
    assert (lease.seeds, lease.prompt, lease.index) == (lost.seeds, lost.prompt, lost.index)
    assert (lease.version, lease.root, lease.begun) == (lost.version, lost.root, [SIX, FIVE])
    assert lease.report_every is None, "a set is moved once"
    world.submit(world.finish(lease), BOB)
    receipt = opened("receipt", world.decide_whole(), Receipt)
    assert (receipt.verdict, receipt.code, receipt.trainable) == ("accepted", "ok", True)
    (paid,) = entries(world, "begun.paid")
    assert (paid.node, paid.code, paid.tokens) == (peer_id(ALICE), "moved", [6, 5])
    assert paid.weight + receipt.weight == 2 * rollout_points(5 + 8)
    after = service.ledger.balances()
    assert after[f"node:{peer_id(ALICE)}:accrued"] - balance[f"node:{peer_id(ALICE)}:accrued"] == paid.weight
    learned = service.database.all("SELECT lease FROM buffer WHERE lease = ?", (lease.id,))
    assert learned == [(lease.id,)]
    (end,) = [one for one in service.ledger.entries() if one.key == f"lease:{lost.id.hex()}"]
    assert msgspec.msgpack.decode(end.facts)["code"] == "moved"
    assert service.strikes.of(ALICE) == 0


def test_a_lost_group_waits_for_a_node_that_brings_it_in_time_while_too_much_comes_too_late(world: MovingWorld) -> None:
    leases = world.group_service.leases
    world.lost(ALICE, SIX, FIVE)
    world.verify()
    leases.timely.most = Fraction(1, 10)
    leases.timely.turn_over()
    leases.timely.note(1, late=True)
    leases.timely.turn_over()
    leases.window.last.steps = [1.0] * 4  # shorter than any turnaround
    refused = world.ask_for(BOB)
    assert isinstance(refused, Refusal)
    assert refused.code == "later"
    assert len(leases.begun.waiting()) == 1
    leases.window.last.steps = [600_000.0] * 4
    assert finished(world, BOB).begun == [SIX, FIVE]


def test_a_node_that_finishes_what_its_owner_has_computed_is_not_quick_by_it(world: MovingWorld) -> None:
    database = world.group_service.database
    record = read_delivery_record(database, BOB)
    for _ in range(3):
        world.lost(ALICE, SIX, FIVE)
        world.verify()
        world.submit(world.finish(finished(world, BOB)), BOB)
        world.decide_whole()
        world.now += 3_600_000
    assert read_delivery_record(database, BOB) == record


def test_the_page_counts_moved_leases_and_their_tokens(world: MovingWorld) -> None:
    world.group_service.registry.register(ALICE, HELLO, None, world.now)
    world.lost(ALICE, SIX, FIVE)
    world.verify()
    lease = finished(world, BOB)
    world.submit(world.finish(lease), BOB)
    world.decide_whole()
    counted = world.counts()
    assert (counted.moved, counted.moved_tokens, counted.finished_tokens) == (1, 11, 11)
    row = next(one for one in world.rows() if one.id == peer_id(ALICE))
    assert row.points == row.weight, "a moved lease's pay counts in the ranking"


def test_a_lease_that_its_node_gives_back_goes_on_and_the_same_node_may_finish_it(world: MovingWorld) -> None:
    lease = world.reported(ALICE, SIX, FIVE)
    world.group_service.verdicts.end_early([lease.id], "declined", world.now)
    world.verify()
    assert finished(world, ALICE).seeds == lease.seeds


NOT_MOVED = {
    "too few tokens": ("few", {}),
    "a version that is too old one step later": ("old", {}),
    "the setting is off": ("off", {"move": False}),
}


@pytest.mark.parametrize("what", NOT_MOVED)
def test_a_lost_lease_is_not_moved_with(world: MovingWorld, what: str) -> None:
    kind, _ = NOT_MOVED[what]
    lease = world.reported(ALICE, SIX[:4] if kind == "few" else SIX, FIVE)
    if kind == "old":
        world.learner_at(world.version + 2)
    if kind == "off":
        world.group_service.leases.terms = msgspec.structs.replace(world.group_service.leases.terms, move=False)
    world.expire(lease)
    assert world.group_service.undecided(10) == []
    assert world.group_service.database.all("SELECT * FROM begun_tokens") == []
    assert world.group_service.database.value("SELECT count(*) FROM again") == 1


def test_no_reports_are_asked_of_new_keys_other_classes_old_nodes_and_held_out_leases(world: MovingWorld) -> None:
    assert world.given(ALICE).report_every == REPORT_EVERY
    assert world.given(ALICE, begun=False).report_every is None
    assert world.given(NEW, home=world.home(NEW)).report_every is None


def test_a_new_key_and_a_node_that_cannot_go_on_get_no_begun_group(world: MovingWorld) -> None:
    world.lost(ALICE, SIX, FIVE)
    world.verify()
    assert not world.given(NEW, home=world.home(NEW)).begun
    assert not world.given(BOB, begun=False).begun
    assert world.given(BOB).begun


def test_without_a_taker_the_position_is_leased_anew_with_other_seeds(world: MovingWorld) -> None:
    lost = world.lost(ALICE, SIX, FIVE)
    world.verify()
    world.now += WAIT
    world.group_service.tick(world.now)
    assert world.group_service.database.value("SELECT count(*) FROM again") == 1
    world.now += 2 * WAIT
    again = world.given(BOB)
    assert (again.index, again.begun) == (lost.index, [])
    assert again.seeds != lost.seeds


def test_a_finisher_that_is_lost_too_returns_the_position_and_pays_the_first_node_all_the_same(
    world: MovingWorld,
) -> None:
    world.lost(ALICE, SIX, FIVE)
    world.verify()
    lease = finished(world, BOB)
    world.expire(lease)
    assert world.group_service.undecided(10) == []
    assert world.group_service.database.value("SELECT count(*) FROM again") == 1
    assert len(entries(world, "begun.paid")) == 1


def test_false_tokens_are_the_first_nodes_fault_and_the_prompt_goes_out_whole(world: MovingWorld) -> None:
    lost = world.lost(ALICE, SIX, FIVE)
    wrong = [
        SampleScore(logprobs=[-0.5] * 6, margins=[0.0] * 5 + [1.0]),
        SampleScore(logprobs=[-0.5] * 5, margins=[0.0] * 5),
    ]
    world.verify(wrong)
    assert world.group_service.strikes.of(ALICE) == 1
    (refused,) = entries(world, "begun.refused")
    assert (refused.code, refused.weight) == ("seeded-choice", 0)
    assert entries(world, "begun.paid") == []
    assert world.group_service.accounts.account(ALICE).wrong > 0, "it costs the rank of proven"
    assert world.group_service.database.all("SELECT * FROM begun_tokens") == []
    assert not world.given(BOB).begun
    assert world.group_service.database.one("SELECT 1 FROM leases WHERE id = ?", (lost.id,)) is not None


def test_a_finisher_is_not_judged_by_what_it_was_given(world: MovingWorld) -> None:
    world.lost(ALICE, SIX, FIVE)
    world.verify()
    lease = finished(world, BOB)
    submission = world.finish(lease)
    world.submit(submission, BOB)
    (waiting,) = world.group_service.undecided(10)
    scores = [
        SampleScore(logprobs=[-9.0] * given + [-0.5] * (8 - given), margins=[1.0] * given + [0.0] * (8 - given))
        for given in map(len, lease.begun)
    ]
    verdict = judge(waiting.submission.rollouts, scores, begun=lease.begun)
    assert verdict.accepted
    assert verdict.ties is not None
    assert verdict.ties.sampled == 16 - 11
    scores[1].margins[7] = 1.0  # type: ignore[index]
    assert judge(waiting.submission.rollouts, scores, begun=lease.begun).code == "seeded-choice"
    assert "token 7" in judge(waiting.submission.rollouts, scores, begun=lease.begun).reason
    world.group_service.decide(waiting, verdict, world.now)


def test_a_finisher_that_changes_what_it_was_given_is_refused(world: MovingWorld) -> None:
    world.lost(ALICE, SIX, FIVE)
    world.verify()
    lease = finished(world, BOB)
    receipt = world.refused(group(lease, ["654321", "23456"]), BOB)
    assert receipt.code == "begun"
    assert world.group_service.strikes.of(BOB) == 1


def test_a_sample_that_has_ended_is_given_whole_and_nothing_of_it_is_judged(world: MovingWorld) -> None:
    lost = world.lost(ALICE, [*SIX, EOS], FIVE)
    world.verify()
    lease = finished(world, BOB)
    assert lease.begun == [[*SIX, EOS], FIVE]
    submission = world.finish(lease)
    whole = submission.rollouts[0]
    cut = msgspec.structs.replace(whole, tokens=whole.tokens[:7], turns=[7], logprobs=whole.logprobs[:28])
    world.submit(msgspec.structs.replace(submission, rollouts=[cut, submission.rollouts[1]]), BOB)
    receipt = opened("receipt", world.decide_whole(), Receipt)
    assert receipt.verdict == "accepted"
    (paid,) = entries(world, "begun.paid")
    assert paid.weight + receipt.weight == rollout_points(5 + 7) + rollout_points(5 + 8)
    assert lost.seeds == lease.seeds


def test_a_sample_that_has_not_begun_takes_no_part_in_the_scorers_pass(world: MovingWorld) -> None:
    lost = world.lost(ALICE, [*SIX, 7, 7], [])
    assert world.group_service.undecided(10) == []  # 8 tokens are fewer than two prompts of 5
    lost = world.reported(ALICE, TEXT.encode("12345678"), TEXT.encode("12"))
    lost_again = world.group_service.leases.begun.reported(lost.id)
    assert lost_again is not None
    assert lost_again.tokens == 10
    world.expire(lost)
    waiting = world.verify()
    assert waiting.lease.seeds == lost.seeds


def test_a_late_group_of_a_moved_lease_is_late_as_ever_and_no_strike(world: MovingWorld) -> None:
    lost = world.lost(ALICE, SIX, FIVE)
    receipt = world.refused(group(lost), ALICE)
    assert receipt.code == "late"
    world.verify()
    assert world.group_service.strikes.of(ALICE) == 0
    lease = finished(world, BOB)
    world.submit(world.finish(lease), BOB)
    world.decide_whole()
    assert len(entries(world, "begun.paid")) == 1
    world.now += 3 * 24 * 3_600_000
    while world.group_service.forget(world.drawn, world.version + 10, 1, world.now):
        pass
    assert world.group_service.database.all("SELECT * FROM begun_tokens") == []


def test_the_reports_of_other_groups_cost_a_request_and_a_tick_nothing(world: MovingWorld) -> None:
    service = world.group_service
    actions = (lambda: world.ask_for(BOB), lambda: service.tick(world.now))
    alone = [instructions(service.database, action) for action in actions]
    with service.database.transaction():
        for number in range(3_000):
            service.leases.begun.append(name("lease", number), [SampleProgress(3)], b"tokens", world.now)
    beside = [instructions(service.database, action) for action in actions]
    service.database.do("DELETE FROM begun_groups WHERE state = 'reported'")
    service.database.do("DELETE FROM begun_tokens")
    assert all(many <= 1.5 * few + 20 for few, many in zip(alone, beside, strict=True)), (alone, beside)


def test_a_group_that_comes_in_time_ends_its_reports(world: MovingWorld) -> None:
    lease = world.reported(ALICE, SIX, FIVE)
    world.submit(group(lease), ALICE)
    assert world.group_service.database.all("SELECT * FROM begun_groups") == []
    assert world.group_service.database.all("SELECT * FROM begun_tokens") == []
    world.decide_all()
    answer = world.report(lease, SIX, FIVE)
    assert isinstance(answer, Refusal)
    assert answer.code == "partial"


def test_a_moved_lease_counts_as_expired_in_its_nodes_budget(world: MovingWorld) -> None:
    before = world.group_service.database.value("SELECT coalesce(sum(expired), 0) FROM budgets")
    world.lost(ALICE, SIX, FIVE)
    world.verify()
    assert world.group_service.database.value("SELECT coalesce(sum(expired), 0) FROM budgets") == before + 1


# --- hostile reports


def test_hostile_reports_are_refused_and_write_nothing(world: MovingWorld) -> None:
    lease = world.given(ALICE)
    world.now += LEAST_BETWEEN

    def code(answer: PartialResponse | Refusal) -> str:
        assert isinstance(answer, Refusal), answer
        return answer.code

    assert code(world.report(lease, SIX, FIVE, node=BOB)) == "not-owner"
    assert code(world.report(msgspec.structs.replace(lease, id=bytes(16)), SIX, FIVE)) == "unknown-lease"
    assert code(world.report(lease, SIX)) == "partial"
    assert code(world.report(lease, [7] * 9, FIVE)) == "partial"
    assert code(world.report(lease, [9_999], FIVE)) == "partial"
    assert code(world.report(lease, [EOS, 7], FIVE)) == "partial"
    assert world.group_service.database.all("SELECT * FROM begun_tokens") == []
    assert world.report(lease, [7], [], firsts=[3, 0]) == PartialResponse(tokens=[0, 0])
    assert world.report(lease, SIX[:3], []) == PartialResponse(tokens=[3, 0])
    refused = world.report(lease, SIX[3:], FIVE, firsts=[3, 0])
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.retry_after) == ("partial-early", LEAST_BETWEEN)
    world.now += LEAST_BETWEEN
    assert world.report(lease, FIVE, FIVE) == PartialResponse(tokens=[3, 0]), "other tokens than before change nothing"
    assert world.report(lease, SIX[3:], FIVE, firsts=[3, 0]) == PartialResponse(tokens=[6, 5])
    begun = world.group_service.leases.begun.tokens(lease.id, 2)
    assert [one.tokens for one in begun] == [SIX, FIVE]
    world.now = lease.expires + 1
    assert code(world.report(lease, [7], [], firsts=[6, 5])) == "late"
    world.expire(lease)
    assert code(world.report(lease, [7], [], firsts=[6, 5])) == "late"
    world.verify()
    assert world.group_service.strikes.of(ALICE) == 0


@pytest.mark.slow
def test_ten_thousand_reports_of_a_lease_leave_one_row_and_the_most_that_it_can_keep_is_its_group(
    world: MovingWorld,
) -> None:
    lease = world.given(ALICE)
    world.now += LEAST_BETWEEN
    world.report(lease, SIX, FIVE)
    for number in range(10_000):
        answer = world.report(lease, [7 + number % 3] * 2, [], firsts=[6, 5])
        assert isinstance(answer, Refusal)
        assert answer.code == "partial-early"
    rows = world.group_service.database.all("SELECT length(payload) FROM begun_tokens")
    assert len(rows) == 1
    group_of_all = 2 * 8
    assert sum(len(one.tokens) for one in world.group_service.leases.begun.tokens(lease.id, 2)) <= group_of_all


def test_log_probabilities_without_tokens_are_refused_and_the_scorer_goes_on(world: MovingWorld) -> None:
    lease = world.given(ALICE)
    world.now += LEAST_BETWEEN
    samples = [part(SIX), PartialSample(first=0, tokens=[], logprobs=b"odd")]
    data = encode(PartialRequest(lease=lease.id, samples=samples))
    answer = world.group_service.reports.report(ALICE, data, world.now)
    assert isinstance(answer, Refusal)
    assert answer.code == "partial"
    assert world.report(lease, SIX, FIVE) == PartialResponse(tokens=[6, 5])
    world.expire(lease)
    world.verify()
    assert [entry.code for entry in entries(world, "begun.paid")] == ["moved"]


def test_bytes_of_a_report_that_are_no_tokens_are_not_kept(world: MovingWorld) -> None:
    lease = world.given(ALICE)
    world.now += LEAST_BETWEEN
    plain = PartialRequest(lease=lease.id, samples=[part(SIX), part([])])
    padded = msgspec.msgpack.encode(msgspec.to_builtins(plain, builtin_types=[bytes]) | {"padding": bytes(1 << 20)})
    assert world.group_service.reports.report(ALICE, padded, world.now) == PartialResponse(tokens=[6, 0])
    assert world.group_service.database.all("SELECT payload FROM begun_tokens") == [(encode(plain),)]


def test_a_key_that_reports_false_tokens_is_suspended_like_one_that_submits_them(world: MovingWorld) -> None:
    for _ in range(ENOUGH):
        lost = world.lost(ALICE, SIX, FIVE)
        (waiting,) = world.group_service.undecided(10)
        scores = [SampleScore(logprobs=[-0.5] * n, margins=[1.0] + [0.0] * (n - 1)) for n in (6, 5)]
        assert waiting.lease.id == lost.id
        world.verify(scores)
        world.now += 3_600_000
    assert world.group_service.accounts.of(ALICE, world.now - 3_600_000).suspended_until is not None


# --- kills


def test_a_coordinator_killed_at_each_durable_point_goes_on_and_nobody_is_paid_twice(world: MovingWorld) -> None:
    lease = world.reported(ALICE, SIX, FIVE)
    world.reopen()
    assert world.group_service.leases.begun.reported(lease.id) is not None
    world.expire(lease)
    world.reopen()
    waiting = world.verify()
    world.group_service.decide(waiting, world.verdict_of(waiting), world.now)  # a second verdict changes nothing
    world.reopen()
    assert len(entries(world, "begun.paid")) == 1
    assert world.group_service.undecided(10) == []
    request = world.ask(world.version)
    given = world.group_service.lease(BOB, request, world.now, world.home(BOB))
    world.reopen()
    again = world.group_service.lease(BOB, request, world.now, world.home(BOB))
    assert isinstance(given, bytes)
    assert isinstance(again, bytes)
    second, same = opened("lease", given, Lease), opened("lease", again, Lease)
    assert (second.id, second.begun) == (same.id, [SIX, FIVE])
    assert not world.given(CAROL).begun, "a set is moved once"
    world.submit(world.finish(second), BOB)
    world.reopen()
    world.decide_whole()
    world.reopen()
    assert world.counts().finished_tokens == 11


def test_a_coordinator_killed_while_a_moved_lease_waits_returns_its_position_later(world: MovingWorld) -> None:
    world.lost(ALICE, SIX, FIVE)
    world.verify()
    world.reopen(away=WAIT)
    world.group_service.tick(world.now)
    assert world.group_service.database.value("SELECT count(*) FROM again") == 1


def test_the_tokens_of_a_moved_lease_are_deleted_with_its_row_after_the_window(world: MovingWorld) -> None:
    lost = world.lost(ALICE, SIX, FIVE)
    world.verify()
    lease = finished(world, BOB)
    world.submit(world.finish(lease), BOB)
    world.decide_whole()
    world.now += 3 * 24 * 3_600_000
    while world.group_service.forget(world.drawn, world.version + 10, 1, world.now):
        pass
    assert world.group_service.leases.find(lost.id) is None
    assert world.group_service.database.all("SELECT * FROM begun_groups") == []
    assert world.group_service.database.all("SELECT * FROM begun_tokens") == []
    kept = world.group_service.leases.find(lease.id)
    assert kept is not None
    assert kept.lease.begun == []
