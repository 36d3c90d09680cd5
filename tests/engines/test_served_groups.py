"""Served groups: a row leaves its place at the end of a sampled turn, and goes on behind the answer."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from echo2.engines.batch.continuous_batch import MOST_STEPWISE_TOKENS
from echo2.engines.batch.row_limit import Memory, RowLimit
from echo2.engines.engine import Job, Sample, SampledTurn
from tests.support.served import Answers, play, served
from tests.support.table_engine import Table, job, table

EOS = 1


@pytest.fixture(params=[False, True], ids=["read at once", "read a step later"])
def overlap(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def echoes(turns: int) -> Answers:
    """An environment that says a turn's length and its number, for so many turns: once, or too often for the steps."""

    def answer(sampled_turn: SampledTurn) -> Sequence[int] | None:
        if sampled_turn.turn_number >= 2 * (turns - 1):
            return None
        said = [2 + len(sampled_turn.tokens) % 14, 3 + sampled_turn.turn_number]
        return said * (MOST_STEPWISE_TOKENS if len(sampled_turn.tokens) % 2 else 1)

    return answer


def alone(folder: Path, one: Job, turns: int) -> list[Sample]:
    """Generate a served group one rollout at a time, each answered at once."""
    samples = []
    for number, seed in enumerate(one.seeds):
        single = msgspec.structs.replace(one, seeds=[seed], past=one.past[number : number + 1])
        samples += play(table(folder), [(single, echoes(turns))])[0]
    return samples


def many() -> list[tuple[Job, Answers]]:
    return [
        (served(job(index, 1 + index % 4, 6 + 5 * index % 17), bytes([index + 1])), echoes(1 + index % 4))
        for index in range(16)
    ]


@pytest.mark.parametrize("late", [0, 1, 7])
def test_each_group_has_the_tokens_that_it_has_alone_however_late_its_answers(
    tmp_path: Path, overlap: bool, late: int
) -> None:
    together = play(table(tmp_path, overlap=overlap, limit=RowLimit(5)), many(), late=late)
    for (one, _), samples, index in zip(many(), together, range(16), strict=True):
        assert samples == alone(tmp_path, one, 1 + index % 4)
        assert all(sum(sample.turns) == len(sample.tokens) for sample in samples)
    assert any(len(sample.turns) > 2 for samples in together for sample in samples)


def test_rows_that_wait_for_their_answers_leave_their_places_to_others(tmp_path: Path, overlap: bool) -> None:
    engine = table(tmp_path, overlap=overlap, limit=RowLimit(2))
    engine.begin(0, served(job(0, 2, 60), b"first"))
    turns = list[SampledTurn]()
    while len(turns) < 2:
        engine.step()
        turns += engine.turns()
    assert (engine.rows.running, engine.rows.parked) == (0, 2)
    engine.begin(1, served(job(1, 2, 60), b"second"))
    engine.step()
    assert engine.rows.running == 2
    assert {(sampled_turn.sample, sampled_turn.turn_number) for sampled_turn in turns} == {(0, 0), (1, 0)}
    assert all(
        sampled_turn.tokens[-1] == EOS and len(sampled_turn.tokens) == len(sampled_turn.logprobs)
        for sampled_turn in turns
    )


def test_an_engine_whose_rows_all_wait_is_idle_until_one_is_answered(tmp_path: Path, overlap: bool) -> None:
    engine = table(tmp_path, overlap=overlap)
    engine.begin(0, served(job(0, 1, 60)))
    while not (turns := engine.turns()):
        engine.step()
    engine.step()  # the step that was begun before the turn's end was known
    assert engine.idle
    engine.answer(b"a lease", 0, turns[0].turn_number, [5])
    assert not engine.idle


def test_an_answer_that_no_row_waits_for_changes_nothing(tmp_path: Path, overlap: bool) -> None:
    engine = table(tmp_path, overlap=overlap)
    one = served(job(0, 1, 30))
    engine.begin(0, one)
    engine.answer(b"a lease", 0, 0, [9])  # the turn has not ended
    while not (turns := engine.turns()):
        engine.step()
    for name, sample, turn_number in ((b"other", 0, 0), (b"a lease", 1, 0), (b"a lease", -1, 0), (b"a lease", 0, 2)):
        engine.answer(name, sample, turn_number, [9])
    engine.answer(b"a lease", 0, 0, [3 + turns[0].turn_number])
    engine.answer(b"a lease", 0, 0, [9])  # a second time
    assert engine.rows.waiting == 1


def test_at_the_limit_the_environment_reads_the_turn_and_the_episode_is_over(tmp_path: Path) -> None:
    read = list[SampledTurn]()

    def endless(sampled_turn: SampledTurn) -> Sequence[int]:
        read.append(sampled_turn)
        return [5, 6]

    ((sample,),) = play(table(tmp_path), [(served(job(0, 1, 9)), endless)])
    assert sum(sample.turns[0::2]) == 9
    assert len(sample.turns) % 2 == 1
    assert read[-1].tokens == sample.tokens[-sample.turns[-1] :]


def opening(turns: int) -> Answers:
    """An environment that opens each sample with a number of its own, and then answers like `echoes`."""
    after = echoes(turns)

    def answer(sampled_turn: SampledTurn) -> Sequence[int] | None:
        if sampled_turn.turn_number:
            return after(msgspec.structs.replace(sampled_turn, turn_number=sampled_turn.turn_number - 2))
        assert not sampled_turn.tokens
        return [2 + sampled_turn.sample, 9][: 1 + sampled_turn.sample % 2]

    return answer


def dealt(index: int, samples: int, limit: int, name: bytes = b"a lease") -> Job:
    return msgspec.structs.replace(served(job(index, samples, limit), name), opened=True)


def test_an_opened_rollout_is_that_of_the_longer_prompt_but_for_the_numbers_of_its_tokens(
    tmp_path: Path, overlap: bool
) -> None:
    pairs = [(dealt(index, 1 + index % 3, 20, bytes([index + 1])), opening(2)) for index in range(6)]
    together = play(table(tmp_path, overlap=overlap, limit=RowLimit(4)), pairs, late=2)
    for (one, _), samples in zip(pairs, together, strict=True):
        for number, sample in enumerate(samples):
            assert sample.turns[:2] == [0, 1 + number % 2]
            assert len(sample.logprobs) == sum(sample.turns[0::2]) > 0
            single = msgspec.structs.replace(one, seeds=one.seeds[number : number + 1])
            first = [2 + number, 9][: 1 + number % 2]
            taken_up = msgspec.structs.replace(single, past=[Sample(tokens=first, turns=[0, len(first)], logprobs=[])])
            assert play(table(tmp_path), [(taken_up, opening(2))]) == [[sample]]


def test_an_opened_rollout_whose_opening_fails_has_no_tokens(tmp_path: Path, overlap: bool) -> None:
    def fails_at_first(sampled_turn: SampledTurn) -> Sequence[int] | None:
        return None if sampled_turn.sample == 0 else opening(1)(sampled_turn)

    (samples,) = play(table(tmp_path, overlap=overlap), [(dealt(0, 2, 9), fails_at_first)])
    assert samples[0] == Sample(tokens=[], turns=[0], logprobs=[])
    assert samples[1].turns[:2] == [0, 2]


@pytest.mark.parametrize(
    "past",
    [Sample(tokens=[], turns=[], logprobs=[]), Sample(tokens=[], turns=[0], logprobs=[])],
    ids=["before it asked", "before the answer"],
)
def test_an_opened_rollout_is_taken_up_at_its_beginning(tmp_path: Path, past: Sample) -> None:
    one = dealt(0, 1, 9)
    whole = play(table(tmp_path), [(one, opening(1))])
    assert play(table(tmp_path), [(msgspec.structs.replace(one, past=[past]), opening(1))]) == whole


@pytest.mark.parametrize("answered", [False, True], ids=["before the answer", "after it"])
def test_a_group_goes_on_from_what_was_kept_of_it(tmp_path: Path, overlap: bool, answered: bool) -> None:
    one = served(job(3, 4, 40))
    (whole,) = play(table(tmp_path), [(one, echoes(3))])
    kept = [_cut(sample, 2 if answered else 1) if len(sample.turns) > 2 else _cut(sample, 1) for sample in whole]
    kept[0] = Sample(tokens=[], turns=[], logprobs=[])  # nothing was kept of this one
    engine = table(tmp_path, overlap=overlap)
    (again,) = play(engine, [(msgspec.structs.replace(one, past=kept), echoes(3))])
    assert again == whole


def _cut(sample: Sample, turns: int) -> Sample:
    lengths = sample.turns[:turns]
    return Sample(tokens=sample.tokens[: sum(lengths)], turns=lengths, logprobs=sample.logprobs[: sum(lengths[0::2])])


def test_a_cancelled_group_leaves_no_row_and_no_turn(tmp_path: Path, overlap: bool) -> None:
    engine = table(tmp_path, overlap=overlap)
    engine.begin(0, served(job(0, 3, 60)))
    while not engine.rows.parked:
        engine.step()
    engine.cancel(0)
    engine.step()
    assert engine.turns() == []
    assert (engine.rows.running, engine.rows.waiting, engine.rows.parked) == (0, 0, 0)


def test_after_an_out_of_memory_rows_that_wait_go_on_behind_their_tokens(tmp_path: Path, overlap: bool) -> None:
    engine: Table = table(tmp_path, overlap=overlap, rows_most=3, limit=RowLimit(8))
    together = play(engine, many(), late=3)
    assert [alone(tmp_path, one, 1 + index % 4) for index, (one, _) in enumerate(many())] == together
    assert max(engine.widths) > 3


def test_where_rows_wait_what_is_kept_of_parked_ones_is_dropped_and_computed_anew(
    tmp_path: Path, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory holds three rows of 62 tokens: with three parked, a single other row would run."""
    monkeypatch.setattr(Table, "memory", lambda self: Memory(at_hand=320, token=1, row=0))
    engine = table(tmp_path, overlap=overlap)
    first = served(job(0, 3, 60), b"first")
    engine.begin(0, first)
    turns = list[SampledTurn]()
    while len(turns) < 3:
        engine.step()
        turns += engine.turns()
    released, release = list[object](), engine.release
    monkeypatch.setattr(engine, "release", lambda prompt: (released.append(prompt), release(prompt))[1])
    engine.begin(1, served(job(1, 2, 60), b"second"))
    for _ in range(2):
        engine.step()
    assert engine.rows.running == 2
    assert [prompt for prompt in released if prompt == [-1]] == [[-1]] * 2  # that of the last one is kept
    samples: list[Sample] = []
    for turn in turns:
        engine.answer(b"first", turn.sample, turn.turn_number, echoes(2)(turn))
    while not samples:
        for done in engine.step():
            assert not isinstance(done.outcome, Exception)
            samples = samples or (done.outcome if done.ticket == 0 else [])
        for turn in engine.turns():
            engine.answer(turn.served, turn.sample, turn.turn_number, echoes(2)(turn))
    assert samples == alone(tmp_path, first, 2)


def test_nothing_is_dropped_while_no_row_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "memory", lambda self: Memory(at_hand=320, token=1, row=0))
    engine = table(tmp_path)
    engine.begin(0, served(job(0, 3, 60), b"first"))
    while engine.rows.parked < 3:
        engine.step()
    monkeypatch.setattr(engine, "release", lambda prompt: pytest.fail("a parked row was dropped"))
    for _ in range(3):
        engine.step()
