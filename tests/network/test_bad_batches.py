"""Bad batches do not end a run: the real coordinator on the in-memory network, with a learner that fails."""

import json
import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.learner.messages import Batch, Open, Opened, Stepped
from echo2.coordinator.metrics import run_metrics
from echo2.coordinator.training.model_processes import DiedComputing
from echo2.coordinator.verdicts.token_storage import CHALLENGE_WINDOW_MS
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Receipt
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.errors import DiskFull
from echo2.tasks.arithmetic import REVERSE_TASK
from echo2.tasks.task import Score
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.swarm import BigramLearner, Swarm, accepted, make_swarm, step, wall, working


class Failing(BigramLearner):
    """A learner that fails. `fails(batch)`: the error to raise for it, or None. `asked`: the groups of each batch
    received."""

    def __init__(self, folder: Path, fails: Callable[[list[bytes]], Exception | None]) -> None:
        super().__init__(folder)
        self.fails = fails
        self.asked: list[list[bytes]] = []
        self.renewed = 0
        self.unopenable: Exception | None = None

    async def open(self, order: Open) -> Opened:
        if self.unopenable is not None:
            raise self.unopenable
        return await super().open(order)

    async def step(self, batch: Batch) -> Stepped:
        self.asked.append(batch.groups)
        error = self.fails(batch.groups)
        if error is not None:
            await anyio.sleep(self.seconds / 2)
            raise error
        return await super().step(batch)

    async def renew(self) -> None:
        self.renewed += 1


@asynccontextmanager
async def lasting(swarm: Swarm, *, nodes: int = 1) -> AsyncIterator[Coordinator]:
    """Run a coordinator with nodes at work; the test fails if the coordinator ends by itself."""
    try:
        async with swarm.coordinating() as coordinator, working(*(swarm.node(f"node{n}") for n in range(nodes))):
            yield coordinator
    except BaseExceptionGroup as group:
        leaf: BaseException = group
        while isinstance(leaf, BaseExceptionGroup):
            leaf = leaf.exceptions[0]
        if isinstance(leaf, TimeoutError):
            raise AssertionError("what should have come did not come in time") from group
        if isinstance(leaf, AssertionError | DiskFull):
            raise leaf from group
        raise AssertionError(f"the coordinator ended by itself: {type(leaf).__name__}: {leaf}") from group


def failing_swarm(folder: Path, **run: Any) -> tuple[Swarm, Failing]:
    swarm = make_swarm(folder, **run)
    swarm.learner = learner = Failing(folder / "failing", lambda batch: None)
    return swarm, learner


def picture(coordinator: Coordinator) -> dict[str, Any]:
    """Return the run as `/api/v1/run` shows it."""
    return json.loads(msgspec.json.encode(coordinator.view_builder.build()))


def paused(coordinator: Coordinator) -> bool:
    return coordinator.learning.training.watch.pause is not None and picture(coordinator)["phase"] == "paused"


@on_fake_clock
async def test_a_batch_at_which_the_learner_fails_twice_is_set_aside_paid_all_the_same_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    swarm, learner = failing_swarm(tmp_path)
    bad: list[bytes] = []

    def fails(batch: list[bytes]) -> Exception | None:
        if not bad and len(learner.batches) == 2:
            bad.extend(batch)
        return ChildError("ValueError", "a reward is absurd") if set(bad) & set(batch) else None

    learner.fails = fails
    async with lasting(swarm) as coordinator:
        await until(lambda: step(coordinator) >= 8, 600)
        group_service, now = coordinator.group_service, int(wall() * 1000)
        assert [batch for batch in learner.asked if set(batch) & set(bad)] == [bad, bad], "the same one, once more"
        assert learner.renewed == 2
        stored = group_service.database.all("SELECT lease, reason, at FROM set_aside")
        assert {lease for lease, _, _ in stored} == set(bad)
        assert {reason for _, reason, _ in stored} == {"ValueError: a reward is absurd"}
        for lease in bad:
            query = "SELECT verdict, trainable, weight FROM verdicts WHERE lease = ?"
            verdict, trainable, weight = group_service.database.one(query, (lease,)) or ()
            assert (verdict, trainable) == ("accepted", 1)
            assert weight > 0
        seen = picture(coordinator)
        assert seen["trouble"]["reasons"] == {"ValueError: a reward is absurd": len(bad)}
        # The counts agree: groups set aside are neither buffered nor too old, and no room is kept for them.
        drawn = group_service.database.value("SELECT count(*) FROM temp.drawn")
        total = group_service.database.value("SELECT count(*) FROM buffer")
        at = step(coordinator)
        too_old = group_service.database.value(
            "SELECT count(*) FROM buffer WHERE version < ? AND lease NOT IN (SELECT lease FROM temp.drawn)"
            " AND lease NOT IN (SELECT lease FROM set_aside)",
            (at - group_service.terms.staleness,),
        )
        assert total == drawn + len(bad) + group_service.count_buffered() + too_old
        dropped = group_service.forget([], at, 1, now + CHALLENGE_WINDOW_MS + 3_600_000)
        gone = {row[0] for row in group_service.database.all("SELECT lease FROM submissions WHERE payload IS NULL")}
        assert dropped > 0
        assert set(bad) <= gone, "nothing can ask for their tokens any more"
    async with lasting(swarm, nodes=0) as coordinator:
        assert picture(coordinator)["trouble"]["reasons"] == {"ValueError: a reward is absurd": len(bad)}
        await until(lambda: step(coordinator) >= 8, 600)
        assert len([batch for batch in learner.asked if set(batch) & set(bad)]) == 2, "a restart does not forget"


@pytest.mark.slow
@on_fake_clock
async def test_an_error_that_does_not_come_again_costs_no_group(tmp_path: Path) -> None:
    swarm, learner = failing_swarm(tmp_path)
    chance = random.Random(0)
    last: list[list[bytes]] = []

    def fails(batch: list[bytes]) -> Exception | None:
        if last[-1:] != [batch] and chance.random() < 0.5:
            last.append(batch)
            return ChildError("RuntimeError", "a cosmic ray")
        return None

    learner.fails = fails
    async with lasting(swarm) as coordinator:
        await until(lambda: step(coordinator) >= 12, 600)
        assert len(last) >= 3
        assert coordinator.group_service.database.value("SELECT count(*) FROM set_aside") == 0
        for batch in last:
            place = learner.asked.index(batch)
            assert learner.asked[place + 1] == batch


@pytest.mark.slow
@on_fake_clock
async def test_three_batches_in_a_row_pause_the_run_and_the_next_is_tried_by_itself_ever_later(tmp_path: Path) -> None:
    swarm, learner = failing_swarm(tmp_path)
    learner.fails = lambda batch: ChildError("ValueError", "nothing goes")
    async with lasting(swarm) as coordinator:
        await until(lambda: paused(coordinator), 600)
        began = anyio.current_time()
        assert len(learner.asked) == 6
        assert picture(coordinator)["trouble"]["paused"]["why"] == (
            "the learner failed at 3 batches in a row, the last time by ValueError: nothing goes"
        )
        await anyio.sleep(120)
        leases = coordinator.group_service.database.value("SELECT count(*) FROM leases")
        await anyio.sleep(460)
        assert coordinator.group_service.database.value("SELECT count(*) FROM leases") == leases, "leases stop"
        assert len(learner.asked) == 6
        await until(lambda: len(learner.asked) == 8, 60)
        assert 598 <= anyio.current_time() - began <= 610
        again = anyio.current_time()
        await until(lambda: len(learner.asked) == 10, 3000)
        await until(lambda: paused(coordinator), 10)
        # The pause lasts 1200 s, and its end is looked for every second. Of the two groups of a batch one waits in
        # the buffer. The other is leased when the node asks again, at most 12 s after its last refusal (10 s, of
        # which a node waits up to a fifth more), and takes 2 s with the two tries of the learner.
        assert 1199 <= anyio.current_time() - again <= 1200 + 1 + 12 + 2
        # The operator repairs the learner, and continues the run at once.
        learner.fails = lambda batch: None
        assert coordinator.learning.training.watch.resume()
        await until(lambda: step(coordinator) >= 3, 30)
        assert picture(coordinator)["phase"] == "learning"


@pytest.mark.slow
@on_fake_clock
async def test_a_pause_outlives_the_process_and_nodes_go_on_delivering_meanwhile(tmp_path: Path) -> None:
    swarm, learner = failing_swarm(tmp_path)
    async with lasting(swarm) as coordinator:
        await until(lambda: step(coordinator) >= 2, 600)
        coordinator.learning.training.watch.stop("the room gets too hot")
        at = step(coordinator)
        await anyio.sleep(60)
        assert step(coordinator) <= at + 1, "the step under way is made"
        counts = run_metrics.counts(coordinator.group_service.database, int(wall() * 1000))
        assert (counts.running, counts.undecided) == (0, 0), "what was out came back, and was decided"
        assert accepted(swarm.nodes[0]) == counts.accepted
    at = learner.step_number
    async with lasting(swarm) as coordinator:
        await anyio.sleep(60)
        assert picture(coordinator)["trouble"]["paused"]["why"] == "the room gets too hot"
        assert learner.step_number == at
        coordinator.learning.training.watch.resume()
        await until(lambda: step(coordinator) >= at + 3, 60)


@pytest.mark.slow
@on_fake_clock
async def test_a_batch_of_which_the_learner_dies_three_times_in_a_row_is_set_aside(tmp_path: Path) -> None:
    swarm, learner = failing_swarm(tmp_path)
    bad: list[bytes] = []

    def fails(batch: list[bytes]) -> Exception | None:
        if not bad and len(learner.batches) == 1:
            bad.extend(batch)
        return DiedComputing("learner", -9, "killed") if set(bad) & set(batch) else None

    learner.fails = fails
    async with lasting(swarm) as coordinator:
        with anyio.move_on_after(600):
            await until(lambda: step(coordinator) >= 4, 599)
        assert step(coordinator) >= 4, f"the same batch was tried {len(learner.asked) - 1} times"
        assert len([batch for batch in learner.asked if set(batch) & set(bad)]) == 3


@on_fake_clock
async def test_deaths_that_are_not_the_batchs_are_never_charged_to_it(tmp_path: Path) -> None:
    swarm, learner = failing_swarm(tmp_path)
    deaths = 0

    def fails(batch: list[bytes]) -> Exception | None:
        nonlocal deaths
        deaths += 1
        return ChildDied("learner", -9, "killed before it began") if deaths <= 10 else None

    learner.fails = fails
    async with lasting(swarm) as coordinator:
        await until(lambda: step(coordinator) >= 2, 600)
        assert coordinator.group_service.database.value("SELECT count(*) FROM set_aside") == 0


@pytest.mark.slow
@on_fake_clock
async def test_a_device_that_went_missing_is_waited_for_and_charges_no_batch(tmp_path: Path) -> None:
    swarm, learner = failing_swarm(tmp_path)

    def fails(batch: list[bytes]) -> Exception | None:
        if len(learner.batches) == 2 and learner.unopenable is None:
            learner.unopenable = ChildError("RuntimeError", "No CUDA GPUs are available")
            return ChildError("RuntimeError", "CUDA error: unspecified launch failure")
        return None

    learner.fails = fails
    async with lasting(swarm) as coordinator:
        await until(lambda: learner.unopenable is not None, 600)
        await anyio.sleep(60)
        shown = picture(coordinator)["trouble"]["paused"]
        assert (shown["kind"], "No CUDA GPUs are available" in shown["why"]) == ("learner", True)
        learner.unopenable = None
        learner.fails = lambda batch: ChildError("OnceMore", "x") if len(learner.asked) == 4 else None
        await until(lambda: step(coordinator) >= 5, 700)
        assert coordinator.group_service.database.value("SELECT count(*) FROM set_aside") == 0


@pytest.mark.slow
@on_fake_clock
async def test_a_full_disk_charges_no_batch_and_ends_the_coordinator_as_ever(tmp_path: Path) -> None:
    swarm, learner = failing_swarm(tmp_path)
    learner.fails = lambda batch: DiskFull("no room for the checkpoint") if len(learner.batches) == 2 else None
    with pytest.raises(DiskFull):
        async with lasting(swarm) as coordinator:
            await until(lambda: step(coordinator) >= 5, 600)
    learner.fails = lambda batch: None
    async with lasting(swarm) as coordinator:
        await until(lambda: step(coordinator) >= 5, 600)
        assert learner.asked[2] == learner.asked[3]


@pytest.mark.slow
@on_fake_clock
async def test_rewards_that_are_not_finite_are_paid_and_too_many_of_them_pause_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = False

    def score(self: Any) -> Score:
        return Score(math.nan, False) if bad else Score(float(len(self._tokens) % 3), False)

    episode = type(REVERSE_TASK.episode("train", 0, _Letters()))
    monkeypatch.setattr(episode, "reply", lambda self, sampled: setattr(self, "_tokens", sampled))
    monkeypatch.setattr(episode, "score", score)
    swarm, _ = failing_swarm(tmp_path)
    async with lasting(swarm) as coordinator:
        await until(lambda: step(coordinator) >= 3, 600)
        bad = True
        await until(lambda: paused(coordinator), 600)
        seen = picture(coordinator)
        assert "the task gave no finite reward for" in seen["trouble"]["paused"]["why"]
        assert seen["unscored"] >= 11
        await until(lambda: accepted(swarm.nodes[0]) == seen["accepted"], 120)  # receipts come with a later request
        at, bad = step(coordinator), False
        await until(lambda: step(coordinator) >= at + 3, 700)
        assert not any(math.isnan(point["reward"]) for point in picture(coordinator)["steps"])


class _Letters:
    eos, size, ends = 1, 64, (1,)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % 60 + 2 for letter in text]

    def decode(self, tokens: Any) -> str:
        return ""


@pytest.mark.slow
@on_fake_clock
async def test_an_evaluation_at_which_the_scorer_fails_is_tried_again_and_then_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm, _ = failing_swarm(tmp_path)
    honest, asked = swarm.scorer.generate_all, 0

    async def fails(jobs: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked in (3, 4):  # the first evaluation calls the scorer twice: sampled, and greedy
            raise ChildError("EngineError", "log-probabilities that are not finite")
        return await honest(jobs)

    monkeypatch.setattr(swarm.scorer, "generate_all", fails)
    with capture_logs() as said:
        async with lasting(swarm) as coordinator:
            await until(lambda: len(coordinator.learning.training.history.evaluations) >= 3, 900)
            evaluated = {one["version"] for one in picture(coordinator)["evaluations"]}
    failed = [one["version"] for one in said if one["event"] == "scorer failed at an evaluation"]
    assert len(failed) == 2
    assert failed[0] != failed[1] or failed[0] not in evaluated
    assert swarm.scorer.renewed == 2


@pytest.mark.slow
@on_fake_clock
async def test_a_group_of_which_the_scorer_dies_again_and_again_is_refused_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm, learner = failing_swarm(tmp_path)
    honest, poison = swarm.scorer.score, set[int]()

    async def score(job: Any, samples: Any) -> Any:
        if not poison and len(learner.asked) >= 3:
            poison.add(job.index)
        if job.index in poison:
            await anyio.sleep(1)
            swarm.scorer.forget()
            raise ChildDied("scorer", -9, "out of memory")
        return await honest(job, samples)

    monkeypatch.setattr(swarm.scorer, "score", score)
    async with lasting(swarm, nodes=3) as coordinator:
        await until(lambda: step(coordinator) >= 8, 600)
        refused = picture(coordinator)["refused"]
        assert set(refused) == {"not-scorable"}
        (reason,) = {receipt.reason for receipt in receipts_of(coordinator) if receipt.code == "not-scorable"}
        assert "the scorer died of it 3 times" in reason


def receipts_of(coordinator: Coordinator) -> list[Receipt]:
    rows = coordinator.group_service.database.all("SELECT receipt FROM verdicts")
    return [decode(decode_unverified(sealed).payload, Receipt) for (sealed,) in rows]


@pytest.mark.slow
@on_fake_clock
async def test_an_evaluation_of_which_the_scorer_dies_again_and_again_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm, _ = failing_swarm(tmp_path, steps=4)

    async def dies(jobs: Any) -> Any:
        await anyio.sleep(1)
        swarm.scorer.forget()
        raise ChildDied("scorer", -9, "out of memory")

    monkeypatch.setattr(swarm.scorer, "generate_all", dies)
    async with lasting(swarm) as coordinator:
        await until(lambda: coordinator.learning.training.finished.is_set(), 600)
        await until(lambda: coordinator.learning.scoring.is_settled(), 600)
        assert not picture(coordinator)["refused"]
        assert not picture(coordinator)["evaluations"]


@pytest.mark.usefixtures("slow_ticks")
@pytest.mark.slow
@on_fake_clock
async def test_a_wait_for_groups_is_said_on_the_page_after_a_minute_and_in_the_log_after_an_hour(
    tmp_path: Path,
) -> None:
    swarm, _ = failing_swarm(tmp_path)
    async with lasting(swarm, nodes=0) as coordinator:
        await anyio.sleep(50)
        assert "no node has asked for a lease" not in json.dumps(picture(coordinator))
        with capture_logs() as said:
            await anyio.sleep(30)
            assert "no node has asked for a lease" in json.dumps(picture(coordinator))
            assert not [one for one in said if one["log_level"] == "warning"]
            await anyio.sleep(3600)
        (warning,) = [one for one in said if one["log_level"] == "warning"]
        assert "no node has asked for a lease" in warning["what"]
        async with working(swarm.node("late")):
            await until(lambda: step(coordinator) >= 2, 600)
            assert "no node has asked for a lease" not in json.dumps(picture(coordinator))
