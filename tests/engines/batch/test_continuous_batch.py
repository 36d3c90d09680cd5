"""Many groups at once, over a model that is a table: each has the tokens that it has alone."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.plays.direct import generate, generate_all
from echo2.engines.batch import row_starts
from echo2.engines.batch.row_limit import Memory, RowLimit
from echo2.engines.engine import EngineError, Job, Sample
from tests.support.table_engine import Table, job, table


@pytest.fixture(params=[False, True], ids=["read at once", "read a step later"])
def overlap(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def mixed() -> list[Job]:
    """Groups of several sizes, limits and prompts, more rows than the first limit."""
    return [job(index, 1 + index % 5, 1 + 3 * index % 11, [2 + index % 9] * (1 + index)) for index in range(24)]


def test_each_group_has_the_tokens_that_it_has_alone(tmp_path: Path, overlap: bool) -> None:
    together = generate_all(table(tmp_path, overlap=overlap), mixed())
    assert together == [generate(table(tmp_path), one) for one in mixed()]


def test_the_places_of_finished_rows_go_to_the_groups_that_wait(tmp_path: Path, overlap: bool) -> None:
    engine = table(tmp_path, overlap=overlap, limit=RowLimit(4))
    jobs = [job(0, 3, limit=2), job(1, 3, limit=9), job(2, 3, limit=9)]
    for ticket, one in enumerate(jobs):
        engine.begin(ticket, one)
    assert (engine.rows.running, engine.rows.waiting, engine.rows.free) == (0, 9, 0)
    engine.step()
    assert (engine.rows.running, engine.rows.waiting) == (4, 5)  # a group need not have all its places at once
    ended, rows = list[int](), [9]
    while len(ended) < 3:
        rows.append(engine.rows.running + engine.rows.waiting)
        ended += [done.ticket for done in engine.step()]
    assert ended[0] == 0
    assert engine.widths == [min(4, number) for number in rows if number]
    assert engine.rows.running == engine.rows.waiting == 0


def test_a_prompt_is_computed_once_and_those_of_like_length_together(tmp_path: Path) -> None:
    engine = table(tmp_path)
    generate_all(engine, [job(0, 8, prompt=[2] * 10), job(1, 8, prompt=[3] * 40), job(2, 4, prompt=[4] * 11)])
    assert engine.prefilled == [[10], [40], [11]]
    assert sorted(length for call in engine.prefilled for length in call) == [10, 11, 40]
    engine = table(tmp_path)
    generate_all(engine, [job(0, 2, prompt=[2] * 10), job(1, 2, prompt=[3] * 40), job(2, 2, prompt=[4] * 11)])
    assert engine.prefilled == [[10, 11], [40]]


def test_a_long_prompt_is_computed_in_parts_between_which_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    monkeypatch.setattr(row_starts, "PROMPT_PART", 100)
    engine = table(tmp_path, overlap=overlap)
    long = job(1, 2, prompt=[*[5] * 349, 7])
    engine.begin(0, job(0, 2, limit=40))
    engine.step()
    engine.begin(1, long)
    for parts in ([2], [2, 100], [2, 100, 100], [2, 100, 100, 100], [2, 100, 100, 100, 50]):
        assert [sum(call) for call in engine.prefilled] == parts
        engine.step()
    assert engine.rows.running == 4
    assert engine.rows.waiting == 0
    engine.cancel(0)
    engine.cancel(1)
    (samples,) = generate_all(engine, [long])
    assert samples == generate(table(tmp_path), long)


def test_a_group_whose_logits_are_not_finite_fails_alone(tmp_path: Path, overlap: bool) -> None:
    engine = table(tmp_path, overlap=overlap)
    bad = job(3, 4, limit=9, prompt=[15])
    alone = [generate(engine, one) for one in (job(0), job(1, 4))]
    engine.broken = {15}
    for ticket, one in enumerate([job(0), bad, job(1, 4)]):
        engine.begin(ticket, one)
    outcomes: dict[int, list[Sample] | Exception] = {}
    while len(outcomes) < 3:
        outcomes.update(dict(engine.step()))
    assert isinstance(outcomes[1], EngineError)
    assert "not finite" in str(outcomes[1])
    for ticket, samples in ((0, alone[0]), (2, alone[1])):
        assert outcomes[ticket] == samples or isinstance(outcomes[ticket], EngineError)
    assert engine.rows.running == 0


def test_a_cancelled_group_leaves_its_places_and_has_no_outcome(tmp_path: Path, overlap: bool) -> None:
    engine = table(tmp_path, overlap=overlap, limit=RowLimit(4))
    expected = generate(table(tmp_path), job(2, 4))
    for ticket in range(3):
        engine.begin(ticket, job(ticket, 4))
    engine.step()
    engine.cancel(0)  # runs
    engine.cancel(1)  # waits
    engine.cancel(7)  # there is none
    assert engine.rows.running == 0
    ended = []
    while not ended:
        ended = engine.step()
    assert ended == [(2, expected)]
    assert engine.step() == []


def test_after_an_out_of_memory_the_groups_begin_again_and_none_is_lost(tmp_path: Path, overlap: bool) -> None:
    engine = table(tmp_path, rows_most=9, overlap=overlap)
    assert generate_all(engine, mixed()) == [generate(table(tmp_path), one) for one in mixed()]
    assert engine.rows.limit < 9 < max(engine.widths)


def test_a_group_of_which_no_row_fits_fails_and_the_next_is_tried(tmp_path: Path) -> None:
    engine = table(tmp_path, rows_most=0)
    for ticket in range(2):
        engine.begin(ticket, job(ticket))
    outcomes: dict[int, Any] = {}
    while len(outcomes) < 2:
        outcomes.update(dict(engine.step()))
    assert all("out of memory" in str(outcome) for outcome in outcomes.values())


def test_memory_at_hand_bounds_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "memory", lambda self: Memory(at_hand=1000, token=10, row=20))
    engine = table(tmp_path)
    generate_all(engine, [job(index, 4, limit=6, prompt=[2, 3]) for index in range(5)])
    assert max(engine.widths) == 6  # 60 % of 1000, over 8 tokens of 10 and 20 beside


def test_greedy_groups_run_beside_sampled_ones(tmp_path: Path, overlap: bool) -> None:
    jobs = [job(0), job(0, greedy=True), job(5, greedy=True)]
    sampled, first, second = generate_all(table(tmp_path, overlap=overlap), jobs)
    assert first == second  # one prompt, no noise
    assert len({tuple(sample.tokens) for sample in first}) == 1
    assert sampled != first


def test_a_group_of_no_seeds_is_empty_and_a_name_is_used_once(tmp_path: Path) -> None:
    engine = table(tmp_path)
    assert generate(engine, job(0, 0)) == []
    engine.begin(1, job(1))
    with pytest.raises(EngineError, match="under way"):
        engine.begin(1, job(1))


def test_an_error_of_the_device_ends_all_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = table(tmp_path)
    engine.begin(0, job(0))

    def gone(*_: object) -> None:
        raise RuntimeError("the device went away")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "decode", gone)
        with pytest.raises(RuntimeError, match="went away"):
            engine.step()
    assert (engine.rows.running, engine.rows.waiting) == (0, 0)
    assert generate(engine, job(0)) == generate(table(tmp_path), job(0))
