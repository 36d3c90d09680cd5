"""A second node generates a group again: what agreement and difference lead to, who is asked, and what it costs."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.leases.kinds.audits import MOST_OWED, AuditDraws, DrawnLease
from echo2.coordinator.leases.lease_window import LastDraws
from echo2.coordinator.verdicts.lease_outcomes import CountedOutcome
from echo2.coordinator.verdicts.verdict_report import basis_of
from echo2.coordinator.verification.verification import judge
from echo2.engines.process.messages import float_bytes, floats
from echo2.ledger.ledger_entries import accrued_account
from echo2.p2p.identity import peer_id
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease
from echo2.protocol.requests import Refusal
from tests.support.audit_world import AuditWorld
from tests.support.canary_world import DAVE, NEWCOMERS
from tests.support.group_world import ALICE, BOB, SPEC, group, honest_scores
from tests.support.ledger_sums import check_sums
from tests.support.twin_world import CAROL, HOMES


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AuditWorld]:
    world = AuditWorld(tmp_path)
    world.prove(ALICE, BOB)
    yield world
    check_sums(world.group_service.database)
    world.group_service.ledger.verify()


def drawn(number: int, version: int = 1) -> DrawnLease:
    return DrawnLease(number.to_bytes(16), number, 0, 1, version, "p", "c")


def test_the_golden_vectors_of_a_re_run_and_of_the_last_draws(repository: Path) -> None:
    vector = json.loads((repository / "tests/vectors/audits.json").read_text())
    end = CountedOutcome(
        node="12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5", lease=bytes(range(16)), era=1, version=7,
        sent=1_000, expires=2_000, received=1_500, code="ok", rollouts=2, tokens_in=10, tokens_out=20, weight=234,
        trainable=False, submission_hash=bytes(32), rules=3, sampled=20, near_ties=1, audited="rerun",
    )  # fmt: skip
    last = LastDraws(windows=[1.5], waits=[0.25], steps=[2_000.0], draws=[3_000])
    assert {
        "lease.accepted": msgspec.msgpack.encode(end).hex(),
        "last draws": msgspec.msgpack.encode(last).hex(),
    } == vector
    assert msgspec.msgpack.decode(bytes.fromhex(vector["last draws"]), type=LastDraws) == last


# --- the draw


def test_one_lease_in_a_hundred_is_drawn_and_a_draw_that_nobody_took_is_made_up_for() -> None:
    draws, low, high = AuditDraws(0.01), bytes(4), b"\xff" * 4
    draws.draw(drawn(0), high)
    assert draws.waiting(1, 1) == []
    draws.draw(drawn(1), low)
    assert draws.waiting(1, 1) == [drawn(1)]
    draws.keep(1, 2)
    assert draws.waiting(1, 1) == []
    draws.draw(drawn(2, 2), high)
    draws.draw(drawn(3, 2), high)
    assert draws.waiting(1, 2) == [drawn(2, 2)]
    draws.end(drawn(2, 2))
    assert draws.waiting(1, 2) == []


def test_draws_and_debts_are_bounded() -> None:
    draws = AuditDraws(1.0)
    for version in range(10):
        for number in range(MOST_OWED):
            draws.draw(drawn(number, version), bytes(4))
        assert len(draws.waiting(1, version)) <= MOST_OWED
        draws.keep(1, version + 1)
    for number in range(3 * MOST_OWED):
        draws.draw(drawn(number, 10), bytes(4))
    assert len(draws.waiting(1, 10)) == MOST_OWED
    none = AuditDraws(0.0)
    none.draw(drawn(0), bytes(4))
    assert none.waiting(1, 1) == []


@pytest.mark.slow
def test_the_share_of_leases_is_that_of_the_setting(tmp_path: Path) -> None:
    world = AuditWorld(tmp_path, audits=0.05)
    world.prove(ALICE, BOB, CAROL)
    before = dict(world.group_service.database.all("SELECT twin, count(*) FROM leases GROUP BY twin"))
    for _ in range(300):
        for node in (ALICE, BOB, CAROL):
            world.answered(world.given(node))
        world.learn()
    kinds = dict(world.group_service.database.all("SELECT twin, count(*) FROM leases GROUP BY twin"))
    assert 0.03 < kinds["audit"] / (sum(kinds.values()) - sum(before.values())) < 0.07
    view = world.view
    assert view.given == kinds["audit"] == view.agreed
    assert (view.differed, view.doubted) == (0, 0)
    assert 0.02 < view.share < 0.07
    owners = {node for (node,) in world.group_service.database.all("SELECT node FROM leases WHERE twin = 'audit'")}
    assert owners == {ALICE, BOB, CAROL}
    check_sums(world.group_service.database)


# --- who is asked


def test_a_proven_node_of_another_party_gets_the_same_group_under_a_lease_of_its_own(world: AuditWorld) -> None:
    first, audit = world.pair()
    assert audit.id != first.id
    for field in ("task", "task_version", "index", "prompt", "seeds", "era", "version", "root", "limit"):
        assert getattr(audit, field) == getattr(first, field)
    assert world.kind(world.given(BOB)) == "", "a set has one audit"


def test_no_key_audits_itself_its_party_or_a_position_that_it_had(world: AuditWorld) -> None:
    world.given(ALICE)
    assert world.kind(world.given(ALICE)) == ""
    assert world.kind(world.given(BOB, home=Origin("b", HOMES[ALICE].party))) == ""
    assert world.kind(world.given(BOB, home=Origin("a", HOMES[BOB].party))) == ""


def test_a_key_that_is_not_proven_audits_nobody_and_is_audited_like_any_other(world: AuditWorld) -> None:
    world.given(ALICE)
    assert world.kind(world.given(CAROL)) == ""
    assert world.kind(world.joins(DAVE)) == ""
    audits = [world.given(BOB) for _ in range(3)]
    assert {world.kind(audit) for audit in audits} == {"audit"}


def test_a_node_that_would_get_no_lease_for_lack_of_room_may_audit(world: AuditWorld) -> None:
    assert len(world.fill(ALICE)) > 1
    assert world.group_service.audits.pairs.draws.waiting(1, world.version)
    assert world.kind(world.given(BOB)) == "audit"


def test_served_tasks_have_no_audits_and_the_share_0_turns_them_off(tmp_path: Path) -> None:
    served = msgspec.structs.replace(SPEC, tasks=[msgspec.structs.replace(SPEC.tasks[0], kind="served")])
    opened = msgspec.structs.replace(SPEC, tasks=[msgspec.structs.replace(SPEC.tasks[0], kind="opened")])
    for folder, terms in (("served", {"spec": served}), ("opened", {"spec": opened}), ("off", {"audits": 0.0})):
        (tmp_path / folder).mkdir()
        world = AuditWorld(tmp_path / folder, **terms)
        world.given(ALICE)
        assert world.group_service.audits.pairs.draws.waiting(1, 0) == []


def test_a_lease_of_a_class_that_is_not_exact_is_neither_drawn_nor_an_audit(
    world: AuditWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, service = "transformers/bfloat16/cpu", world.group_service
    monkeypatch.setattr(service.classes, "of", lambda _: bytes(32))
    service.leases.terms = msgspec.structs.replace(service.terms, engines=["transformers"])
    world.given(ALICE)
    assert world.given(BOB, engine=engine).calibration is not None
    assert len(service.audits.pairs.draws.waiting(1, world.version)) == 1
    assert world.kind(world.given(BOB)) == "audit"


def test_no_field_of_an_audit_tells_that_it_is_one(tmp_path: Path) -> None:
    world = AuditWorld(tmp_path)
    world.prove(ALICE, BOB)
    world.given(ALICE)
    audit, other = world.given(BOB), world.given(BOB)
    assert (world.kind(audit), world.kind(other)) == ("audit", "")
    same = ("node", "task", "task_version", "limit", "era", "version", "root", "calibration", "ranges_asked", "at_once",
            "sent")  # fmt: skip
    assert [getattr(audit, one) for one in same] == [getattr(other, one) for one in same]
    assert audit.expires == other.expires
    assert abs(len(encode(audit)) - len(encode(other))) < 16  # prompts differ
    assert all(world.submit(group(lease), BOB) for lease in (audit, other))


# --- agreement


@pytest.mark.parametrize("audit_first", [False, True])
def test_the_second_of_two_equal_groups_is_accepted_without_the_scorer_and_stated_as_re_run(
    world: AuditWorld, audit_first: bool
) -> None:
    one, other = world.pair()[:: -1 if audit_first else 1]
    first, second = world.answered(one), world.answered(other)
    assert (first.code, first.trainable, second.code, second.trainable) == ("ok", True, "ok", False)
    assert (world.scored.count(one.id), world.scored.count(other.id)) == (1, 0)
    assert (world.facts(one)["audited"], world.facts(other)["audited"]) == ("exact", "rerun")
    assert first.weight == second.weight > 0, "each is paid once, in full"
    assert (world.learned(one), world.learned(other)) == (True, False)
    assert (world.view.given, world.view.agreed, world.view.differed) == (1, 1, 0)
    assert world.group_service.reviews.next(appeals=True) is None


def test_two_groups_that_wait_together_are_compared_when_the_second_is_decided(world: AuditWorld) -> None:
    one, other = world.pair()
    for lease in (one, other):
        world.submit(group(lease), lease.node)
    waiting = world.group_service.list_undecided()
    assert [world.group_service.compare_known(group) for group in waiting] == [None, None]
    for group_ in waiting:
        world.decide(group_, honest_scores(group_.submission))
    assert {world.facts(lease)["audited"] for lease in (one, other)} == {"exact", "rerun"}
    assert world.learned(one) != world.learned(other)


def test_a_group_whose_twins_tokens_are_no_longer_stored_is_scored_and_not_a_re_run(world: AuditWorld) -> None:
    one, other = world.pair()
    world.answered(one)
    world.group_service.database.do("UPDATE submissions SET payload = NULL WHERE lease = ?", (one.id,))
    assert world.answered(other).code == "ok"
    assert world.scored[-1] == other.id
    assert world.facts(other)["audited"] == "exact"
    assert judge(group(other).rollouts, honest_scores(group(other))).accepted


def test_the_learner_draws_one_group_of_a_set_and_a_restart_changes_nothing(world: AuditWorld) -> None:
    one, other = world.pair()
    world.answered(one)
    world.reopen(away=1_000, drawn=list(world.drawn))
    assert world.answered(other).trainable is False
    assert world.facts(other)["audited"] == "rerun"
    world.learn()
    query = "SELECT count(*) FROM buffer b JOIN leases l ON l.id = b.lease WHERE l.position = (SELECT position FROM"
    assert world.group_service.database.value(f"{query} leases WHERE id = ?)", (one.id,)) == 1


# --- difference


@pytest.mark.parametrize("wrong", [0, 1])
def test_of_two_groups_that_differ_the_scorer_says_which_is_wrong_and_the_other_loses_nothing(
    world: AuditWorld, wrong: int
) -> None:
    pair = world.pair()
    good = world.answered(pair[1 - wrong])
    refused = world.refused(pair[wrong], ["9", "9"])
    assert (good.verdict, refused.verdict, refused.code) == ("accepted", "refused", "seeded-choice")
    assert world.facts(pair[1 - wrong])["audited"] == "exact"
    assert (world.view.agreed, world.view.differed, world.view.doubted) == (0, 1, 0)
    assert world.group_service.reviews.next(appeals=True) is None
    assert world.view.share == 0


def test_a_group_that_is_right_in_another_way_is_accepted_by_the_scorer_alone(world: AuditWorld) -> None:
    one, other = world.pair()
    world.answered(one, texts=["1", "2"])
    receipt = world.answered(other, texts=["1", "3"])
    assert (receipt.code, receipt.trainable) == ("ok", False)
    assert world.facts(other)["audited"] == "exact"
    assert world.scored[-1] == other.id
    assert (world.view.agreed, world.view.differed) == (0, 1)


def test_equal_groups_that_the_scorer_refuses_are_checked_by_another_process_and_paid_if_they_are_right(
    world: AuditWorld,
) -> None:
    one, other = world.pair()
    for lease in (one, other):
        assert world.refused(lease, ["1", "2"]).code == "seeded-choice"
    assert world.group_service.arrived.is_set(), "a check is wanted"
    assert (world.view.agreed, world.view.differed, world.view.doubted) == (0, 0, 1)
    accounts = [accrued_account(peer_id(lease.node)) for lease in (one, other)]
    before = [world.group_service.ledger.balance(account) for account in accounts]
    for _ in range(2):
        review = world.group_service.reviews.next(appeals=False)
        assert review.by == "audit"
        waiting = world.group_service.reviews.group(review)
        verdict = judge(waiting.submission.rollouts, honest_scores(waiting.submission))
        assert world.group_service.answer_review(review, verdict, waiting.lease, world.now) == "ok"
    assert world.group_service.reviews.next(appeals=False) is None
    for account, balance in zip(accounts, before, strict=True):
        assert world.group_service.ledger.balance(account) > balance
    basis = basis_of(world.group_service.database, world.group_service.classes, one.id)
    assert basis.receipt.code == "reversed-paid"
    assert basis.threshold.startswith("the submitted token may be worse"), "of the first verdict"
    assert basis.statistic.startswith("seeded-choice; its figures gave way")


def test_a_refusal_that_an_equal_accepted_group_speaks_against_is_checked(world: AuditWorld) -> None:
    one, other = world.pair()
    world.refused(one, ["1", "2"])
    assert world.answered(other, texts=["1", "2"]).verdict == "accepted"
    review = world.group_service.reviews.next(appeals=False)
    assert review.lease == one.id
    assert world.facts(other)["audited"] == "exact"
    assert world.view.doubted == 1


def test_a_group_of_the_same_tokens_with_false_log_probabilities_says_nothing_of_the_scorer(world: AuditWorld) -> None:
    one, other = world.pair()
    world.answered(one, texts=["1", "2"])
    honest = group(other, ["1", "2"])
    false = [
        msgspec.structs.replace(claim, logprobs=float_bytes([value - 5e-4 for value in floats(claim.logprobs)]))
        for claim in honest.rollouts
    ]
    world.submit(msgspec.structs.replace(honest, rollouts=false), other.node)
    (waiting,) = world.group_service.list_undecided()
    assert world.decide(waiting, honest_scores(honest)).code == "drift-median"
    assert (world.view.agreed, world.view.differed, world.view.doubted) == (0, 1, 0)
    assert world.group_service.reviews.next(appeals=False) is None


# --- what is not returned


def test_where_the_first_node_returns_nothing_the_audit_is_learned_from_and_costs_nothing(world: AuditWorld) -> None:
    dave = world.given(DAVE, home=NEWCOMERS[DAVE])
    audit = world.given(BOB)
    assert world.kind(audit) == "audit"
    receipt = world.answered(audit)
    world.now = dave.expires + 1
    world.group_service.tick(world.now)
    assert (receipt.trainable, world.learned(audit)) == (True, True)
    assert world.view.share == 0


def test_a_position_of_which_both_leases_expire_is_returned_once(world: AuditWorld) -> None:
    one, audit = world.pair()
    world.now = max(one.expires, audit.expires) + 1
    world.group_service.tick(world.now)
    rows = world.group_service.database.all("SELECT position FROM again")
    position = world.group_service.database.value("SELECT position FROM leases WHERE id = ?", (one.id,))
    assert rows.count((position,)) == 1


def test_a_lease_that_ended_without_an_accepted_group_is_not_audited(world: AuditWorld) -> None:
    world.refused(world.given(ALICE), ["9", "9"])
    assert world.kind(world.given(BOB)) == ""


def test_an_audit_takes_no_room_and_the_first_lease_stands_for_the_set(world: AuditWorld) -> None:
    service = world.group_service
    assert service.progress is not None
    first = world.given(ALICE)
    before = service.leases.load(service.progress, world.now)
    audit = world.given(BOB)
    assert service.leases.load(service.progress, world.now) == before
    counts = "SELECT counts FROM leases WHERE id = ?"
    assert [service.database.value(counts, (one.id,)) for one in (first, audit)] == [1, 0]
    world.answered(audit)
    assert [service.database.value(counts, (one.id,)) for one in (first, audit)] == [0, 1]


@pytest.mark.slow
def test_no_lease_comes_later_than_without_audits(tmp_path: Path) -> None:
    given = []
    for share in (0.0, 0.5):
        (tmp_path / str(share)).mkdir()
        world = AuditWorld(tmp_path / str(share), audits=share)
        world.prove(ALICE, BOB)
        moments = []
        for number in range(60):
            node = (ALICE, BOB)[number % 2]
            answer = world.ask_for(node)
            moments.append(isinstance(answer, Lease))
            if not isinstance(answer, Refusal):
                world.answered(answer)
            world.now += 500
        given.append(moments)
    assert all(with_audits or not without for without, with_audits in zip(*given, strict=True))
