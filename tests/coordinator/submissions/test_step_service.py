"""Turns of served episodes: who may send which, what is answered, and what a group's submission is compared with."""

import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echo2.coordinator.environments.task_host import TurnAnswer
from echo2.coordinator.submissions.step_service import LATEST_ASK_MS, SHARES, SOONEST_ASK_MS, AskedStep
from echo2.coordinator.verdicts.token_storage import CHALLENGE_WINDOW_MS
from echo2.ledger.audited_work import KNOWN_AUDITED_GROUPS
from echo2.protocol.authority import TaskReference
from echo2.protocol.group_weights import whole_weight
from echo2.protocol.leases import Lease, LeaseReport, Submission
from echo2.protocol.requests import Refusal
from echo2.protocol.steps import StepRequest, StepResponse
from echo2.protocol.task_kinds import OPENED_KIND, SERVED_KIND
from echo2.tasks.task import Score
from tests.support.group_world import ALICE, BOB, EOS, SPEC, World, group, name, rollout

GIVEN = [7, 8]
SPOKEN = [5, EOS]
WON = TurnAnswer(None, Score(1.0, True))
TASK = TaskReference(name="guess", version=1, kind=SERVED_KIND)


@pytest.fixture
def world(tmp_path: Path) -> World:
    one = World(tmp_path, spec=msgspec.structs.replace(SPEC, tasks=[TASK]), batch_groups=10)
    one.group_service.accounts.remark(ALICE, "node.vouched", "", one.now)
    return one


def turn_of(lease: Lease, /, **changes: Any) -> StepRequest:
    fields: dict[str, Any] = {"lease": lease.id, "sample": 0, "turn_number": 0, "tokens": SPOKEN}
    return StepRequest(**(fields | changes))


def send(world: World, request: StepRequest, node: bytes = ALICE) -> StepResponse | Refusal:
    return world.group_service.steps.step(node, request, world.now)


def code(world: World, request: StepRequest, node: bytes = ALICE) -> str:
    answer = send(world, request, node)
    return answer.code


async def answer(world: World, said: TurnAnswer | None, seconds: float = 0.0) -> AskedStep:
    """Let the environment answer the next turn that waits, after so many seconds."""
    asked = await world.group_service.steps.take("guess", lambda: world.now / 1000)
    world.now += int(1000 * seconds)
    world.group_service.steps.on_answer(asked, said, seconds, world.now)
    return asked


async def play(world: World, lease: Lease, node: bytes = ALICE, end: TurnAnswer | None = WON) -> Submission:
    """Play all episodes of a lease, two turns each; return the group."""
    for sample in range(len(lease.seeds)):
        for number, said in ((0, TurnAnswer(GIVEN)), (2, end)):
            assert code(world, turn_of(lease, sample=sample, turn_number=number), node) == "step-pending"
            await answer(world, said)
    tokens = [*SPOKEN, *GIVEN, *SPOKEN]
    one = rollout(lease, "", tokens=tokens, turns=[2, 2, 2], logprobs=rollout(lease, "555").logprobs)
    return group(lease, rollouts=[one for _ in lease.seeds])


def rows(world: World, table: str) -> int:
    return int(world.group_service.database.value(f"SELECT count(*) FROM {table}"))


async def test_a_turn_waits_for_the_environment_and_then_has_its_answer_for_good(world: World) -> None:
    lease = world.lease()
    assert code(world, turn_of(lease)) == "step-pending"
    asked = await answer(world, TurnAnswer(GIVEN))
    assert (asked.sampled, asked.past, asked.last) == (SPOKEN, [], False)
    for _ in range(2):
        assert send(world, turn_of(lease)) == StepResponse(given=GIVEN, expires=lease.expires)
    assert code(world, turn_of(lease, turn_number=2)) == "step-pending"
    assert (await answer(world, WON)).past == [SPOKEN, GIVEN]
    assert send(world, turn_of(lease, turn_number=2)) == StepResponse(given=None, expires=lease.expires)


@pytest.mark.parametrize(
    ("changes", "refused"),
    {
        "no such lease": ({"lease": name("no lease", 1)}, "unknown-lease"),
        "a sample that the group lacks": ({"sample": 2}, "step"),
        "a given turn": ({"turn_number": 1}, "step"),
        "a turn out of order": ({"turn_number": 2}, "step"),
        "no token": ({"tokens": []}, "turns"),
        "a token that the model lacks": ({"tokens": [99_999, EOS]}, "tokens"),
        "tokens after the end": ({"tokens": [EOS, 5, EOS]}, "end"),
        "a turn that stops early": ({"tokens": [5, 6]}, "end"),
        "more than the limit": ({"tokens": [5] * 9}, "turns"),
    }.values(),
)
async def test_a_turn_that_cannot_be_is_refused_before_the_environment_sees_it(
    world: World, changes: dict[str, Any], refused: str
) -> None:
    lease = world.lease()
    assert code(world, turn_of(lease, **changes)) == refused
    assert rows(world, "steps") == rows(world, "strikes") == 0


OPENED_TASK = TaskReference(name="guess", version=1, kind=OPENED_KIND)


@pytest.fixture
def opened(tmp_path: Path) -> World:
    one = World(tmp_path, spec=msgspec.structs.replace(SPEC, tasks=[OPENED_TASK]))
    return one


async def test_the_first_turn_of_an_opened_episode_has_no_tokens_and_is_answered_with_the_rest_of_its_prompt(
    opened: World,
) -> None:
    lease = opened.lease()
    opening = turn_of(lease, tokens=[])
    assert code(opened, opening) == "step-pending"
    assert (await answer(opened, TurnAnswer(GIVEN))).past == []
    assert send(opened, opening) == StepResponse(given=GIVEN, expires=lease.expires)
    assert code(opened, turn_of(lease)) == "other-bytes"
    assert code(opened, turn_of(lease, turn_number=2, tokens=[])) == "turns"
    assert code(opened, turn_of(lease, turn_number=2)) == "step-pending"
    assert (await answer(opened, WON)).past == [[], GIVEN]


async def test_an_opened_episode_that_begins_with_sampled_tokens_is_refused(opened: World) -> None:
    lease = opened.lease()
    assert code(opened, turn_of(lease)) == "turns"
    assert code(opened, turn_of(lease, turn_number=2)) == "step"
    assert rows(opened, "steps") == rows(opened, "strikes") == 0


async def test_a_new_key_has_one_opened_episode_at_a_time(opened: World) -> None:
    lease = opened.lease()
    assert code(opened, turn_of(lease, tokens=[])) == "step-pending"
    assert code(opened, turn_of(lease, sample=1, tokens=[])) == "one-episode"


async def test_nobody_steps_the_episode_of_another_key(world: World) -> None:
    assert code(world, turn_of(world.lease()), BOB) == "not-owner"


async def test_other_tokens_for_a_written_turn_are_evidence_and_no_strike(world: World) -> None:
    lease = world.lease()
    assert code(world, turn_of(lease)) == "step-pending"
    for token in (6, 7):
        assert code(world, turn_of(lease, tokens=[token, EOS])) == "other-bytes"
    assert (rows(world, "evidence"), rows(world, "strikes")) == (1, 0)
    await answer(world, TurnAnswer(GIVEN))
    assert send(world, turn_of(lease)) == StepResponse(given=GIVEN, expires=lease.expires)


async def test_other_tokens_for_a_turn_are_forgotten_with_a_lease_that_is_never_submitted(world: World) -> None:
    lease = world.lease()
    send(world, turn_of(lease))
    assert code(world, turn_of(lease, tokens=[6, EOS])) == "other-bytes"
    await answer(world, TurnAnswer(GIVEN))
    world.now += 86_400_000
    while world.group_service.tick(world.now):
        pass
    assert rows(world, "refused_tokens") == 1

    world.group_service.forget([], 10, 1, world.now + CHALLENGE_WINDOW_MS + 1)

    assert [rows(world, table) for table in ("leases", "evidence", "refused_tokens")] == [0, 0, 0]


async def test_no_turn_comes_after_the_end(world: World) -> None:
    lease = world.lease()
    send(world, turn_of(lease))
    assert code(world, turn_of(lease, turn_number=2)) == "step"  # no answer yet
    await answer(world, WON)
    assert code(world, turn_of(lease, turn_number=2)) == "step"


async def test_the_turn_at_the_limit_is_the_last(world: World) -> None:
    lease = world.lease()
    send(world, turn_of(lease, tokens=[5] * 8))
    assert (await answer(world, WON)).last


async def test_a_turn_for_a_lease_that_has_ended_is_late_and_its_rows_are_gone(world: World) -> None:
    lease = world.lease()
    send(world, turn_of(lease))
    world.group_service.take_report(ALICE, LeaseReport(returned=[lease.id]), world.now)
    assert code(world, turn_of(lease)) == "late"
    world.group_service.tick(world.now)
    await answer(world, WON) if world.group_service.steps.answer_event(lease.id, 0) else None
    assert rows(world, "steps") == 0


async def test_a_new_key_has_one_episode_open_at_a_time(world: World) -> None:
    lease = world.lease(BOB)
    assert code(world, turn_of(lease), BOB) == "step-pending"
    assert code(world, turn_of(lease, sample=1), BOB) == "one-episode"
    await answer(world, WON)
    assert code(world, turn_of(lease, sample=1), BOB) == "step-pending"


async def test_the_lease_of_a_turn_that_waits_does_not_expire(world: World) -> None:
    lease = world.lease()
    send(world, turn_of(lease))
    asked = await world.group_service.steps.take("guess", lambda: world.now / 1000)
    for _ in range(300):
        world.now += 1_000
        world.group_service.tick(world.now)
    world.group_service.steps.on_answer(asked, TurnAnswer(GIVEN), 300.0, world.now)
    assert send(world, turn_of(lease)) == StepResponse(given=GIVEN, expires=lease.expires + 300_000)
    world.now += lease.expires - lease.sent + 1
    assert code(world, turn_of(lease, turn_number=2)) == "late"


async def test_a_lease_stands_for_a_time_bounded_by_the_standing_of_its_key(world: World) -> None:
    for node, rank in ((BOB, "new"), (ALICE, "known")):
        lease = world.lease(node)
        send(world, turn_of(lease), node)
        most = SHARES[rank] * 10_000 * len(lease.seeds)  # type: ignore[index]
        for _ in range(2):
            world.now += most
            world.group_service.steps.tick(world.now)
        record = world.group_service.leases.find(lease.id)
        assert record.expires == lease.expires + most


async def test_a_turn_that_waits_goes_with_its_lease_and_leaves_nothing(world: World) -> None:
    steps = world.group_service.steps
    first, second = world.lease(), world.lease()
    send(world, turn_of(first))
    await answer(world, TurnAnswer(GIVEN), seconds=1.0)
    for lease in (first, second):
        send(world, turn_of(lease, turn_number=2 if lease is first else 0))
    world.group_service.take_report(ALICE, LeaseReport(returned=[first.id]), world.now)
    assert (await steps.take("guess", lambda: world.now / 1000)).lease == second
    send(world, turn_of(second, sample=1))
    world.group_service.take_report(ALICE, LeaseReport(returned=[second.id]), world.now)
    steps.tick(world.now)
    assert (steps.answer_event(second.id, 1), len(steps._queues["guess"].queue), steps._spent) == (None, 0, {})


async def test_short_waits_add_up_before_they_move_the_end_of_the_lease(world: World) -> None:
    lease = world.lease()
    moved = list[int]()
    for turn_number in range(0, 8, 2):
        send(world, turn_of(lease, turn_number=turn_number))
        world.now += 40
        await answer(world, TurnAnswer(GIVEN))
        moved.append(send(world, turn_of(lease, turn_number=turn_number)).expires - lease.expires)
    assert moved == [0, 0, 120, 120]


async def test_the_time_of_an_environment_that_never_answers_runs_out(world: World) -> None:
    lease = world.lease()
    send(world, turn_of(lease))
    longest = max(world.group_service.terms.most_ms, SHARES["proven"] * 10_000 * len(lease.seeds))
    for _ in range(100):
        world.now += longest // 50
        world.group_service.tick(world.now)
    assert rows(world, "leases WHERE state = 'expired'") == 1
    assert rows(world, "steps") == 0
    assert world.group_service.steps.answer_event(lease.id, 0) is None


async def test_the_environments_time_for_a_lease_is_bounded_by_the_keys_standing(world: World) -> None:
    steps = world.group_service.steps
    for node, rank in ((BOB, "new"), (ALICE, "known")):
        lease = world.lease(node)
        most = SHARES[rank] * 10.0 * len(lease.seeds)  # type: ignore[index]
        send(world, turn_of(lease), node)
        assert not steps.time_is_up(await answer(world, TurnAnswer(GIVEN), seconds=most - 1))
        send(world, turn_of(lease, turn_number=2), node)
        await answer(world, TurnAnswer(GIVEN), seconds=2.0)
        send(world, turn_of(lease, turn_number=4), node)
        assert steps.time_is_up(await steps.take("guess", lambda: world.now / 1000))


async def test_a_turn_that_was_written_before_a_restart_is_answered_after_it(world: World) -> None:
    lease = world.lease()
    send(world, turn_of(lease))
    await answer(world, TurnAnswer(GIVEN))
    send(world, turn_of(lease, turn_number=2))
    world.reopen(away=1_000)
    answered = send(world, turn_of(lease))
    assert answered.given == GIVEN
    assert code(world, turn_of(lease, turn_number=2)) == "step-pending"
    assert (await answer(world, WON)).past == [SPOKEN, GIVEN]


@pytest.mark.parametrize("end", [WON, None], ids=["over", "failed"])
async def test_an_end_that_was_written_and_not_sent_is_sent_after_a_restart(
    world: World, end: TurnAnswer | None
) -> None:
    lease = world.lease()
    send(world, turn_of(lease))
    await answer(world, end)
    world.reopen(away=1_000)
    for _ in range(2):
        answered = send(world, turn_of(lease))
        assert answered.given is None
    assert code(world, turn_of(lease, turn_number=2)) == "step"


async def test_a_group_is_rewarded_by_what_its_episodes_ended_with(world: World) -> None:
    lease = world.lease()
    world.submit(await play(world, lease))
    (receipt,) = world.decide_all()
    assert (receipt.verdict, receipt.code, receipt.trainable) == ("accepted", "ok", True)
    assert rows(world, "steps") == 0
    assert code(world, turn_of(lease)) == "step"  # the group was submitted


async def test_a_group_with_an_episode_that_failed_is_paid_and_not_learned_from(world: World) -> None:
    lease = world.lease()
    submission = await play(world, lease, end=None)
    world.group_service.episodes.of("guess").note_undecided(lease.id, "it broke")
    world.submit(submission)
    (receipt,) = world.decide_all()
    assert (receipt.verdict, receipt.code, receipt.trainable) == ("accepted", "task-score", False)
    assert receipt.weight > 0
    assert list(world.group_service.episodes.of("guess").failed) == [True, False]


async def unopened(world: World, lease: Lease, node: bytes, played: int = 0) -> Submission:
    """Let the environment fail to open the episodes of a lease, but for the first `played`; return the group."""
    rollouts = []
    for sample in range(len(lease.seeds)):
        assert code(world, turn_of(lease, sample=sample, tokens=[]), node) == "step-pending"
        await answer(world, TurnAnswer(GIVEN) if sample < played else None)
        tokens, turns = list[int](), [0]
        if sample < played:
            assert code(world, turn_of(lease, sample=sample, turn_number=2), node) == "step-pending"
            await answer(world, WON)
            tokens, turns = [*GIVEN, *SPOKEN], [0, len(GIVEN), len(SPOKEN)]
        logprobs = struct.pack(f"<{sum(turns[2:])}f", *[-0.5] * sum(turns[2:]))
        rollouts.append(rollout(lease, "", tokens=tokens, turns=turns, logprobs=logprobs))
    return group(lease, rollouts=rollouts)


async def test_groups_of_which_no_episode_was_opened_earn_nothing_and_make_no_key_known(opened: World) -> None:
    for _ in range(KNOWN_AUDITED_GROUPS + 1):
        lease = opened.lease(BOB)
        opened.submit(await unopened(opened, lease, BOB), BOB)
        (receipt,) = opened.decide_all()
        assert (receipt.verdict, receipt.code, receipt.weight) == ("accepted", "task-score", 0)
    assert opened.group_service.accounts.of(BOB, opened.now).rank == "new"
    opened.group_service.ledger.verify()


async def test_a_rollout_that_was_not_opened_earns_nothing_and_the_others_of_its_group_do(opened: World) -> None:
    lease = opened.lease(BOB)
    opened.submit(await unopened(opened, lease, BOB, played=1), BOB)
    (receipt,) = opened.decide_all()
    assert receipt.weight == whole_weight(None, len(lease.prompt) + len(GIVEN) + len(SPOKEN), [()])


async def test_a_group_with_other_turns_than_those_answered_is_refused(world: World) -> None:
    lease = world.lease()
    submission = await play(world, lease)
    one = submission.rollouts[0]
    forged = msgspec.structs.replace(one, tokens=[*SPOKEN, 7, 9, *SPOKEN])
    rollouts = [submission.rollouts[0], forged]
    receipt = world.refused(msgspec.structs.replace(submission, rollouts=rollouts))
    assert (receipt.code, "sample 1" in receipt.reason.lower()) == ("transcript", True)


async def test_a_group_whose_episodes_are_not_over_is_refused(world: World) -> None:
    lease = world.lease()
    assert world.refused(group(lease)).code == "transcript"


async def test_slow_turns_of_new_keys_make_no_known_key_wait(world: World) -> None:
    for number in range(20):
        node = name("free key", number, 32)
        send(world, turn_of(world.lease(node)), node)
        if number < 3:
            await answer(world, WON, seconds=300.0)
    crowd = world.lease(BOB)
    refused = send(world, turn_of(crowd), BOB)
    assert refused.retry_after == LATEST_ASK_MS
    refused = send(world, turn_of(world.lease()))
    assert refused.retry_after == SOONEST_ASK_MS


async def test_the_wait_for_a_slow_environment_grows_to_a_bound(world: World) -> None:
    lease = world.lease()
    for _ in range(3):
        send(world, turn_of(lease))
        await answer(world, WON, seconds=300.0)
        lease = world.lease()
    answered = send(world, turn_of(lease))
    assert answered.retry_after == LATEST_ASK_MS


async def test_turns_beside_a_slow_task_are_asked_for_as_soon_as_their_own_is_quick(tmp_path: Path) -> None:
    other = TaskReference(name="reverse", version=1, kind=SERVED_KIND)
    world = World(tmp_path, spec=msgspec.structs.replace(SPEC, tasks=[TASK, other]), batch_groups=100)
    world.group_service.accounts.remark(ALICE, "node.vouched", "", world.now)

    def lease_of(task: str) -> Lease:
        return next(lease for lease in (world.lease() for _ in range(8)) if lease.task == task)

    for _ in range(3):
        send(world, turn_of(lease_of("guess")))
        await answer(world, WON, seconds=300.0)
    waits = [send(world, turn_of(lease_of(task))) for task in ("guess", "reverse")]
    assert [one.retry_after for one in waits if isinstance(one, Refusal)] == [LATEST_ASK_MS, SOONEST_ASK_MS]
