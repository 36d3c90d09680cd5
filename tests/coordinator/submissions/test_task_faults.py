"""A task that fails or gives no finite reward: valid work is paid, and is not learned from."""

import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.command_line.over_time_report import seen_group, stored_rows
from echo2.coordinator.learner.batches.batch_groups import read
from echo2.coordinator.metrics import run_metrics
from echo2.coordinator.verdicts import task_results
from echo2.coordinator.verdicts.stored_rollouts import Wanted, list_groups
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.engines.engine import SampleScore
from echo2.protocol.leases import Lease
from echo2.tasks import registry
from echo2.tasks.arithmetic import REVERSE_TASK
from echo2.tasks.task import Episode, Score, Split, Task, Tokenizer
from echo2.tasks.tokenizer import CHAR_SIZE, EOS
from tests.support import group_world
from tests.support.group_world import World, group, honest_scores

INF, NAN = math.inf, math.nan


class BentEpisode:
    """An episode of `reverse` with a given score or reply."""

    def __init__(self, episode: Episode, score: Callable[[], object], reply: Callable[[], object]) -> None:
        self._episode, self._score, self._reply = episode, score, reply

    @property
    def prompt(self) -> Sequence[int]:
        return self._episode.prompt

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        bent = self._reply()
        return self._episode.reply(sampled) if bent is None else bent  # type: ignore[return-value]

    def score(self) -> Score:
        score = self._score()
        return score if isinstance(score, Score) else Score(score, False)  # type: ignore[arg-type]


class BentTask:
    """`reverse` with given scores. `scores`: of the episodes, in order."""

    name, version = REVERSE_TASK.name, REVERSE_TASK.version

    def __init__(self, scores: Sequence[Callable[[], object]], reply: Callable[[], object] = lambda: None) -> None:
        self._scores, self._next, self._reply = list(scores), 0, reply

    def size(self, split: Split) -> int:
        return REVERSE_TASK.size(split)

    def episode(self, split: Split, index: int, text: Tokenizer) -> BentEpisode:
        self._next += 1
        return BentEpisode(
            REVERSE_TASK.episode(split, index, text), self._scores[(self._next - 1) % len(self._scores)], self._reply
        )

    def demonstration(self, split: Split, index: int, text: Tokenizer, seed: int, noise: float) -> Sequence[int]:
        return REVERSE_TASK.demonstration(split, index, text, seed, noise)


def fail() -> None:
    raise ZeroDivisionError("a task's own mistake")


def bend(monkeypatch: pytest.MonkeyPatch, task: Task) -> None:
    monkeypatch.setitem(group_world.TASKS, (REVERSE_TASK.name, REVERSE_TASK.version), task)


def one_waits(world: World) -> tuple[Lease, Undecided]:
    lease = world.lease()
    world.submit(group(lease))
    (waiting,) = world.group_service.list_undecided()
    return lease, waiting


@pytest.mark.parametrize(
    "bad",
    [lambda: NAN, lambda: INF, lambda: -INF, lambda: 1e300, lambda: 10**400, lambda: None, lambda: "1.0", fail],
    ids=["nan", "inf", "-inf", "beyond float32", "an integer beyond float", "None", "text", "an exception"],
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_reward_that_is_not_finite_is_paid_and_never_enters_the_buffer(
    world: World, monkeypatch: pytest.MonkeyPatch, bad: Callable[[], object], place: int
) -> None:
    scores: list[Callable[[], object]] = [lambda: 1.0, lambda: 1.0]
    scores[place] = bad
    bend(monkeypatch, BentTask(scores))
    lease, waiting = one_waits(world)
    receipt = world.decide(waiting, honest_scores(waiting.submission))
    assert (receipt.verdict, receipt.code, receipt.trainable, receipt.weight) == ("accepted", "task-score", False, 140)
    assert "no finite reward" in receipt.reason
    assert world.group_service.database.value("SELECT count(*) FROM buffer") == 0
    assert world.group_service.count_buffered() == 0
    stored = world.group_service.database.value("SELECT scores FROM submissions WHERE lease = ?", (lease.id,))
    assert [one is None for one in msgspec.msgpack.decode(stored)] == [number == place for number in (0, 1)]
    assert sum(world.group_service.ledger.balances().values()) == 0
    counts = run_metrics.counts(world.group_service.database, world.now)
    assert (counts.accepted, counts.unscored, counts.too_old) == (1, 1, 0)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_rollout_without_a_reward_is_masked_and_the_group_is_learned_from_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    world = World(tmp_path, spec=msgspec.structs.replace(group_world.SPEC, group_size=3))
    scores: list[Callable[[], object]] = [lambda: 1.0, lambda: 0.25, lambda: 0.5]
    scores[place] = fail
    bend(monkeypatch, BentTask(scores))
    lease, waiting = one_waits(world)
    receipt = world.decide(waiting, honest_scores(waiting.submission))
    assert (receipt.verdict, receipt.code, receipt.trainable) == ("accepted", "ok", True)
    assert receipt.weight == 210, "the masked one is paid like the others"
    assert world.group_service.count_buffered() == 1
    (learned,) = read(tmp_path / "run.sqlite", [lease.id])
    left = [reward for number, reward in enumerate((1.0, 0.25, 0.5)) if number != place]
    assert [sample.reward for sample in learned.samples] == left
    assert [len(sample.tokens) for sample in learned.samples] == [len(sample.behaviour) for sample in learned.samples]
    sums = task_results.recent(world.group_service.database)["reverse"]
    assert (sums.groups, sums.rollouts, sums.missing, sums.unscored) == (1, 2, 1, 0)
    for order in ("newest", "best", "worst"):
        (shown,) = list_groups(world.group_service.database, group_world.TEXT, Wanted(order=order))
        assert [answer.reward for answer in shown.answers] == [*left[:place], None, *left[place:]]
        assert shown.reward == pytest.approx(sum(left) / 2)
    (seen,) = [seen_group(*row) for row in stored_rows(world.group_service.database)]
    assert list(seen.rewards) == left
    assert list(world.group_service.recent_verdicts.missing["reverse"]) == [pytest.approx(1 / 3)]


def test_wrong_work_is_refused_for_any_score_of_the_task(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bend(monkeypatch, BentTask([lambda: NAN]))
    _, waiting = one_waits(world)
    scores = honest_scores(waiting.submission)
    scores[1].margins[2] = 0.01
    receipt = world.decide(waiting, scores)
    assert (receipt.verdict, receipt.code, receipt.weight) == ("refused", "seeded-choice", 0)


def test_a_restart_between_receipt_and_verdict_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bend(monkeypatch, BentTask([lambda: NAN]))
    one_waits(world)
    world.reopen()
    (receipt,) = world.decide_all()
    assert (receipt.verdict, receipt.code) == ("accepted", "task-score")


def test_an_episode_that_fails_at_the_last_turn_is_paid_since_all_of_it_was_checked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bend(monkeypatch, BentTask([lambda: 1.0], reply=fail))
    _, waiting = one_waits(world)
    receipt = world.decide(waiting, honest_scores(waiting.submission))
    assert (receipt.verdict, receipt.code) == ("accepted", "task-score")


def test_a_transcript_at_which_the_task_fails_half_way_cannot_be_checked_and_is_not_paid(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bend(monkeypatch, BentTask([lambda: 1.0], reply=fail))
    lease = world.lease()
    submission = group(lease, ["12", "34"])
    two = submission.rollouts[0]
    longer = msgspec.structs.replace(
        two, tokens=[*two.tokens, 5, *two.tokens], turns=[3, 1, 3], logprobs=two.logprobs * 2
    )
    receipt = world.refused(msgspec.structs.replace(submission, rollouts=[longer, submission.rollouts[1]]))
    assert (receipt.code, receipt.weight) == ("not-scorable", 0)
    assert "reply raised ZeroDivisionError" in receipt.reason


def nan_logprob(scores: list[SampleScore]) -> None:
    scores[1].logprobs[0] = NAN


def nan_margin(scores: list[SampleScore]) -> None:
    scores[0].margins[-1] = NAN


def one_short(scores: list[SampleScore]) -> None:
    scores[0].logprobs.pop()


def one_sample(scores: list[SampleScore]) -> None:
    scores.pop()


@pytest.mark.parametrize("bent", [nan_logprob, nan_margin, one_short, one_sample])
def test_a_scorers_value_that_is_not_a_number_refuses_the_group_and_ends_nothing(
    world: World, bent: Callable[[list[SampleScore]], None]
) -> None:
    _, waiting = one_waits(world)
    scores = honest_scores(waiting.submission)
    bent(scores)
    try:
        receipt = world.decide(waiting, scores)
    except ValueError as error:
        raise AssertionError("the scorer's value ended the coordinator") from error
    assert (receipt.verdict, receipt.code, receipt.weight) == ("refused", "not-scorable", 0)
    assert world.group_service.list_undecided() == []


class Gaps:
    """`reverse` without some prompts. `missing`: their places in the order of the requests, from 0."""

    name, version = REVERSE_TASK.name, REVERSE_TASK.version

    def __init__(self, missing: Callable[[int], bool]) -> None:
        self._missing, self.asked = missing, 0

    def size(self, split: Split) -> int:
        return REVERSE_TASK.size(split)

    def episode(self, split: Split, index: int, text: Tokenizer) -> Episode:
        self.asked += 1
        if self._missing(self.asked - 1):
            raise SystemExit("no such row")
        return REVERSE_TASK.episode(split, index, text)

    def demonstration(self, split: Split, index: int, text: Tokenizer, seed: int, noise: float) -> Sequence[int]:
        return REVERSE_TASK.demonstration(split, index, text, seed, noise)


def test_a_prompt_that_the_task_cannot_give_is_left_out(tmp_path: Path) -> None:
    world = World(tmp_path, task=Gaps(lambda asked: asked < 3))
    world.lease()
    assert world.group_service.database.value("SELECT position FROM leases") == 3
    assert run_metrics.counts(world.group_service.database, world.now).skipped == {"no-prompt": 3}


def test_a_task_without_any_prompt_is_waited_for_and_ends_nothing(tmp_path: Path) -> None:
    task = Gaps(lambda asked: asked < 20)
    world = World(tmp_path, task=task)
    refused = [world.refusal() for _ in range(6)]
    assert {(one.code, one.retry_after) for one in refused} == {("no-prompt", 60_000)}
    assert task.asked == 16, "an ask that is refused for it runs no task code"
    world.now += 60_000
    assert world.lease()
    assert world.group_service.database.value("SELECT position FROM leases") == 20
    assert run_metrics.counts(world.group_service.database, world.now).skipped == {"no-prompt": 20}


@pytest.mark.parametrize("reply", [5, "no tokens"])
def test_a_reply_that_is_no_tokens_is_the_tasks_fault(
    world: World, monkeypatch: pytest.MonkeyPatch, reply: object
) -> None:
    bend(monkeypatch, BentTask([lambda: 1.0], reply=lambda: reply))
    _, waiting = one_waits(world)
    receipt = world.decide(waiting, honest_scores(waiting.submission))
    assert (receipt.verdict, receipt.code) == ("accepted", "task-score")


def test_a_task_that_wants_to_end_the_program_ends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave() -> None:
        raise SystemExit(3)

    bend(monkeypatch, BentTask([lambda: 1.0], reply=leave))
    _, waiting = one_waits(world)
    receipt = world.decide(waiting, honest_scores(waiting.submission))
    assert (receipt.verdict, receipt.code) == ("accepted", "task-score")


@pytest.mark.parametrize("task", ["reverse", "guess"])
def test_a_token_that_only_the_model_has_is_no_fault_of_the_task(task: str, tmp_path: Path) -> None:
    """Else a node could end leases at the operator's expense, and stop the run by groups without a reward."""
    tasks = [registry.get(task, 1)]
    spec = msgspec.structs.replace(group_world.SPEC, vocabulary=CHAR_SIZE + 8)
    world = World(tmp_path, spec=spec, task=tasks[0])
    lease = world.lease()
    foreign = [CHAR_SIZE + 3, EOS]
    rollouts = [
        group_world.rollout(lease, "", tokens=foreign, turns=[2], logprobs=struct.pack("<2f", -0.5, -0.5))
        for _ in lease.seeds
    ]
    world.submit(group(lease, rollouts=rollouts))
    (receipt,) = world.decide_all()
    assert (receipt.code, receipt.trainable) == ("ok", True)
