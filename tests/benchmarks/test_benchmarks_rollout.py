"""What the whole-node measurement counts: `benchmarks.volunteer.Desk` over real books, and the report of the claims."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks import rollout
from benchmarks.bench import Measured
from benchmarks.volunteer import Desk, NodeFault
from p2p.limits.origin import NOWHERE
from p2p.messages import Lease, Refusal, VerdictsAsk, encode
from tests.coordinator.books_world import ALICE, World, group, honest_scores, opened


class Office(NamedTuple):
    """A desk whose node uses a second of CPU time at each look."""

    world: World
    desk: Desk

    def ask(self) -> bytes | Refusal:
        return self.desk.lease(ALICE, self.world.ask(), self.world.now, NOWHERE)

    def lease(self) -> Lease:
        answer = self.ask()
        assert isinstance(answer, bytes)
        lease: Lease = opened("lease", answer, Lease)
        return lease

    def deliver(self, lease: Lease) -> None:
        self.desk.submit(ALICE, encode(group(lease)), self.world.now)

    def judge(self, margin: float = 0.0) -> None:
        for waiting in self.world.books.undecided():
            scores = honest_scores(waiting.submission)
            if margin:
                scores[0].margins[0] = margin
            self.world.decide(waiting, scores)

    def confirm(self, *leases: Lease) -> None:
        self.desk.verdicts(ALICE, VerdictsAsk(leases=[], confirmed=[lease.id for lease in leases]))


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    world = World(tmp_path, batch_groups=64)
    desk = Desk(world.books, world.books.database)
    used = iter(range(100))
    desk.cpu = lambda: float(next(used))
    yield Office(world, desk)
    world.close()


def test_no_lease_is_given_before_a_turn_and_none_beyond_it(office: Office) -> None:
    assert isinstance(office.ask(), Refusal)
    office.desk.open(1)
    office.lease()
    refused = office.ask()
    assert isinstance(refused, Refusal)
    assert refused.retry_after


def test_a_turn_lasts_from_the_first_lease_to_the_last_stored_receipt(office: Office) -> None:
    office.desk.open(2)
    one, two = office.lease(), office.lease()
    office.deliver(one)
    assert not office.desk.arrived.is_set(), "scored before the last group came in"
    office.deliver(two)
    assert office.desk.arrived.is_set()
    office.judge()
    office.confirm(one)
    assert not office.desk.settled.is_set()
    office.confirm(two)
    assert office.desk.settled.is_set()
    found = office.desk.closed()
    sampled = sum(len(rollout.tokens) for lease in (one, two) for rollout in group(lease).rollouts)
    assert (found.work, found.cpu) == (sampled, 1.0)


def test_a_second_turn_counts_its_own_tokens_and_costs(office: Office) -> None:
    works = []
    for _ in range(2):
        office.desk.open(1)
        lease = office.lease()
        office.deliver(lease)
        office.deliver(lease)  # the same bytes again are the same submission
        office.judge()
        office.confirm(lease)
        works.append(office.desk.closed()[:2])
    assert works[0] == works[1]


def test_tokens_of_a_group_that_was_refused_are_never_reported(office: Office) -> None:
    office.desk.open(1)
    lease = office.lease()
    office.deliver(lease)
    office.judge(margin=9.0)
    office.confirm(lease)
    with pytest.raises(NodeFault, match="refused"):
        office.desk.closed()


@pytest.mark.parametrize(("tokens", "code", "verdict"), [(95.0, 0, "ok"), (85.0, 1, "short")])
def test_the_node_is_held_to_nine_tenths_of_the_bare_loop(
    tokens: float, code: int, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {"node": tokens, "engine": 100.0, rollout.MULTINOMIAL: 100.0, rollout.GENERATE: 70.0}
    found = {name: [Measured(rate, 1.0, 2.0)] * 3 for name, rate in {**rates, rollout.CHECKING: 300.0}.items()}
    assert rollout.report(found) == code
    printed = capsys.readouterr().out
    assert f"node: ratio {tokens / 100:.3f} against {rollout.MULTINOMIAL}, bar 0.9: {verdict}" in printed
    assert f"hoped for {rollout.HOPED}: {'reached' if tokens > 91 else 'not reached'}" in printed
