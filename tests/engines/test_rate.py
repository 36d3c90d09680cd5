"""The rate of an engine: its rows are filled, warm-up is left out, and a failing group ends the measurement."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo2.engines.engine import EngineError, EngineRows, Finished, Job
from echo2.engines.rate import (
    MOST_WARM_UP_SECONDS,
    PROMPT_TOKENS,
    STEADY_SECONDS,
    Rate,
    TaskShare,
    Workload,
    by_weight,
    measure,
)
from echo2.tasks import tokenizer

WORK = Workload(tasks=(TaskShare(name="reverse", version=1),), limit=8, group=4, eos=tokenizer.EOS)
GYM = TaskShare(name="gym", version=1, single_turn=True)


class CountingEngine:
    """Runs rows on a clock of its own, one second per step. `limits`: most rows, per step; the last one stays. Groups
    last `length` steps."""

    def __init__(self, limits: list[int], length: int = 4, fails_at: int | None = None) -> None:
        self.now, self.limits, self.length, self.fails_at = 0.0, limits, length, fails_at
        self.groups: dict[int, tuple[int, int]] = {}
        """Ticket -> rows, steps left."""
        self.cancelled: list[int] = []

    @property
    def rows(self) -> EngineRows:
        limit = self.limits[min(int(self.now), len(self.limits) - 1)]
        wanted = sum(rows for rows, _ in self.groups.values())
        running = min(limit, wanted)
        return EngineRows(running=running if self.now else 0, waiting=wanted - running, limit=limit)

    def begin(self, ticket: int, job: Job) -> None:
        self.groups[ticket] = len(job.seeds), self.length

    def cancel(self, ticket: int) -> None:
        self.cancelled.append(ticket)
        del self.groups[ticket]

    def step(self) -> list[Finished]:
        self.now += 1.0
        if self.fails_at is not None and self.now >= self.fails_at:
            return [Finished(1, EngineError("out of memory: no rollout of this length fits"))]
        self.groups = {ticket: (rows, left - 1) for ticket, (rows, left) in self.groups.items()}
        ended = [ticket for ticket, (_, left) in self.groups.items() if not left]
        for ticket in ended:
            del self.groups[ticket]
        return [Finished(ticket, []) for ticket in ended]


def jobs() -> Iterator[Job]:
    for index in itertools.count():
        yield Job(
            prompt=[1], seeds=[bytes(16)] * 4, limit=8, eos=1, task="reverse", task_version=1, split="train",
            index=index,
        )  # fmt: skip


def measured(engine: CountingEngine, seconds: float = 5.0) -> Rate:
    return measure(engine, jobs(), seconds, lambda: engine.now, lambda: engine.now / 2)  # type: ignore[arg-type]


def test_all_rows_are_filled_and_their_tokens_counted() -> None:
    engine = CountingEngine([16])
    rate = measured(engine)
    assert (rate.tokens, rate.seconds, rate.cpu_seconds, rate.rows) == (80, 5.0, 2.5, 16)
    assert (rate.per_second, rate.per_cpu_second) == (16.0, 32.0)
    assert engine.cancelled
    assert not engine.groups


def test_jobs_of_a_task_whose_code_is_at_the_operator_have_drawn_prompts_within_the_context(tmp_path: Path) -> None:
    tokenizer.char_tokenizer().save(str(tmp_path / "tokenizer.json"))
    work = Workload(tasks=(GYM,), limit=8, group=2, eos=tokenizer.EOS)
    first, second = itertools.islice(work.jobs(tmp_path), 2)
    assert (len(first.prompt), first.single_turn, first.prompt != second.prompt) == (PROMPT_TOKENS, True, True)
    assert max(first.prompt) < tokenizer.CHAR_SIZE
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 20}')
    assert len(next(work.jobs(tmp_path)).prompt) == 12


def test_the_jobs_of_several_tasks_come_in_the_proportion_of_their_weights(tmp_path: Path) -> None:
    tokenizer.char_tokenizer().save(str(tmp_path / "tokenizer.json"))
    add = TaskShare(name="add", version=1, weight=3)
    work = Workload(tasks=(GYM, add, TaskShare(name="reverse", version=1, weight=2)), limit=8, group=2, eos=1)
    made_jobs = list(itertools.islice(work.jobs(tmp_path), 12))
    names = [job.task for job in made_jobs]
    assert (names[:6].count("add"), names[:6].count("reverse"), names[:6].count("gym")) == (3, 2, 1)
    assert sorted(names[:6]) == sorted(names[6:])
    assert [(job.single_turn, job.index) for job in made_jobs if job.task == "gym"] == [(True, 0), (True, 1)]
    assert len({job.seeds[0] for job in made_jobs}) == 12
    assert [one.name for one in itertools.islice(by_weight((add,)), 2)] == ["add", "add"]


def test_the_measurement_begins_once_the_number_of_rows_is_steady() -> None:
    engine = CountingEngine([2, 2, 2, 4, 4, 8, 8, 32])
    assert measured(engine).per_second == 32.0
    assert engine.now >= 7 + STEADY_SECONDS + 5


def test_a_number_of_rows_that_is_never_steady_is_measured_all_the_same() -> None:
    engine = CountingEngine(list(range(1, 100)))
    assert measured(engine).seconds == 5.0
    assert engine.now <= MOST_WARM_UP_SECONDS + 8


def test_a_group_that_fails_ends_the_measurement_and_leaves_nothing_under_way() -> None:
    engine = CountingEngine([4], fails_at=6)
    with pytest.raises(EngineError, match="no rollout of this length fits"):
        measured(engine)


def test_the_jobs_are_those_of_the_run_s_task(tmp_path: Path) -> None:
    tokenizer.char_tokenizer().save(str(tmp_path / "tokenizer.json"))
    first, second = itertools.islice(WORK.jobs(tmp_path), 2)
    assert (first.limit, len(first.seeds), first.task, first.index, second.index) == (8, 4, "reverse", 0, 1)
    assert first.prompt
    assert first.prompt != second.prompt
    assert len({*first.seeds, *second.seeds}) == 8


@pytest.mark.parametrize(
    ("rows", "per_second", "seconds"), [(1, 35, 16 * 8_192 / 35), (45, 1_800, 8_192 / 40), (12, 120, 2 * 819.2)]
)
def test_a_group_takes_as_many_rounds_of_the_rows_as_it_needs(rows: int, per_second: int, seconds: float) -> None:
    rate = Rate(tokens=5 * per_second, seconds=5.0, cpu_seconds=5.0, rows=rows)
    assert rate.group_seconds(16, 8_192) == pytest.approx(seconds)
