"""The scorer's loop: verdicts first, then evaluations and answers of canaries."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from echo2.coordinator.environments.task_host import EnvironmentAway, OpenEpisode, TaskFacts
from echo2.coordinator.metrics.views import Evaluation
from echo2.coordinator.publishing.published import Published
from echo2.coordinator.training import scoring_loop
from echo2.coordinator.training.evaluation import EvaluationSet, VersionGone
from echo2.coordinator.training.scoring_loop import AT_HAND, EVALUATION_WAIT_SECONDS, Scoring
from echo2.engines.engine import Job, Sample, SampledTurn
from echo2.protocol.task_kinds import SERVED_KIND
from echo2.runtime.child import ChildError
from echo2.runtime.errors import LocalFault
from echo2.tasks.task import Split
from echo2.tasks.tokenizer import EOS
from tests.support.canary_world import DAVE, ERIN, CanaryWorld
from tests.support.fake_coordinator import until
from tests.support.group_world import BOB, TEXT, World, group, name
from tests.support.hosted_task import HostedTask
from tests.support.scoring_world import StandIns, scoring_over, verdicts, waiting


@pytest.fixture
def scorer() -> StandIns:
    return StandIns()


@pytest.fixture
def scoring(world: World, scorer: StandIns) -> Scoring:
    return scoring_over(world, scorer)


def evaluated(scoring: Scoring, world: World, host: Any) -> dict[int, Any]:
    """Let the learner's version be due for an evaluation; return the results that are recorded."""
    at = world.group_service.progress
    assert at is not None
    results: dict[int, Any] = {}
    history: Any = SimpleNamespace(evaluations=results, add=lambda one: results.update({one.version: one}))
    publisher: Any = SimpleNamespace(latest=Published(at.era, at.version, at.root, b"", b""))
    scoring.history, scoring.publisher = history, publisher
    scoring.evaluation_sets = [EvaluationSet(host, EOS, limit=16, prompts=2)]
    return results


async def test_an_evaluation_waits_for_verdicts_but_not_for_ever(
    world: World, scoring: Scoring, scorer: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = world.group_service.leases
    leases.terms = msgspec.structs.replace(leases.terms, batch_groups=100)
    evaluated(scoring, world, HostedTask(TEXT))
    waiting(world, 1)
    rounds, begun = 0, list[int]()

    def more() -> None:
        world.now += 500
        waiting(world, 1)  # another group has come whenever one is verified

    async def evaluate(*given: Any, **more: Any) -> None:
        begun.append(len(verdicts(world)))
        raise VersionGone

    monkeypatch.setattr(scoring_loop, "evaluate", evaluate)
    scorer.verified = more
    while not begun:
        assert await scoring.round()
        rounds += 1
    assert rounds <= 3
    assert begun[0] >= 4, "two seconds of verdicts went first"


async def test_while_the_learner_lacks_groups_an_evaluation_takes_a_tenth_of_the_time(
    world: World, scoring: Scoring, scorer: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.group_service, "count_buffered", lambda: 0)
    evaluated(scoring, world, HostedTask(TEXT))
    sliced: list[int] = []

    def more() -> None:
        world.now += 6_000
        waiting(world, 1)

    async def evaluate(*given: Any, between: Callable[[], Awaitable[None]], **more: Any) -> None:
        for _ in range(3):
            await between()
            world.now += 4_000
            sliced.append(len(verdicts(world)))
        raise VersionGone

    monkeypatch.setattr(scoring_loop, "evaluate", evaluate)
    scorer.verified = more
    waiting(world, 1)
    while not sliced:
        assert await scoring.round()
    assert [later - one for one, later in pairwise(sliced)] == [6, 6], "36 s of verdicts between two slices of 4 s"
    monkeypatch.setattr(world.group_service, "count_buffered", lambda: world.group_service.terms.batch_groups)
    assert scoring._patience() == EVALUATION_WAIT_SECONDS, "the learner has its next batch"


async def test_an_evaluation_knows_how_long_a_group_takes(
    world: World, scoring: Scoring, scorer: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(scoring, world, HostedTask(TEXT))
    seconds = list[float | None]()

    async def evaluate(*given: Any, verdict_seconds: Callable[[], float | None], **more: Any) -> None:
        seconds.append(verdict_seconds())
        raise VersionGone

    def later() -> None:
        world.now += 3_000

    monkeypatch.setattr(scoring_loop, "evaluate", evaluate)
    assert await scoring.round()
    scorer.verified = later
    scoring._failed_evaluations.clear()
    waiting(world, 1)
    while len(seconds) < 2:
        await scoring.round()
    assert seconds == [None, 3.0]


async def test_no_evaluation_begins_while_the_learner_waits_for_groups_on_their_way_but_not_for_ever(
    world: World, scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = list[int]()

    async def evaluate(*given: Any, **more: Any) -> None:
        begun.append(world.now)
        raise VersionGone

    monkeypatch.setattr(scoring_loop, "evaluate", evaluate)
    leases, since = world.group_service.leases, world.now
    evaluated(scoring, world, HostedTask(TEXT))
    world.lease()
    leases.window.wait(since)
    assert not await scoring.round()
    world.now += 1_999
    assert not await scoring.round()
    assert begun == []
    world.now += 1
    assert await scoring.round()
    assert begun == [since + 2_000]


async def test_rounds_that_find_the_learner_waiting_have_one_look_together(
    world: World, scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[bool]()

    class CountedEvent(asyncio.Event):
        def set(self) -> None:
            looks.append(True)

    monkeypatch.setattr(scoring_loop, "LOOK_SECONDS", 0.01)
    scoring.arrived = CountedEvent()
    evaluated(scoring, world, HostedTask(TEXT))
    world.lease()
    world.group_service.leases.window.wait(world.now)
    for _ in range(20):
        assert not await scoring.round()
    looks.clear()
    await asyncio.sleep(0.1)
    assert len(looks) == 1


async def test_where_no_group_is_on_its_way_or_the_learner_does_not_wait_an_evaluation_begins_at_once(
    world: World, scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def evaluate(*given: Any, **more: Any) -> None:
        raise VersionGone

    monkeypatch.setattr(scoring_loop, "evaluate", evaluate)
    window = world.group_service.leases.window
    evaluated(scoring, world, HostedTask(TEXT))
    window.wait(world.now)
    assert await scoring.round(), "nothing is leased"
    scoring._failed_evaluations.clear()
    world.lease()
    assert not await scoring.round()
    window.stop()
    assert await scoring.round(), "the learner makes a step, or is paused"


async def test_between_two_slices_the_groups_are_awaited_for_which_the_learner_waits(
    world: World, scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = list[int]()

    async def evaluate(*given: Any, between: Callable[[], Awaitable[None]], **more: Any) -> None:
        lease = world.lease()
        world.group_service.leases.window.wait(world.now)
        comes = asyncio.create_task(between())
        await asyncio.sleep(0.01)
        assert not comes.done(), "the learner waits for it"
        world.submit(group(lease))
        scoring.arrived.set()
        await comes
        judged.append(len(verdicts(world)))
        raise VersionGone

    monkeypatch.setattr(scoring_loop, "evaluate", evaluate)
    evaluated(scoring, world, HostedTask(TEXT))
    assert await scoring.round()
    assert judged == [1]


@pytest.mark.parametrize(
    ("error", "attempts", "renewed"), [(VersionGone(), 1, 0), (ChildError("ValueError", "absurd"), 2, 2)]
)
async def test_an_evaluation_of_a_version_that_is_gone_or_at_which_the_scorer_fails_twice_is_left_out(
    world: World,
    scoring: Scoring,
    scorer: StandIns,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    attempts: int,
    renewed: int,
) -> None:
    results, tried = evaluated(scoring, world, HostedTask(TEXT)), 0

    async def evaluate(*given: Any, **more: Any) -> None:
        nonlocal tried
        tried += 1
        raise error

    monkeypatch.setattr(scoring_loop, "evaluate", evaluate)
    for _ in range(attempts):
        assert await scoring.round()
    assert not await scoring.round()
    assert (tried, scorer.renewed, results) == (attempts, renewed, {})


@pytest.mark.parametrize(("patience", "without", "ends"), [(3, 2, 0), (3, 3, 1), (3, 4, 1), (None, 99, 0)])
async def test_a_run_ends_once_so_many_evaluations_in_a_row_were_no_better(
    world: World, scoring: Scoring, monkeypatch: pytest.MonkeyPatch, patience: int | None, without: int, ends: int
) -> None:
    ended: list[int] = []

    async def evaluate(*given: Any, **more: Any) -> Evaluation:
        return Evaluation(version=0, at=0, prompts=2, sampled=0.5, greedy=0.5)

    evaluated(scoring, world, HostedTask(TEXT))
    monkeypatch.setattr(scoring_loop, "evaluate", evaluate)
    guarding: Any = SimpleNamespace(
        examining=lambda latest: None, on_evaluation=lambda *given: None, exams_without_best=without
    )
    scoring.guarding, scoring.stop_after = guarding, patience
    scoring.end_run = lambda: ended.append(1) or 7
    assert await scoring.round()
    assert len(ended) == ends


def test_a_run_whose_settings_cannot_be_written_goes_on_and_says_so(scoring: Scoring) -> None:
    def full() -> int:
        raise LocalFault("cannot write coordinator.toml (No space left on device): nothing is changed")

    scoring.stop_after, scoring.end_run = 1, full
    with capture_logs() as logs:
        scoring._stop_when_stale(1)
    assert "after a restart the run goes on" in logs[0]["event"]


async def test_memory_that_lacks_for_a_group_between_two_slices_is_no_failure_of_the_evaluation(
    world: World, scoring: Scoring, scorer: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(scoring, world, HostedTask(TEXT))
    tried = 0

    async def evaluate(*given: Any, between: Callable[[], Awaitable[None]], **more: Any) -> None:
        nonlocal tried
        tried += 1
        if tried == 1:
            (lease,) = waiting(world, 1)
            scorer.errors[lease] = [ChildError("NoMemory", "the device has no memory left")] * 2
        await between()
        raise VersionGone

    monkeypatch.setattr(scoring_loop, "evaluate", evaluate)
    with pytest.raises(ChildError, match="no memory left"):
        await scoring.round()
    while tried < 2:
        assert await scoring.round()
    assert [verdict for verdict, _ in verdicts(world).values()] == ["accepted"]


# --- canaries (rule 4, and rule 8 of group_visits.py)


class AnsweringScorer(StandIns):
    """A scorer that also generates. `asked`: the jobs. `ends`: as those of a `GroupVerifier`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Job] = []
        self.ends = (EOS,)
        self.fails = False

    async def generate_all(self, jobs: list[Job]) -> list[list[Sample]]:
        self.asked += jobs
        if self.fails:
            raise ChildError("EngineError", "it cannot")
        return [[Sample(tokens=[5, EOS], turns=[2], logprobs=[-0.5, -0.5]) for _ in job.seeds] for job in jobs]


@pytest.fixture
def canaries(tmp_path: Path) -> tuple[CanaryWorld, AnsweringScorer, Scoring]:
    world, scorer = CanaryWorld(tmp_path), AnsweringScorer()
    world.prove(BOB)
    scoring = scoring_over(world, scorer)
    return world, scorer, scoring


async def test_a_canary_that_agrees_is_decided_without_the_scorer_and_without_its_weights(
    canaries: tuple[CanaryWorld, AnsweringScorer, Scoring],
) -> None:
    world, scorer, scoring = canaries
    world.answered(world.given(BOB))
    scorer.available = False
    passed: list[int] = []
    scorer.verified = lambda: passed.append(1)
    canary = world.joins(DAVE)
    world.submit(group(canary), DAVE)
    await scoring.round()
    assert verdicts(world)[canary.id] == ("accepted", "canary")
    assert not passed
    assert scorer.at is None


async def test_a_canary_that_differs_is_scored_in_the_same_visit_as_other_groups(
    canaries: tuple[CanaryWorld, AnsweringScorer, Scoring],
) -> None:
    world, scorer, scoring = canaries
    world.answered(world.given(BOB))
    canary, other = world.joins(DAVE), world.given(BOB)
    passed: list[int] = []
    scorer.verified = lambda: passed.append(1)
    world.submit(group(canary, texts=["4", "4"]), DAVE)
    world.submit(group(other), BOB)
    await scoring.round()
    assert [verdicts(world)[one.id][0] for one in (canary, other)] == ["accepted", "accepted"]
    assert len(passed) == 2


async def test_answers_take_a_twentieth_of_the_time_and_a_hundredth_while_the_learner_lacks_groups(
    canaries: tuple[CanaryWorld, AnsweringScorer, Scoring],
) -> None:
    world, scorer, scoring = canaries
    scorer.verified = lambda: None
    for newcomer in range(3):
        world.joins(name("newcomer", newcomer, 32))
    world.given(BOB)
    scoring.clock = scoring.visits.clock = lambda: (world.now + 2_000 * len(scorer.asked)) / 1000  # an answer takes 2 s
    assert await scoring.round()
    ended = scoring.clock()
    assert world.group_service.count_buffered() < world.group_service.terms.batch_groups
    assert scoring._answers_from() == pytest.approx(ended + 198)
    world.now += 100_000
    assert not await scoring.round()
    for _ in range(world.group_service.terms.batch_groups):
        world.submit(group(lease := world.given(BOB)), lease.node)
    world.decide_all()
    assert scoring._answers_from() == pytest.approx(ended + 38)
    assert await scoring.round()
    assert len(scorer.asked) == 2


async def test_an_answer_that_was_wanted_is_made_in_idle_time(
    canaries: tuple[CanaryWorld, AnsweringScorer, Scoring],
) -> None:
    world, scorer, scoring = canaries
    world.joins(DAVE)
    lease = world.given(BOB)
    world.submit(group(lease), BOB)
    assert await scoring.round()  # a group comes first
    assert not scorer.asked
    assert await scoring.round()
    (job,) = scorer.asked
    assert (job.split, job.eos, len(job.seeds)) == ("train", EOS, world.group_service.terms.group_size)
    assert world.group_service.database.value("SELECT count(*) FROM canary_answers") == 1
    scorer.fails = True
    world.joins(ERIN)
    assert await scoring.round()
    assert scorer.renewed == 1
    assert world.group_service.database.value("SELECT count(*) FROM canary_answers") == 1


# --- environments that are slow, or away (rule 5)


class SlowTask(HostedTask):
    """A task whose environment poses held-out prompts, and scores held-out answers, once `free` is set."""

    def __init__(self) -> None:
        super().__init__(TEXT)
        self.free = asyncio.Event()

    async def prompt(self, split: Split, index: int) -> list[int]:
        await self.free.wait()
        return await super().prompt(split, index)


@pytest.fixture
def generating(scoring: Scoring) -> AnsweringScorer:
    """A scorer that generates, in the place of the usual one."""
    scorer: Any = AnsweringScorer()
    scoring.scorer = scoring.visits.scorer = scoring.visits.weights = scoring.visits.verifier = scorer
    return scorer


async def test_an_environment_that_poses_no_prompts_keeps_no_verdict_waiting(
    world: World, scoring: Scoring, generating: AnsweringScorer
) -> None:
    host = SlowTask()
    results = evaluated(scoring, world, host)
    running = asyncio.create_task(scoring.run())
    await asyncio.sleep(2 * AT_HAND)
    at, before = world.group_service.progress, len(verdicts(world))
    leases = waiting(world, 3, at.version)
    scoring.arrived.set()
    await until(lambda: len(verdicts(world)) == before + len(leases))
    assert results == {}
    host.free.set()
    await until(lambda: results)
    running.cancel()
    assert results[at.version].prompts == 2


class AwayTask(HostedTask):
    """A served task that cannot be opened `times` times."""

    def __init__(self, times: int) -> None:
        super().__init__(TEXT)
        self.times = times

    @property
    def facts(self) -> TaskFacts:
        return super().facts._replace(kind=SERVED_KIND)

    def episode(self, *place: Any, **more: Any) -> OpenEpisode:
        if self.times:
            self.times -= 1
            raise EnvironmentAway("it was not open after 300 s")
        return super().episode(*place, **more)


async def test_an_evaluation_whose_environment_is_away_is_put_off_and_made_later(
    world: World, scoring: Scoring, generating: AnsweringScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echo2.coordinator.training.scoring_loop.SCORER_AWAY_SECONDS", 0.05)

    async def generate_served(job: Job, play: Any) -> list[Sample]:
        await play(SampledTurn(served=job.served, sample=0, turn_number=0, tokens=[5, EOS], logprobs=[-0.5, -0.5]))
        return [Sample(tokens=[5, EOS], turns=[2], logprobs=[-0.5, -0.5])]

    generating.generate_served = generate_served  # type: ignore[attr-defined]
    task, began = AwayTask(3), world.now
    scoring.clock = scoring.visits.clock = lambda: began / 1000 + asyncio.get_running_loop().time()
    results = evaluated(scoring, world, task)
    running = asyncio.create_task(scoring.run())
    await until(lambda: results)
    running.cancel()
    assert (task.times, len(results)) == (0, 1)
