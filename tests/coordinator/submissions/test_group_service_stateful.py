"""The group service keeps its promises in any order of leases, good and bad groups, time, learner's steps, restarts."""

import tempfile
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.ledger import standing as ranks
from echo2.ledger.ledger_entries import FUND
from echo2.ledger.standing import standing
from echo2.p2p.identity import public_key
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease
from echo2.protocol.requests import Refusal
from tests.support.group_world import ALICE, BOB, TEXT, World, group, honest_scores
from tests.support.ledger_sums import check_sums

FINAL = ("decided", "expired")
BAD = ("none", "incomplete", "version-lie", "seeded-choice")


class GroupServiceMachine(RuleBasedStateMachine):
    """A coordinator under random events. `checkpoint`: the learner's durable step and draws. `drawn`: all its draws.
    Two groups make a node proven, and every second lease may have a twin."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._quick = mock.patch.object(ranks, "PROVEN_AUDITED_GROUPS", 2)
        self._quick.start()
        self.world = World(
            Path(self._folder.name),
            per_node=6,
            least_ms=10_000,
            first_ms=10_000,
            canaries=0.3,
            audits=0.5,
        )
        self.step, self.era, self.drawn = 0, 1, list[bytes]()
        self.checkpoint = (0, list[bytes]())
        self.final: dict[bytes, str] = {}
        self.answers: dict[bytes, bytes] = {}
        self.bad: dict[bytes, str] = {}
        self.attempts: dict[int, dict[bytes, tuple[int, str, bool]]] = {}
        """By position and lease, forgotten leases included: the attempt, its kind of twin, and whether its group was
        accepted."""

    def teardown(self) -> None:
        self.world.close()
        self._folder.cleanup()
        self._quick.stop()

    @rule(target=leases, node=st.sampled_from([ALICE, BOB]), behind=st.integers(0, 3), origin=st.sampled_from("ab"))
    def lease(self, node: bytes, behind: int, origin: str) -> Lease | None:
        world, version = self.world, max(0, self.step - behind)
        answer = world.group_service.lease(node, world.ask(version, era=self.era), world.now, Origin(origin, origin))
        if isinstance(answer, Refusal):
            return None
        document = world.group_service.database.value("SELECT document FROM leases WHERE sealed = ?", (answer,))
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
        answer = self.world.group_service.submissions.submit(lease.node, encode(rollouts), self.world.now)
        if isinstance(answer, Refusal):
            assert answer.code == ("other-bytes" if lease.id in self.answers else "unknown-lease")
            assert answer.code == "other-bytes" or self.is_forgotten(lease.id)
            return
        before = self.answers.get(lease.id)
        if before is None:
            self.bad[lease.id] = bad
        else:
            assert answer == before
        self.answers[lease.id] = answer

    @rule(target=leases, late=st.sampled_from([ALICE, BOB]))
    def a_late_lease_may_have_a_twin(self, late: bytes) -> MultipleResults[Lease | None]:
        other = BOB if late == ALICE else ALICE
        for node in (late, other, late, other):
            self.submit(self.lease(node, 0, node.hex()), "none", right=True)
            self.decide(64)
        own, taken = self.lease(late, 0, late.hex()), list[Lease | None]()
        while len(taken) < 6 and (not taken or taken[-1] is not None):
            taken.append(self.lease(other, 0, other.hex()))
        self.time_passes(2_000)
        return multiple(own, self.lease(other, 0, other.hex()), *taken)

    def is_forgotten(self, lease: bytes) -> bool:
        return self.world.group_service.database.value("SELECT 1 FROM leases WHERE id = ?", (lease,)) is None

    @rule(most=st.integers(1, 4))
    def decide(self, most: int) -> None:
        for waiting in self.world.group_service.list_undecided(most):
            if self.bad[waiting.lease.id] != "seeded-choice":
                assert self.world.decide_one(waiting).verdict == "accepted"
                continue
            scores = honest_scores(waiting.submission)
            scores[0].margins[0] = 1.0
            assert self.world.decide(waiting, scores).verdict == "refused"

    @rule()
    def draw(self) -> None:
        batch = self.world.group_service.draw(self.world.now)
        if batch is None:
            return
        ids = [g.id for g in batch]
        assert len(set(ids)) == self.world.group_service.terms.batch_groups
        assert not set(ids) & set(self.drawn)
        for one in batch:
            assert self.step - one.version <= self.world.spec.staleness
            row = self.world.group_service.database.one("SELECT era, state FROM leases WHERE id = ?", (one.id,))
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
        self.world.group_service.tick(self.world.now)

    @rule(away=st.integers(0, 100_000))
    def restart(self, away: int) -> None:
        self.drawn = list(self.checkpoint[1])
        self.world.group_service.tick(self.world.now)
        group_service = self.world.group_service
        before = (
            group_service.ledger.tip(),
            group_service.ledger.balances(),
            group_service.database.all("SELECT id, state FROM leases"),
        )
        self.world.reopen(away=away, drawn=self.drawn)
        group_service = self.world.group_service
        assert before == (
            group_service.ledger.tip(),
            group_service.ledger.balances(),
            group_service.database.all("SELECT id, state FROM leases"),
        )

    @rule(lease=consumes(leases))
    def the_node_confirms(self, lease: Lease | None) -> None:
        if lease is not None:
            with self.world.group_service.database.transaction():
                self.world.group_service.verdicts.receipts.confirm(lease.node, [lease.id])

    @rule()
    def what_is_over_is_forgotten(self) -> None:
        group_service, now = self.world.group_service, self.world.now
        while group_service.tokens.forget(self.checkpoint[1], self.step, self.era, group_service.terms.staleness, now):
            pass

    @rule(most=st.sampled_from([0, 500]))
    def old_groups_give_way(self, most: int) -> None:
        service, step = self.world.group_service, self.checkpoint[0]
        while service.tokens.make_room(most, step, self.era, service.terms.staleness):
            pass

    @invariant()
    def postings_add_up(self) -> None:
        balances = self.world.group_service.ledger.balances()
        assert sum(balances.values()) == 0
        assert all(amount >= 0 for account, amount in balances.items() if account != FUND)
        self.world.group_service.ledger.verify()

    @invariant()
    def standing_is_what_the_ledger_says(self) -> None:
        group_service, now = self.world.group_service, self.world.now
        told = standing(group_service.ledger.entries(), now)
        assert {node: group_service.accounts.of(public_key(node), now) for node in told} == told

    @invariant()
    def sums_are_what_their_rows_add_up_to(self) -> None:
        check_sums(self.world.group_service.database)

    @invariant()
    def a_position_goes_out_four_times_at_most_and_never_after_it_was_accepted(self) -> None:
        for lease, position, attempt, twin, accepted in self.world.group_service.database.all(
            "SELECT l.id, l.position, l.attempt, l.twin, coalesce(v.verdict = 'accepted', 0) FROM leases l"
            " LEFT JOIN verdicts v ON v.lease = l.id"
        ):
            self.attempts.setdefault(position, {})[lease] = attempt, twin, bool(accepted)
        for position, leases in self.attempts.items():
            attempts = sorted(attempt for attempt, twin, _ in leases.values() if not twin)
            assert attempts == list(range(len(attempts))), position
            assert len(attempts) <= 4, position
            assert all(attempt == attempts[-1] for attempt, _, accepted in leases.values() if accepted), position

    @invariant()
    def a_set_of_twins_is_one_of_each_kind_with_one_group_in_the_buffer(self) -> None:
        database = self.world.group_service.database
        for kinds, number, contents in database.all(
            "SELECT group_concat(twin, ','), count(*), count(DISTINCT hex(node)) FROM leases GROUP BY position, attempt"
        ):
            assert contents == number
            assert len(set(kinds.split(","))) == number
            assert set(kinds.split(",")) <= {"", "canary", "audit"}
        for position, groups in database.all(
            "SELECT l.position, count(*) FROM buffer b JOIN leases l ON l.id = b.lease GROUP BY l.position"
        ):
            assert groups == 1, position
        query = (
            "SELECT l.document, o.document FROM leases l JOIN leases o USING (position, attempt) WHERE l.twin > o.twin"
        )
        for one, other in database.all(query):
            lease, twin = (msgspec.msgpack.decode(document, type=Lease) for document in (one, other))
            forgotten = [lease.id] == lease.seeds or [twin.id] == twin.seeds
            assert forgotten or (lease.seeds, lease.prompt, lease.version) == (twin.seeds, twin.prompt, twin.version)

    @invariant()
    def every_lease_ends_at_most_once_and_is_paid_at_most_once(self) -> None:
        database = self.world.group_service.database
        states = dict(database.all("SELECT id, state FROM leases"))
        for lease, state in self.final.items():
            assert states.get(lease, state) == state
        self.final |= {lease: state for lease, state in states.items() if state in FINAL}
        entries = self.world.group_service.ledger.entries()
        own = [one.facts for one in entries if one.kind.startswith("lease.")]
        together = [document for (document,) in database.all("SELECT document FROM ends")]
        ends = [msgspec.msgpack.decode(end, type=LeaseOutcome) for end in own + together]
        assert sorted(end.lease for end in ends) == sorted(self.final)
        paid = sum(a for name, a in self.world.group_service.ledger.balances().items() if name.startswith("node:"))
        assert paid == sum(end.weight for end in ends)


@pytest.mark.parametrize("histories", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_the_group_service_keeps_its_promises(histories: int) -> None:
    run_state_machine_as_test(
        GroupServiceMachine,
        settings=settings(max_examples=histories, stateful_step_count=40, deadline=None, derandomize=True),
    )
