"""Appeals, further checks and reversals of verdicts, by the rules and on a real scoring pass without a model."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from echo2.coordinator.accounts import reversals
from echo2.coordinator.submissions.request_handler import RequestContext, RequestHandler
from echo2.coordinator.submissions.verdict_commands import carry_out, lines
from echo2.coordinator.training.review_loop import APPEALS_TIME_SHARE, FIRST_CREDIT_SECONDS, Reviewing
from echo2.coordinator.verdicts.group_verifier import GroupVerifier
from echo2.coordinator.verdicts.reviews import MOST_PINNED_VERSIONS, REVIEWS_KEPT_MS
from echo2.coordinator.verdicts.token_storage import EXCERPT, Excerpt
from echo2.coordinator.verdicts.verdict_report import basis_of
from echo2.coordinator.verification.evidence import Tables
from echo2.coordinator.verification.evidence_table import EvidenceAgain, EvidenceTable
from echo2.coordinator.verification.verification import Verdict
from echo2.engines.engine import Job, SampleScore
from echo2.engines.process.messages import PackedSample
from echo2.ledger.ledger_entries import ESCROW, accrued_account
from echo2.ledger.ledger_facts import AppealAnswered, LeaseReversed
from echo2.ledger.standing import FOREVER_MS, standing
from echo2.p2p.identity import peer_id
from echo2.p2p.limits.origin import LOCAL_ORIGIN
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.appeals import AppealRequest, AppealResponse, CheckAnswer
from echo2.protocol.leases import Lease, Receipt, Submission
from echo2.protocol.requests import Refusal
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import DAY
from tests.support import paths
from tests.support.evidence_world import Bfloat16World, FixedScorer
from tests.support.group_world import ALICE, BOB, SPEC, World, control_of, group, honest_scores, name, opened, rollout

PEER = peer_id(ALICE)
WRONG = 4
"""Tokens per sample of a group that is refused as not generated or by its choices."""


class RenewedScorer(FixedScorer):
    """A scorer whose process may be renewed. `renewed`: how often; `fails`: raised by each pass; `meanwhile`: happens
    during each."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed = 0
        self.fails: Exception | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    async def renew(self) -> None:
        self.renewed += 1

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]:
        if self.fails is not None:
            raise self.fails
        self.meanwhile()
        return await super().score(job, samples)


class Court:
    """A world with a reviewing loop. `loadable`: whether versions can be loaded."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder, batch_groups=100)
        self.scorer = RenewedScorer()
        self.loadable = True
        self.held: list[int] = []
        """The versions that were loaded, each in a second."""
        self.begin()

    def begin(self) -> None:
        self.service = self.world.group_service
        verifier = GroupVerifier(self.scorer, ends=SPEC.ends, staleness=2, published=lambda era: [0])  # type: ignore[arg-type]
        self.reviewing = Reviewing(self.service, verifier, self.scorer, lambda: self.world.now / 1000)  # type: ignore[arg-type]

    async def hold(self, version: int, root: bytes) -> bool:
        self.held.append(version)
        self.world.now += 1_000
        return self.loadable

    def review(self) -> None:
        review = self.reviewing.due()
        assert review is not None
        asyncio.run(self.reviewing.make(review, self.hold))

    def refused(self, node: bytes = ALICE) -> Lease:
        """Refuse an honest group, by a scorer whose memory is at fault."""
        lease = self.world.lease(node)
        self.world.submit(group(lease), node)
        (waiting,) = self.service.list_undecided()
        margins = [0.0, 0.01, 0.0, 0.0]
        wrong = [SampleScore(logprobs=one.logprobs, margins=margins) for one in honest_scores(waiting.submission)]
        assert self.world.decide(waiting, wrong).code == "seeded-choice"
        return lease

    def appeal(self, lease: bytes, node: bytes = ALICE) -> str:
        refused = self.service.reviews.appeal(node, lease, self.world.now)
        return refused.code if isinstance(refused, Refusal) else ""

    def balance(self, node: bytes = ALICE) -> int:
        return self.service.ledger.balance(accrued_account(peer_id(node)))

    def facts(self, kind: str, type_: type[msgspec.Struct]) -> list[msgspec.Struct]:
        entries = [entry for entry in self.service.ledger.entries() if entry.kind == kind]
        return [msgspec.msgpack.decode(entry.facts, type=type_) for entry in entries]


@pytest.fixture
def court(tmp_path: Path) -> Court:
    return Court(tmp_path)


def test_an_appeal_is_checked_by_another_scorer_process_and_reverses_a_false_refusal(court: Court) -> None:
    court.world.accepted()
    lease, before = court.refused(), court.balance()
    assert court.appeal(lease.id) == ""
    court.review()
    assert court.scorer.renewed == 1
    (answered,) = court.facts("appeal.answered", AppealAnswered)
    assert (answered.code, answered.again, answered.by) == ("seeded-choice", "ok", "appeal")
    (fact,) = court.facts("lease.reversed", LeaseReversed)
    assert (fact.paid, fact.lacking) == (True, 0)
    assert fact.weight > 0
    assert court.balance() == before + fact.weight
    receipt = opened("receipt", court.service.verdicts.receipts.of(lease.id) or b"", Receipt)
    assert receipt.code == "reversed-paid"
    account = court.service.accounts.account(ALICE)
    assert (account.accepted, account.wrong) == (2, 0)
    court.service.ledger.verify()
    told = standing(court.service.ledger.entries(), court.world.now)[PEER]
    assert told == court.service.accounts.of(ALICE, court.world.now)
    assert court.reviewing.due() is None


def test_a_refusal_that_is_right_stands_and_both_answers_are_stored(court: Court) -> None:
    court.world.accepted()
    lease, before = court.refused(), court.balance()
    court.appeal(lease.id)
    court.scorer.wrong = WRONG
    court.review()
    (answered,) = court.facts("appeal.answered", AppealAnswered)
    assert answered.again == "seeded-choice"
    assert court.balance() == before
    assert court.facts("lease.reversed", LeaseReversed) == []
    basis = basis_of(court.service.database, court.service.classes, lease.id)
    assert basis is not None
    assert "for the appeal: seeded-choice" in "\n".join(lines(basis))


def test_a_proof_suspends_until_an_appeal_lifts_it(court: Court) -> None:
    court.world.accepted()
    lease = court.refused()
    court.service.accounts.suspend(ALICE, "not-generated", bytes(32), court.world.now, FOREVER_MS)
    assert court.appeal(lease.id) == ""
    court.review()
    assert court.service.accounts.of(ALICE, court.world.now).suspended_until is None


def test_an_appeal_is_refused_with_its_reason(court: Court) -> None:
    fresh = court.refused(BOB)
    assert court.appeal(fresh.id, BOB) == "no-appeal"  # no accepted work
    accepted = court.world.accepted()
    assert court.appeal(accepted.id) == "no-appeal"
    form = court.world.lease()
    court.world.refused(group(form, rollouts=[]))
    assert court.appeal(form.id) == "no-appeal"  # follows from its bytes
    opened_lease = court.world.lease()
    assert court.appeal(opened_lease.id) == "no-appeal"
    lease = court.refused()
    assert court.appeal(lease.id, BOB) == "not-owner"
    assert court.appeal(bytes(16)) == "unknown-lease"
    assert court.service.reviews.of(lease.id) == []


def unseen(lease: Lease) -> Submission:
    """Return a group of right tokens that claims 2,000 tokens of its environment between them, and another version: the
    first check refuses it by the version, and looks at nothing else."""
    few = rollout(lease, "123")
    given = [0] * 2_000
    longer = rollout(
        lease, "123", tokens=[*few.tokens, *given, *few.tokens], turns=[len(few.tokens), len(given), len(few.tokens)],
        logprobs=2 * few.logprobs,
    )  # fmt: skip
    return group(lease, version=lease.version + 1, rollouts=[longer] * len(lease.seeds))


@pytest.mark.parametrize("by", ["appeal", "operator", "audit"])
def test_a_group_that_the_first_check_refused_is_never_scored_nor_paid(
    by: Literal["appeal", "operator", "audit"], court: Court
) -> None:
    court.world.accepted()
    lease, before = court.world.lease(), court.balance()
    assert court.world.refused(unseen(lease)).code == "version-lie"
    if by == "appeal":
        refused = court.service.reviews.appeal(ALICE, lease.id, court.world.now)
        assert "version-lie follows from the submission" in refused.sentence
    else:
        assert not court.service.reviews.ask(lease.id, by, court.world.now)
    with pytest.raises(LocalFault, match="version-lie follows from the submission"):
        carry_out(court.service, "rerun", lease.id.hex(), "", court.world.now)
    while court.reviewing.due() is not None:
        court.review()
    assert court.balance() == before
    assert court.service.reviews.of(lease.id) == []


def test_tokens_that_are_right_reverse_no_refusal_by_the_environment(court: Court) -> None:
    court.world.accepted()
    lease, before = court.world.lease(), court.balance()
    court.world.submit(group(lease))
    (waiting,) = court.service.list_undecided()
    court.service.decide(waiting, Verdict("transcript", "the episode was another one", None), court.world.now)
    assert court.service.reviews.ask(lease.id, "operator", court.world.now)
    court.review()
    (answered,) = court.facts("appeal.answered", AppealAnswered)
    assert (answered.code, answered.again) == ("transcript", "transcript")
    assert court.balance() == before


def test_an_appeal_twice_changes_nothing_and_one_waits_at_a_time(court: Court) -> None:
    court.world.accepted()
    lease, other = court.refused(), court.refused()
    assert [court.appeal(lease.id) for _ in range(3)] == [""] * 3
    assert len(court.service.reviews.of(lease.id)) == 1
    assert court.appeal(other.id) == "one-appeal"
    court.review()
    assert court.appeal(lease.id) == ""  # answered: it is not made again
    assert court.reviewing.due() is None
    assert court.appeal(other.id) == ""
    assert len(court.facts("lease.reversed", LeaseReversed)) == 1


def test_appeals_survive_a_restart_and_come_oldest_first(court: Court) -> None:
    leases = []
    for node in (ALICE, BOB):
        court.world.accepted(node)
        leases.append(court.refused(node))
    court.appeal(leases[1].id, BOB)
    court.world.now += 1
    court.appeal(leases[0].id)
    court.world.reopen()
    court.begin()
    assert court.service.oldest_needed() <= (1, 0)
    first = court.reviewing.due()
    assert first.lease == leases[1].id


def test_appeals_of_many_keys_with_a_group_each_do_not_starve_a_node_that_works(court: Court) -> None:
    leases = {}
    for number in range(12):
        node = name("sybil", number, 32)
        court.world.accepted(node)
        leases[node] = court.refused(node)
    court.world.accepted()
    court.world.accepted()
    honest = court.refused()
    for node, lease in leases.items():
        assert court.appeal(lease.id, node) == ""
        court.world.now += 1
    assert court.appeal(honest.id) == ""
    answered = []
    for _ in range(4):
        review = court.reviewing.due()
        answered.append(review.node)
        court.review()
    assert answered == [name("sybil", 0, 32), ALICE, name("sybil", 1, 32), name("sybil", 2, 32)]


def test_the_statistic_by_evidence_is_computed_once_however_often_its_node_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of 200 bytes cost the event loop a bet on all tokens of the group, each time."""
    one = Bfloat16World(tmp_path)
    one.open()
    receipt, computed = one.decide(0), list[bytes]()
    again = EvidenceTable.run_again

    def counted(table: EvidenceTable, lease: bytes, tables: Tables, now: int) -> EvidenceAgain | None:
        computed.append(lease)
        return again(table, lease, tables, now)

    monkeypatch.setattr(EvidenceTable, "run_again", counted)
    handler = control_of(one.world, RequestHandler)
    context = RequestContext(ALICE, one.world.now, LOCAL_ORIGIN)
    answers = [handler.appeal(context, AppealRequest(lease=receipt.lease, ask=False)) for _ in range(20)]
    assert computed == [receipt.lease]
    told = {answer.statistic for answer in answers if isinstance(answer, AppealResponse)}
    assert len(answers) == 20
    assert len(told) == 1
    assert told.pop().startswith("E of the day is 10^")


def past_the_window(court: Court) -> None:
    court.world.now += 2 * DAY
    while court.service.forget([], 10_000, 2, court.world.now):
        pass


def test_a_late_appeal_and_a_rerun_without_evidence_get_a_clear_word(court: Court) -> None:
    court.world.accepted()
    lease = court.refused()
    past_the_window(court)
    refused = court.service.reviews.appeal(ALICE, lease.id, court.world.now)
    assert "its challenge window has ended" in refused.sentence
    with pytest.raises(LocalFault, match="sample 0, sampled token 1: 2 tokens from 0 on"):
        carry_out(court.service, "rerun", lease.id.hex(), "", court.world.now)
    with pytest.raises(LocalFault, match="no longer stored, so its weight"):
        carry_out(court.service, "reverse", lease.id.hex(), "in doubt", court.world.now)
    with pytest.raises(LocalFault, match="there is no verdict"):
        carry_out(court.service, "rerun", bytes(16).hex(), "", court.world.now)
    for text in ("", "zz", "00", "00" * 17):
        with pytest.raises(LocalFault, match="names no lease"):
            carry_out(court.service, "rerun", text, "", court.world.now)
    with pytest.raises(LocalFault, match="say why"):
        carry_out(court.service, "reverse", lease.id.hex(), " ", court.world.now)
    assert court.reviewing.due() is None


def test_the_place_that_decided_stays_and_of_free_keys_nothing(court: Court) -> None:
    free = court.refused(BOB)
    court.world.accepted()
    lease = court.refused()
    past_the_window(court)
    rows = dict(court.service.database.all("SELECT lease, tokens FROM excerpts"))
    assert list(rows) == [lease.id]
    assert free.id not in rows
    assert len(rows[lease.id]) <= EXCERPT
    excerpt = msgspec.msgpack.decode(rows[lease.id], type=Excerpt)
    assert (excerpt.sample, excerpt.position, excerpt.seed) == (0, 1, lease.seeds[0])
    assert excerpt.logprob == -0.5
    court.world.now += 31 * DAY
    court.service.forget([], 10_000, 2, court.world.now)
    assert court.service.database.value("SELECT count(*) FROM excerpts") == 0


def test_an_accepted_group_is_taken_back_and_no_account_falls_below_zero(court: Court) -> None:
    lease = court.world.accepted()
    weight, escrow = court.balance(), court.service.ledger.balance(ESCROW)
    said = carry_out(court.service, "reverse", lease.id.hex(), "generated by another model", court.world.now)
    assert f"{weight} milli-RE are taken back (generated by another model)" in said
    assert (court.balance(), court.service.ledger.balance(ESCROW)) == (0, escrow + weight)
    with pytest.raises(LocalFault, match="was reversed before"):
        carry_out(court.service, "reverse", lease.id.hex(), "again", court.world.now)
    account = court.service.accounts.account(ALICE)
    assert (account.accepted, account.audited, account.wrong) == (0, 0, 1)
    assert court.service.count_buffered() == 0
    court.service.ledger.verify()


def test_what_a_node_lacks_is_stated_and_nobody_owes_it(court: Court) -> None:
    lease = court.world.accepted()
    service, weight = court.service, court.balance()
    with service.database.transaction():  # as if most of it had been paid out
        service.ledger.append(1, "paid", "paid:1", LeaseReversed(
            node=PEER, lease=bytes(16), code="", paid=False, weight=0, audited=False, by="", why="",
        ), [(accrued_account(PEER), 3 - weight), ("paid:points", weight - 3)])  # type: ignore[list-item] # fmt: skip
    service.reverse(lease.id, "operator", "why", court.world.now)
    entry = reversals.find(service.ledger, lease.id)
    assert msgspec.msgpack.decode(entry.facts, type=LeaseReversed).lacking == weight - 3
    assert court.balance() == 0


def test_a_rerun_is_not_promised_where_the_version_of_the_group_is_gone(court: Court) -> None:
    """Before, the operator read that it would be checked again, and the log that it could not be."""
    court.world.accepted()
    lease, asked = court.refused(), list[bytes]()

    def may_load(root: bytes) -> bool:
        asked.append(root)
        return False

    with pytest.raises(LocalFault, match=r"again: version 0, by which .* is no longer kept") as fault:
        carry_out(court.service, "rerun", lease.id.hex(), "", court.world.now, may_load=may_load)
    assert "`echo2-coord verdict reverse`" in str(fault.value)
    assert court.service.reviews.of(lease.id) == []
    past_the_window(court)
    with pytest.raises(LocalFault, match="its group is no longer stored"):
        carry_out(court.service, "rerun", lease.id.hex(), "", court.world.now, may_load=may_load)
    assert asked == [lease.root]


def test_appeals_take_a_hundredth_of_the_scoring_time_and_the_operator_does_not_wait(court: Court) -> None:
    court.world.accepted()
    lease = court.refused()
    court.appeal(lease.id)
    court.reviewing.credit -= FIRST_CREDIT_SECONDS
    assert court.reviewing.due() is None
    court.reviewing.note_scoring(1 / APPEALS_TIME_SHARE)
    assert court.reviewing.due() is not None
    court.reviewing.credit = 0.0
    carry_out(court.service, "rerun", lease.id.hex(), "", court.world.now)
    review = court.reviewing.due()
    assert review.by == "operator"


def test_weeks_without_appeals_save_up_the_share_of_an_hour(court: Court) -> None:
    """Otherwise the appeals of one day, after four weeks, would have the scorer for 6.7 hours."""
    for _ in range(4 * 7 * 24):
        court.reviewing.note_scoring(3600.0)
    assert court.reviewing.credit == APPEALS_TIME_SHARE * 3600
    court.world.accepted()
    for spent in (APPEALS_TIME_SHARE * 3600 - 5, 1.0):  # beside 2 s for the loading of two versions
        court.appeal(court.refused().id)
        court.review()
        court.reviewing.credit -= spent
    court.appeal(court.refused().id)
    assert court.reviewing.due() is None


def test_the_way_back_to_the_newest_version_is_part_of_an_appeal(court: Court) -> None:
    court.world.accepted()
    court.appeal(court.refused().id)
    court.world.learner_at(2)
    court.review()
    assert court.held == [0, 2]
    assert court.reviewing.credit == FIRST_CREDIT_SECONDS - 2.0
    lease = court.refused()
    carry_out(court.service, "rerun", lease.id.hex(), "", court.world.now)
    court.review()
    assert court.reviewing.credit == FIRST_CREDIT_SECONDS - 2.0


def test_a_waiting_check_keeps_few_versions(court: Court) -> None:
    """At 10 s a version, a day of them would be 8,640 payloads and as many journals of the scorer."""
    court.world.accepted()
    court.appeal(court.refused().id)
    court.world.learner_at(MOST_PINNED_VERSIONS - 1)
    assert court.service.oldest_needed() == (1, 0)
    court.world.learner_at(MOST_PINNED_VERSIONS)
    assert court.service.oldest_needed() == (1, MOST_PINNED_VERSIONS - 3)


def test_an_appeal_that_waits_past_its_window_is_lost_and_keeps_no_version_and_no_node(court: Court) -> None:
    court.world.accepted()
    lease = court.refused()
    court.appeal(lease.id)
    court.reviewing.credit = 0.0
    court.world.learner_at(100)
    assert court.service.oldest_needed() == (1, 0)
    past_the_window(court)
    assert court.service.oldest_needed() == (1, 97)
    (review,) = court.service.reviews.of(lease.id)
    assert (review.state, review.reason) == ("lost", "its group was deleted before its turn came")
    (answered,) = court.facts("appeal.answered", AppealAnswered)
    assert answered.again == "lost"
    other = court.world.lease(version=100)
    court.world.submit(group(other))
    (waiting,) = court.service.list_undecided()
    wrong = [
        SampleScore(logprobs=one.logprobs, margins=[0.0, 0.01, 0.0, 0.0]) for one in honest_scores(waiting.submission)
    ]
    court.world.decide(waiting, wrong)
    assert court.appeal(other.id) == ""


def test_a_check_whose_group_is_deleted_while_it_is_made_is_lost_once(court: Court) -> None:
    court.world.accepted()
    lease = court.refused()
    court.appeal(lease.id)
    court.scorer.meanwhile = partial(past_the_window, court)
    court.review()
    (review,) = court.service.reviews.of(lease.id)
    assert review.state == "lost"
    assert len(court.facts("appeal.answered", AppealAnswered)) == 1
    assert court.facts("lease.reversed", LeaseReversed) == []


@pytest.mark.parametrize("fails", [ChildError("EngineError", "x"), ChildDied("scorer", -9, "it ended")])
def test_a_check_at_which_the_scorer_fails_twice_is_lost_and_the_next_one_is_made(
    court: Court, fails: Exception
) -> None:
    for node in (ALICE, BOB):
        court.world.accepted(node)
        court.appeal(court.refused(node).id, node)
        court.world.now += 1
    court.scorer.fails = fails
    for _ in range(2):
        try:
            court.review()
        except ChildDied:
            assert isinstance(fails, ChildDied)
    court.scorer.fails = None
    court.review()
    again = [fact.again for fact in court.facts("appeal.answered", AppealAnswered) if isinstance(fact, AppealAnswered)]
    assert again == ["lost", "ok"]


def test_a_version_that_is_gone_loses_its_check_with_a_reason(court: Court) -> None:
    court.world.accepted()
    lease = court.refused()
    court.appeal(lease.id)
    court.loadable = False
    court.review()
    (review,) = court.service.reviews.of(lease.id)
    assert (review.state, review.reason) == ("lost", "version 0 can no longer be loaded")
    court.world.now += REVIEWS_KEPT_MS + 1
    assert court.service.reviews.forget(court.world.now) == 1


def test_golden_vectors_of_the_new_entries_and_messages() -> None:
    vectors = json.loads((paths.VECTORS / "appeals.json").read_text())
    values: dict[str, msgspec.Struct] = {
        "LeaseReversed": LeaseReversed(
            node=PEER,
            lease=b"l" * 16,
            code="seeded-choice",
            paid=True,
            weight=140,
            audited=True,
            by="appeal",
            why="w",
            prompt=3,
            turns=[[7], [8]],
            costs=2,
        ),
        "AppealAnswered": AppealAnswered(
            node=PEER, lease=b"l" * 16, by="appeal", asked=1, code="seeded-choice", again="ok", reason=""
        ),
    }
    for message, value in values.items():
        assert msgspec.msgpack.encode(value).hex() == vectors[message]
    request = AppealRequest(lease=b"l" * 16, ask=True)
    response = AppealResponse(
        code="drift", reason="r", statistic="s", threshold="t", calibration=None, stored="group", state="answered",
        answers=[CheckAnswer(by="appeal", code="ok", reason="", at=1)], reversed=True,
    )  # fmt: skip
    for message in (request, response):
        golden = bytes.fromhex(vectors[type(message).__name__])
        assert encode(message) == golden
        assert decode(golden, type(message)) == message
