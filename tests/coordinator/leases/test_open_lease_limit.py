"""Test the number of leases that a node may have open: by its measured use, never by its claim."""

from pathlib import Path

import pytest

from echo2.coordinator.leases.delivery_record import UNMEASURED_RECORD, DeliveryRecord
from echo2.coordinator.leases.open_lease_limit import MOST_OPEN_LEASES, most_open
from echo2.protocol.leases import Lease
from tests.support.fleet import Fleet, key, origin_of
from tests.support.group_world import World, group

MINUTE = 60_000


def limit(run: Fleet, node: bytes, at_once: int = 1024) -> int:
    """Return the limit that a lease for this node would state now."""
    service, now = run.world.group_service, run.world.now
    rank = service.accounts.of(node, now).rank
    demand = service.leases.admission.demand(node, rank, origin_of(node.decode()), at_once, now)
    return demand.requester.most_open


@pytest.mark.parametrize(
    ("at_once", "rank", "rate", "turnaround", "most"),
    [
        pytest.param(64, "new", 0.1, 1_000, 3, id="a new key, however quick"),
        pytest.param(1, "known", 0.1, 1_000, 3, id="an older node, which says nothing"),
        pytest.param(64, "known", 3 / 1_000, 1_000, 6, id="twice the three that it had open"),
        pytest.param(5, "known", 3 / 1_000, 1_000, 5, id="no more than it can use"),
        pytest.param(1024, "proven", 1.0, 5_000, MOST_OPEN_LEASES, id="no more than the bound for all"),
        pytest.param(64, "proven", 16 / 90_000, 90_000, 18, id="no more than it delivers in 100 s, the longest here"),
        pytest.param(64, "proven", 1 / 90_000, 90_000, 3, id="a slow node has the number of all"),
    ],
)
def test_the_limit_of(at_once: int, rank: str, rate: float, turnaround: int, most: int) -> None:
    record = DeliveryRecord([turnaround] * 3, False, rate, 0)
    assert most_open(3, at_once, rank, record, 100_000) == most  # type: ignore[arg-type]
    assert most_open(3, at_once, rank, record._replace(silent=True), 100_000) == 1  # type: ignore[arg-type]


def test_an_unmeasured_node_has_the_number_of_the_settings() -> None:
    assert most_open(3, 64, "known", UNMEASURED_RECORD, 100_000) == 3


@pytest.mark.parametrize("together", [16, 64])
@pytest.mark.slow
def test_a_device_that_takes_many_groups_at_once_is_filled_within_minutes(tmp_path: Path, together: int) -> None:
    """With three leases at a time, the rule before, it would make 3 groups in 10 s however many it can take."""
    run = Fleet(World(tmp_path, batch_groups=200, per_node=3), step_ms=1_000)
    run.batching(key("large"), lambda number: 10.0, together)
    run.run(4 * MINUTE)
    before = run.ends["ok"]
    run.run(2 * MINUTE)
    assert run.ends["ok"] - before >= 0.9 * 12 * together
    assert run.ends["late"] == 0


@pytest.mark.slow
def test_more_leases_are_given_while_they_make_a_node_quicker_and_none_is_late_meanwhile(tmp_path: Path) -> None:
    """A processor: up to 8 groups cost what one costs, and from there on each lengthens all others."""
    run = Fleet(World(tmp_path, batch_groups=200, per_node=3, least_ms=1_000), step_ms=1_000)
    for number in range(11):
        run.honest(key("small", number), 4.0)
    run.batching(key("cpu"), lambda number: 4.0 * max(1.0, number / 8), 1_000)
    run.run(10 * MINUTE)
    most = limit(run, key("cpu"))
    slow = run.world.group_service.database.value("SELECT count(*) FROM lent WHERE share = 'slow'")
    assert 8 <= most <= 64, "its turnaround stays within that of a node that is not slow"
    assert (run.ends["late"], slow) == (0, 0)


def test_a_key_that_claims_a_need_and_returns_nothing_has_the_number_of_the_settings(tmp_path: Path) -> None:
    run = Fleet(World(tmp_path, batch_groups=200, per_node=3), step_ms=1_000)
    claims = key("claims")
    given = [run.ask(claims, origin_of("claims"), 1024) for _ in range(10)]
    assert sum(isinstance(answer, Lease) for answer in given) == 3
    assert {answer.code for answer in given if not isinstance(answer, Lease)} == {"too-many-leases"}
    assert {answer.at_once for answer in given if isinstance(answer, Lease)} == {3}


@pytest.mark.slow
def test_a_quick_node_that_returns_no_leases_any_more_may_have_a_third_of_them(
    tmp_path: Path,
) -> None:
    run = Fleet(World(tmp_path, batch_groups=400, per_node=3), step_ms=1_000)
    node = key("large")
    run.batching(node, lambda number: 10.0, 32)
    run.run(5 * MINUTE)
    assert limit(run, node) >= 32
    run.quiet(node)
    run.run(10 * MINUTE)
    assert limit(run, node) <= 10


def test_the_groups_that_were_under_way_together_may_wait_for_their_verdicts_together(tmp_path: Path) -> None:
    """Before, three groups without a verdict stopped a known node, whatever its rate."""
    world = World(tmp_path, batch_groups=400, per_node=16)
    world.group_service.accounts.remark(key("a"), "node.vouched", "tested", world.now)
    leases = [world.lease(key("a")) for _ in range(16)]
    world.now += 10_000
    for lease in leases:
        world.submit(group(lease), key("a"))
    answer = world.refusal(node=key("a"))
    assert answer.code == "undecided"
    assert "16 groups that wait for their verdict, the most is 16" in answer.sentence
    world.decide_all()
    assert world.lease(key("a")).at_once == 16
