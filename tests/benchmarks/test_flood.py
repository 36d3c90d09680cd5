"""The flood benchmark: a short run, its attackers, and short-lived peers."""

from dataclasses import replace

import anyio
import pytest

from benchmarks.attacks.floods import Forgers, FormerWorkers, Hoarders
from benchmarks.attacks.groups import made_up
from benchmarks.flood import churn
from benchmarks.flood.catalogue import CASES
from benchmarks.flood.engine import honest, scored
from benchmarks.flood.world import Outcome, Setting, World, running, went
from echo2.coordinator.verification.submitted_group import decode_group
from echo2.coordinator.verification.verification import judge
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease

SHORT = Setting(nodes=(4.0, 5.0, 6.0), before=30.0, seconds=60.0)


@pytest.fixture(scope="module")
def calm() -> Outcome:
    """The short run without an attack."""
    return went(SHORT)


def lease(root: bytes) -> Lease:
    return Lease(
        id=bytes(16),
        node=bytes(32),
        nonce=bytes(16),
        task="reverse",
        task_version=1,
        index=0,
        prompt=[5, 6, 7],
        seeds=[bytes([number]) * 16 for number in range(4)],
        limit=40,
        era=0,
        version=0,
        root=root,
        sent=0,
        expires=1,
    )


def test_the_stand_in_scorer_tells_an_honest_group_from_a_made_up_one_and_from_another_versions() -> None:
    asked, other = lease(bytes(32)), lease(b"\x01" * 32)
    for group, good in ((honest(asked), True), (made_up(asked), False), (honest(other), False)):
        scores = [scored(asked.root, asked.seeds, list(one.tokens)) for one in group.rollouts]
        assert judge(decode_group(encode(group)).rollouts, scores).accepted == good


@pytest.mark.slow
def test_a_calm_run_is_repeated_exactly(calm: Outcome) -> None:
    assert calm._replace(cpu=0.0) == went(SHORT)._replace(cpu=0.0)
    assert calm.steps > 5
    assert calm.accepted >= 4 * (calm.steps - 1)


@pytest.mark.slow
def test_one_key_that_forges_does_not_keep_the_learner_from_its_steps(calm: Outcome) -> None:
    attacked = went(SHORT, Forgers(1, 1, 1))
    assert attacked.said["decided"] > 0, "the stranger must have been taken seriously at least once"
    assert attacked.steps >= 0.9 * calm.steps


@pytest.mark.slow
def test_keys_that_take_leases_and_return_nothing_leave_room_for_nodes_that_are_known(calm: Outcome) -> None:
    attacked = went(SHORT, Hoarders(60, 1, 1))
    assert attacked.said["leases"] > 0, "the strangers must have got some room"
    assert attacked.steps >= 0.9 * calm.steps


@pytest.mark.slow
def test_keys_that_worked_once_and_return_nothing_take_the_room_once(calm: Outcome) -> None:
    attacked = went(replace(SHORT, seconds=300.0), FormerWorkers(12, 12, 6))
    assert attacked.said["leases"] >= 12 * (3 + 1), "three groups each, and at least one lease more"
    assert attacked.steps >= 0.85 * 5 * calm.steps


@pytest.mark.slow
def test_the_clock_of_a_lease_stands_while_the_coordinator_answers_its_node_busy() -> None:
    async def main(world: World) -> list[str]:
        states = []
        for busy in (True, False):
            connection = await world.connect()
            key = world.key(connection)
            await key.hello()
            lease = await world.lease(key)
            while world.now() < lease.expires + 3_000:
                if busy:
                    world.coordinator._network.handlers.note_busy(connection.network.peer_id)
                await anyio.sleep(1)
            await key.submit(honest(lease))
            states.append(str(world.value("SELECT state FROM leases WHERE id = ?", lease.id)))
        return states

    received, late = running(replace(SHORT, nodes=()), main)
    assert received in ("received", "decided")
    assert late == "expired"


@pytest.mark.parametrize("sentence", CASES)
def test_each_attack_stands_beside_a_calm_run_that_makes_a_hundred_steps(sentence: str) -> None:
    for quick in (False, True):
        setting = CASES[sentence].at(quick)
        rate = sum(1 / seconds for seconds in setting.nodes) / setting.batch_groups
        assert rate * setting.seconds >= 100


@pytest.mark.slow
def test_peers_that_come_and_go_leave_no_task_behind() -> None:
    samples = churn.measured(hours=0.1, identities=30, count=6)
    first, last = samples[2], samples[-1]
    assert last.came == 30
    assert last.tasks <= first.tasks + 2
    assert last.rows["versions"] > first.rows["versions"], "the run goes on meanwhile"


@pytest.mark.slow
def test_the_rows_of_keys_without_accepted_work_go_with_their_keys() -> None:
    first, *_, last = churn.left(12)
    made_up_groups = first.rows["submissions"]
    assert first.rows["nodes"] == 12
    assert first.rows["leases"] > made_up_groups > 0
    gone = ("nodes", "leases", "submissions", "verdicts")
    assert [last.rows[table] for table in gone] == [0] * len(gone)
    assert last.rows["ends"] == last.rows["refused_tokens"] == last.rows["strikes"] == 0
    assert last.nbytes < first.nbytes
