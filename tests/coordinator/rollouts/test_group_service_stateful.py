"""Any order of leases, groups good and bad, time, learner's steps and restarts keeps the books' promises."""

import tempfile
from pathlib import Path

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from coordinator.accounts.ledger import FUND
from coordinator.accounts.standing import standing
from coordinator.rollouts.verdicts import LeaseOutcome
from p2p.identity import public_key
from p2p.limits.origin import Origin
from p2p.wire_types import encode
from protocol.leases import Lease, SubmitResponse
from protocol.requests import Refusal
from tests.support.group_world import ALICE, BOB, TEXT, World, group, honest_scores
from tests.support.ledger_sums import check_sums

FINAL = ("decided", "expired")
BAD = ("none", "incomplete", "version-lie", "seeded-choice")


class BooksMachine(RuleBasedStateMachine):
    """`checkpoint`: the draws and the step that the learner has made durable; `drawn`: what it has drawn since."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.world = World(Path(self._folder.name), per_node=6, least_ms=10_000, first_ms=10_000)
        self.step, self.era, self.drawn = 0, 1, list[bytes]()
        self.checkpoint = (0, list[bytes]())
        self.final: dict[bytes, str] = {}
        self.answers: dict[bytes, SubmitResponse] = {}
        self.bad: dict[bytes, str] = {}

    def teardown(self) -> None:
        self.world.close()
        self._folder.cleanup()

    @rule(target=leases, node=st.sampled_from([ALICE, BOB]), behind=st.integers(0, 3), origin=st.sampled_from("ab"))
    def lease(self, node: bytes, behind: int, origin: str) -> Lease | None:
        world, version = self.world, max(0, self.step - behind)
        answer = world.books.lease(node, world.ask(version, era=self.era), world.now, Origin(origin, origin))
        if isinstance(answer, Refusal):
            return None
        document = world.books.database.value("SELECT document FROM leases WHERE sealed = ?", (answer,))
        lease = msgspec.msgpack.decode(document, type=Lease)
        assert self.step - lease.version <= world.spec.staleness
        return lease

    @rule(lease=leases, bad=st.sampled_from(BAD), right=st.booleans())
    def submit(self, lease: Lease | None, bad: str, right: bool) -> None:
        if lease is None:
            return
        rollouts = group(lease, [TEXT.decode(lease.prompt)[3::-1], "0"] if right else None)
        if bad == "incomplete":
            rollouts = msgspec.structs.replace(rollouts, rollouts=rollouts.rollouts[:1])
        elif bad == "version-lie":
            rollouts = msgspec.structs.replace(rollouts, version=rollouts.version + 1)
        answer = self.world.books.submissions.submit(lease.node, encode(rollouts), self.world.now)
        if isinstance(answer, Refusal):
            assert answer.code == "other-bytes"
            assert lease.id in self.answers
            return
        before = self.answers.get(lease.id)
        if before is None:
            self.bad[lease.id] = bad
        else:
            assert answer.received == before.received
            assert before.receipt in (None, answer.receipt)
        self.answers[lease.id] = answer

    @rule(most=st.integers(1, 4))
    def decide(self, most: int) -> None:
        for waiting in self.world.books.undecided(most):
            scores = honest_scores(waiting.submission)
            if self.bad[waiting.lease.id] == "seeded-choice":
                scores[0].margins[0] = 1.0
            receipt = self.world.decide(waiting, scores)
            assert receipt.verdict == ("refused" if self.bad[waiting.lease.id] == "seeded-choice" else "accepted")

    @rule()
    def draw(self) -> None:
        batch = self.world.books.draw()
        if batch is None:
            return
        ids = [g.id for g in batch]
        assert len(set(ids)) == self.world.books.terms.batch_groups
        assert not set(ids) & set(self.drawn)
        for one in batch:
            assert self.step - one.version <= self.world.spec.staleness
            row = self.world.books.database.one("SELECT era, state FROM leases WHERE id = ?", (one.id,))
            assert row == (self.era, "decided")
        self.drawn += ids

    @rule()
    def learner_makes_a_step(self) -> None:
        self.step += 1
        self.checkpoint = (self.step, list(self.drawn))
        self.world.learner_at(self.step, era=self.era)

    @rule()
    def rollback(self) -> None:
        self.era += 1
        self.step += 1
        self.world.learner_at(self.step, era=self.era)

    @rule(milliseconds=st.integers(1, 8_000))
    def time_passes(self, milliseconds: int) -> None:
        self.world.now += milliseconds
        self.world.books.tick(self.world.now)

    @rule(away=st.integers(0, 100_000))
    def restart(self, away: int) -> None:
        self.drawn = list(self.checkpoint[1])
        self.world.books.tick(self.world.now)
        books = self.world.books
        before = (books.ledger.tip(), books.ledger.balances(), books.database.all("SELECT id, state FROM leases"))
        self.world.reopen(away=away, drawn=self.drawn)
        books = self.world.books
        assert before == (
            books.ledger.tip(),
            books.ledger.balances(),
            books.database.all("SELECT id, state FROM leases"),
        )

    @rule(lease=consumes(leases))
    def the_node_confirms(self, lease: Lease | None) -> None:
        if lease is not None:
            with self.world.books.database.transaction():
                self.world.books.ends.confirm(lease.node, [lease.id])

    @rule()
    def what_is_over_is_forgotten(self) -> None:
        books, now = self.world.books, self.world.now
        while books.tokens.forget(self.checkpoint[1], self.step, self.era, books.terms.staleness, now):
            pass

    @invariant()
    def postings_add_up(self) -> None:
        balances = self.world.books.ledger.balances()
        assert sum(balances.values()) == 0
        assert all(amount >= 0 for account, amount in balances.items() if account != FUND)
        self.world.books.ledger.verify()

    @invariant()
    def standing_is_what_the_ledger_says(self) -> None:
        books, now = self.world.books, self.world.now
        told = standing(books.ledger.entries(), now)
        assert {node: books.accounts.of(public_key(node), now) for node in told} == told

    @invariant()
    def sums_are_what_their_rows_add_up_to(self) -> None:
        check_sums(self.world.books.database)

    @invariant()
    def a_position_goes_out_four_times_at_most_and_never_after_it_was_accepted(self) -> None:
        for position, leases, accepted, last in self.world.books.database.all(
            "SELECT l.position, count(*), sum(v.verdict = 'accepted'), max(l.attempt) FROM leases l"
            " LEFT JOIN verdicts v ON v.lease = l.id GROUP BY l.position"
        ):
            assert leases == last + 1 <= 4, position
            assert (accepted or 0) <= 1, position

    @invariant()
    def every_lease_ends_at_most_once_and_is_paid_at_most_once(self) -> None:
        database = self.world.books.database
        states = dict(database.all("SELECT id, state FROM leases"))
        for lease, state in self.final.items():
            assert states.get(lease, state) == state
        self.final |= {lease: state for lease, state in states.items() if state in FINAL}
        entries = self.world.books.ledger.entries()
        own = [one.facts for one in entries if one.kind.startswith("lease.")]
        together = [document for (document,) in database.all("SELECT document FROM ends")]
        ends = [msgspec.msgpack.decode(end, type=LeaseOutcome) for end in own + together]
        assert sorted(end.lease for end in ends) == sorted(self.final)
        paid = sum(a for name, a in self.world.books.ledger.balances().items() if name.startswith("node:"))
        assert paid == sum(end.weight for end in ends)


BooksMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
test_books_keep_their_promises = BooksMachine.TestCase
