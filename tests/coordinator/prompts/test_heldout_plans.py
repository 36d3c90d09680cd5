"""Held-out groups: who gets one, how often, and that nothing of them reaches the learner."""

import sqlite3
from collections.abc import Iterator

import pytest

from echo2.coordinator.prompts.heldout_plans import KEPT, PART, ClosedPlan, HeldoutPrompt, PromptKey
from echo2.coordinator.prompts.pass_rates import PromptAnswers
from echo2.coordinator.prompts.prompts import Prompt
from echo2.engines.engine import SampleScore
from echo2.protocol.leases import Lease, Receipt
from echo2.tasks.task import prompt_of
from tests.support.group_world import ALICE, BOB, SPEC, TASKS, TEXT, World, group, name, root_of
from tests.support.ledger_sums import check_sums

TASK = SPEC.tasks[0]
GROUPS = 3
CAROL = name("key", 3, 32)


def prompts(number: int = GROUPS) -> dict[PromptKey, HeldoutPrompt]:
    task = TASKS[TASK.name, TASK.version]
    return {
        PromptKey(task.name, index): HeldoutPrompt(
            Prompt(task.name, task.version, index, list(prompt_of(task, "heldout", index, TEXT))),
            [name("heldout seed", 10 * index + sample) for sample in range(SPEC.group_size)],
        )
        for index in range(number)
    }


@pytest.fixture
def planned(world: World) -> Iterator[World]:
    """A world whose version 0 has a plan of three groups; Alice and Bob are known."""
    for node in (ALICE, BOB):
        world.group_service.accounts.remark(node, "node.vouched", "a key that is known", world.now)
    plan(world)
    yield world
    check_sums(world.group_service.database)


def plan(world: World, version: int = 0, number: int = GROUPS) -> None:
    plans = world.group_service.leases.heldout
    plans.prompts = prompts(number)
    plans.plan(1, version, root_of(1, version), world.now)


def heldout_lease(world: World, node: bytes = ALICE, version: int = 0) -> Lease | None:
    """Ask for a lease; return it if it is a held-out one."""
    lease = world.lease(node, version, heldout=True)
    return lease if lease.split == "heldout" else None


def bring(world: World, lease: Lease) -> Receipt:
    world.submit(group(lease), lease.node)
    (receipt,) = world.decide_all()
    return receipt


def closed(world: World) -> list[ClosedPlan]:
    return world.group_service.leases.heldout.close(world.now)


def test_a_known_node_gets_every_fourth_lease_of_a_version_from_the_plan(planned: World) -> None:
    splits = [planned.lease(ALICE, heldout=True).split for _ in range(6)]
    assert splits == ["heldout", "train", "train", "train", "heldout", "train"]
    assert splits.index("heldout", 1) == PART


def test_leases_that_were_not_held_out_between_two_plans_are_made_up_for_by_one_plan_at_most(planned: World) -> None:
    plans = planned.group_service.leases.heldout
    for _ in range(100):
        plans.note_lease(heldout=False)
    splits = [planned.lease(ALICE, heldout=True).split for _ in range(GROUPS)]
    assert splits == ["heldout"] * GROUPS
    assert plans.share.credit == 1 - PART


def test_the_lease_names_the_prompt_and_the_seeds_of_every_version(planned: World) -> None:
    lease = heldout_lease(planned)
    assert lease is not None
    wanted = prompts()[PromptKey(TASK.name, 0)]
    assert (lease.index, lease.prompt, lease.seeds) == (0, wanted.prompt.tokens, wanted.seeds)


@pytest.mark.parametrize("reason", ["an older node", "a new key"])
def test_some_nodes_get_none(planned: World, reason: str) -> None:
    if reason == "an older node":
        leases = [planned.lease(ALICE) for _ in range(6)]
    else:
        leases = [planned.lease(CAROL, heldout=True) for _ in range(6)]
    assert {lease.split for lease in leases} == {"train"}


def test_without_room_for_training_the_plan_is_leased_whole(planned: World) -> None:
    while isinstance(planned.group_service.lease(BOB, planned.ask(), planned.now), bytes):
        pass
    leases = [heldout_lease(planned) for _ in range(GROUPS)]
    assert [lease is not None for lease in leases] == [True] * GROUPS
    assert planned.refusal(node=ALICE, heldout=True).code in ("no-room", "rate-share")


def test_a_heldout_group_takes_no_room_and_is_paid_but_never_learned_from(planned: World) -> None:
    before = planned.group_service.shortage(planned.now)
    lease = heldout_lease(planned)
    assert lease is not None
    assert planned.group_service.shortage(planned.now).running == before.running
    planned.submit(group(lease))
    assert planned.group_service.shortage(planned.now).undecided == 0
    assert planned.group_service.oldest_needed() == (1, 0)
    (receipt,) = planned.decide_all()
    assert (receipt.verdict, receipt.code, receipt.trainable) == ("accepted", "heldout", False)
    assert receipt.weight > 0
    assert planned.group_service.buffered() == 0
    assert planned.group_service.database.value("SELECT count(*) FROM task_results") == 0


def test_no_program_can_put_a_heldout_group_into_the_buffer(planned: World) -> None:
    lease = heldout_lease(planned)
    assert lease is not None
    with pytest.raises(sqlite3.IntegrityError, match="no place in the buffer"):
        planned.group_service.database.do("INSERT INTO buffer VALUES (?, 1, 0, 0, 1, NULL, NULL, 0)", (lease.id,))


def test_a_lease_that_expires_goes_to_another_node_and_then_to_the_scorer(planned: World) -> None:
    plans, lost = planned.group_service.leases.heldout, heldout_lease(planned)
    assert lost is not None
    planned.now = lost.expires + 1
    planned.group_service.tick(planned.now)
    own, second = plans.next_group(1, 0, ALICE), plans.next_group(1, 0, BOB)
    assert own is not None
    assert second is not None
    assert (own.key.number, second.key.number, second.leases) == (1, 0, 1)
    again = planned.lease(BOB, heldout=True)
    while again.split != "heldout":
        again = planned.lease(BOB, heldout=True)
    assert (again.index, again.seeds) == (lost.index, lost.seeds)
    planned.now = again.expires + 1
    planned.group_service.tick(planned.now)
    assert [one.key.number for one in plans.left_to_scorer(10)] == [0]
    assert planned.group_service.database.value("SELECT count(*) FROM again WHERE position < 0") == 0


def test_a_group_that_is_refused_never_counts_is_a_strike_and_is_generated_by_others(planned: World) -> None:
    plans = planned.group_service.leases.heldout
    for node, number in ((ALICE, 1), (BOB, 2)):
        lease = heldout_lease(planned, node)
        while lease is None:
            lease = heldout_lease(planned, node)
        assert lease.index == 0
        planned.submit(group(lease), node)
        (waiting,) = planned.group_service.undecided()
        wrong = [SampleScore(logprobs=[-0.5] * 4, margins=[9.0] * 4) for _ in lease.seeds]
        receipt = planned.decide(waiting, wrong)
        assert (receipt.verdict, receipt.code) == ("refused", "seeded-choice")
        rows = planned.group_service.database.value("SELECT count(*) FROM strikes")
        assert rows == number
        answered = "SELECT count(*) FROM heldout_groups WHERE state = 'answered'"
        assert planned.group_service.database.value(answered) == 0
    assert [one.key.number for one in plans.left_to_scorer(10)] == [0]


def test_a_result_stands_once_every_group_is_in(planned: World) -> None:
    plans = planned.group_service.leases.heldout
    brought = [lease for _ in range(PART + 1) if (lease := heldout_lease(planned, BOB)) is not None]
    assert len(brought) == 2
    for lease in brought:
        bring(planned, lease)
    assert closed(planned) == []
    plans.leave_to_scorer(1, finished=True)
    (left,) = plans.left_to_scorer(10)
    plans.answered(left.id, PromptAnswers(SPEC.group_size, 1), by_operator=True)
    (one,) = closed(planned)
    assert [group.by_operator for group in one.groups] == [False, False, True]
    assert one.rate is not None
    assert one.rate.pass_1 == pytest.approx(sum(g.answers.solved for g in one.groups) / (GROUPS * SPEC.group_size))
    assert plans.best() == (1, 0)
    assert planned.group_service.database.value("SELECT count(*) FROM heldout_groups") == 0


def test_groups_that_no_node_took_go_to_the_scorer_two_versions_later(planned: World) -> None:
    plans = planned.group_service.leases.heldout
    for version in (1, 2):
        plans.leave_to_scorer(1, finished=False)
        assert plans.left_to_scorer(10) == []
        planned.learner_at(version)
    assert planned.group_service.oldest_needed() == (1, 0)
    plans.leave_to_scorer(1, finished=False)
    assert len(plans.left_to_scorer(10)) == GROUPS
    assert len(plans.left_to_scorer(2)) == 2


def test_a_group_whose_version_is_gone_leaves_its_plan_without_a_result(planned: World) -> None:
    plans = planned.group_service.leases.heldout
    plans.leave_to_scorer(2, finished=False)  # the learner is in another era by now
    plans.lose(1, 0)
    (one,) = closed(planned)
    assert one.rate is None
    assert plans.best() is None


def test_a_restart_goes_on_with_the_plan(planned: World) -> None:
    first = heldout_lease(planned)
    assert first is not None
    planned.reopen()
    planned.group_service.leases.heldout.prompts = prompts()
    assert bring(planned, first).code == "heldout"
    second = heldout_lease(planned)
    assert second is not None
    assert second.index == 1


def test_the_best_of_many_results_stays_and_the_table_does_not_grow(world: World) -> None:
    plans, best = world.group_service.leases.heldout, 7
    for version in range(KEPT + 20):
        world.publish(version)
        plan(world, version, 1)
        plans.leave_to_scorer(1, finished=True)
        (left,) = plans.left_to_scorer(10)
        plans.answered(left.id, PromptAnswers(SPEC.group_size, int(version == best)), by_operator=True)
        plans.close(world.now)
    assert plans.best() == (1, best)
    assert world.group_service.database.value("SELECT count(*) FROM heldout_plans") == KEPT + 1
