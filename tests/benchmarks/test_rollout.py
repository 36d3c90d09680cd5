"""The counts of the whole-node measurement (`benchmarks.harness.volunteer.Measuring`), and the report of the claims."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks import rollout, rollout_rows
from benchmarks.harness.bench import Measured
from benchmarks.harness.volunteer import Measuring, NodeFault
from echo2.coordinator.submissions.request_handler import RequestContext
from echo2.p2p.envelope import seal
from echo2.p2p.identity import public_bytes
from echo2.p2p.limits.origin import LOCAL_ORIGIN
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease, VerdictsRequest
from echo2.protocol.requests import Refusal, Request, Response
from tests.support.group_world import ALICE, KEYS, RUN, World, control_of, group, honest_scores, opened


class Office(NamedTuple):
    """A request handler for a node that uses a second of CPU time per measurement."""

    world: World
    requests: Measuring

    def asked(self) -> RequestContext:
        return RequestContext(ALICE, self.world.now, LOCAL_ORIGIN)

    def ask(self) -> bytes | Refusal:
        return self.requests.lease(self.asked(), self.world.ask())

    def lease(self) -> Lease:
        answer = self.ask()
        lease: Lease = opened("lease", answer, Lease)
        return lease

    def deliver(self, lease: Lease) -> None:
        self.requests.submit(self.asked(), encode(group(lease)))

    def judge(self, margin: float = 0.0) -> None:
        for waiting in self.world.group_service.list_undecided():
            scores = honest_scores(waiting.submission)
            if margin:
                scores[0].margins[0] = margin
            self.world.decide(waiting, scores)

    def confirm(self, *leases: Lease) -> None:
        self.requests.verdicts(self.asked(), VerdictsRequest(leases=[], confirmed=[lease.id for lease in leases]))


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    world = World(tmp_path, batch_groups=64)
    requests = control_of(world, Measuring)
    used = iter(range(100))
    requests.cpu = lambda: float(next(used))
    yield Office(world, requests)
    world.close()


def test_no_lease_is_given_before_a_turn_and_none_beyond_it(office: Office) -> None:
    assert isinstance(office.ask(), Refusal)
    office.requests.open(1)
    office.lease()
    refused = office.ask()
    assert refused.retry_after


def test_a_turn_lasts_from_the_first_lease_to_the_last_stored_receipt(office: Office) -> None:
    office.requests.open(2)
    one, two = office.lease(), office.lease()
    office.deliver(one)
    assert not office.requests.delivered.is_set(), "scored before the last group came in"
    office.deliver(two)
    assert office.requests.delivered.is_set()
    office.judge()
    office.confirm(one)
    assert not office.requests.settled.is_set()
    office.confirm(two)
    assert office.requests.settled.is_set()
    closed = office.requests.on_connection_end()
    sampled = sum(len(rollout.tokens) for lease in (one, two) for rollout in group(lease).rollouts)
    assert (closed.work, closed.cpu) == (sampled, 1.0)


def test_a_receipt_confirmed_inside_a_submission_ends_the_turn(office: Office) -> None:
    """A node confirms receipts inside its next request, of whatever method: the handler must count those as well."""
    office.requests.open(1)
    lease = office.lease()
    office.deliver(lease)
    office.judge()
    request = Request(
        recipient=public_bytes(KEYS["channel"]), id=bytes(16), method="submit", expires=office.world.now + 60_000,
        body=encode(group(lease)), verdicts=VerdictsRequest(leases=[], confirmed=[lease.id]),
    )  # fmt: skip
    sealed = seal("request", RUN, encode(request), Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32))
    assert decode(office.requests.answer("submit", sealed, office.world.now), Response).verdicts is not None
    assert office.requests.settled.is_set()


def test_a_second_turn_counts_its_own_tokens_and_costs(office: Office) -> None:
    works = []
    for _ in range(2):
        office.requests.open(1)
        lease = office.lease()
        office.deliver(lease)
        office.deliver(lease)  # the same bytes again are the same submission
        office.judge()
        office.confirm(lease)
        works.append(office.requests.on_connection_end()[:2])
    assert works[0] == works[1]


def test_tokens_of_a_group_that_was_refused_are_never_reported(office: Office) -> None:
    office.requests.open(1)
    lease = office.lease()
    office.deliver(lease)
    office.judge(margin=9.0)
    office.confirm(lease)
    with pytest.raises(NodeFault, match="refused"):
        office.requests.on_connection_end()


@pytest.mark.parametrize(("tokens", "code", "verdict"), [(95.0, 0, "ok"), (85.0, 1, "short")])
def test_the_node_is_held_to_nine_tenths_of_the_bare_loop(
    tokens: float, code: int, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {"node": tokens, "engine": 100.0, rollout.MULTINOMIAL: 100.0, rollout.GENERATE: 70.0}
    measured = {name: [Measured(rate, 1.0, 2.0)] * 3 for name, rate in {**rates, rollout.CHECKING: 300.0}.items()}
    assert rollout.report(measured) == code
    printed = capsys.readouterr().out
    assert f"node: ratio {tokens / 100:.3f} against {rollout.MULTINOMIAL}, bar 0.9: {verdict}" in printed
    assert f"hoped for {rollout.HOPED}: {'reached' if tokens > 91 else 'not reached'}" in printed


def test_completions_of_mixed_lengths_have_fifty_tokens_in_the_mean() -> None:
    lengths = rollout_rows.mixed_lengths(40)
    assert (min(lengths), max(lengths), sum(lengths) / 40) == (4, 96, 50.0)
    assert lengths == rollout_rows.mixed_lengths(40) != sorted(lengths)


@pytest.mark.parametrize(("full", "lost", "code"), [(290.0, 0.02, 0), (250.0, 0.02, 1), (290.0, 0.06, 1)])
def test_many_groups_are_held_to_their_bars(
    full: float, lost: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = rollout_rows.MixedRun(tokens=200, cpu=1.0, steady=210.0, lost_tokens=10.0, lost=lost)
    measured = rollout.Together({8: 90.0, 64: 300.0}, full, 90.0, mixed, {16: 50.0, 64: 100.0})
    assert rollout.report_together(measured) == code
    printed = capsys.readouterr().out
    assert f"full node: ratio {full / 300:.3f} against {rollout.BEST}, bar 0.9" in printed
    assert f"mixed: ratio 2.000 against {rollout.LIBRARY}, bar 1.3: ok" in printed
    assert f"version: ratio {lost:.3f} against the tokens of 10 group times, bar 0.05" in printed
