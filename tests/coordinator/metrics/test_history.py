"""The history of a very long run is complete on disk, thinned in memory, and read back quickly."""

from contextlib import closing
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.metrics.history import History
from echo2.coordinator.metrics.views import Evaluation, StepPoint, VersionRow

LONG = 6_000


def step(number: int, reward: float = 0.5) -> StepPoint:
    return StepPoint(
        step=number, at=number, reward=reward, success=0.5, staleness=1.0, seconds=1.0, metrics={"loss": reward}
    )


def version(number: int) -> VersionRow:
    diff = None if number == 0 else 10
    return VersionRow(version=number, era=1, at=number, diff_bytes=diff, full_bytes=100, first_node_seconds=None)


def evaluation(number: int) -> Evaluation:
    return Evaluation(version=number, at=number, prompts=4, sampled=0.5, greedy=0.5)


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """Return the file of a run of LONG steps, each of which published a version."""
    path = tmp_path / "history.jsonl"
    with closing(History(path)) as history:
        history.add(version(0))
        history.add(evaluation(0))
        for number in range(1, LONG + 1):
            history.add(step(number))
            history.add(version(number))
            if number % 5 == 0:
                history.add(evaluation(number))
    return path


def test_a_curve_has_at_most_five_hundred_points_and_spans_the_whole_run(long: Path) -> None:
    with closing(History(long)) as history:
        for curve, last in ((history.steps, LONG), (history.versions, LONG), (history.evaluations, LONG)):
            numbers = sorted(curve)
            assert len(numbers) <= 500, f"{len(numbers)} points after {LONG} steps"
            assert numbers[0] <= 1
            assert numbers[-1] == last
            gaps = [after - before for before, after in pairwise(numbers)]
            assert max(gaps) <= LONG / 50
        assert sorted(history.steps)[-250:] == list(range(LONG - 249, LONG + 1))


def test_a_start_reads_only_the_lines_after_the_saved_curve(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, decoded = msgspec.json.decode, 0

    def counting(*args: object, **kwargs: object) -> object:
        nonlocal decoded
        decoded += 1
        return decode(*args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(msgspec.json, "decode", counting)
    History(long).close()
    assert decoded <= 2_100, f"{decoded} pieces of JSON for {LONG} steps"


def test_the_saved_curve_and_the_whole_file_give_the_same_curve(long: Path) -> None:
    with closing(History(long)) as history:
        shown = (set(history.steps), history.diff_bytes, history.full_bytes)
    assert shown[1:] == (10 * LONG, 100 * LONG)
    (long.parent / "history-thinned.json").unlink()
    with closing(History(long)) as history:
        assert (history.diff_bytes, history.full_bytes) == shown[1:]
        assert max(history.steps) == LONG


@pytest.mark.parametrize("damage", [b"", b"{", b'{"length": 1}'])
def test_a_damaged_curve_is_rebuilt_from_the_file(long: Path, damage: bytes) -> None:
    (long.parent / "history-thinned.json").write_bytes(damage)
    with closing(History(long)) as history:
        assert max(history.steps) == LONG


@pytest.mark.slow
def test_the_curve_of_another_file_is_not_used(long: Path) -> None:
    long.write_bytes(b"")
    with closing(History(long)) as history:
        assert not history.steps
        history.add(step(3))
    with closing(History(long)) as history:
        assert list(history.steps) == [3]


def test_a_torn_line_is_skipped_and_a_repeated_step_replaces_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with closing(History(path)) as history:
        history.add(step(1, 0.1))
        history.add(step(1, 0.9))
        history.add(version(1))
        history.first_asked(1, 2001)
    with path.open("ab") as file:
        file.write(b'{"kind": "step", "rec')
    with closing(History(path)) as history:
        assert history.steps[1].reward == 0.9
        assert history.versions[1].first_node_seconds == 2.0
        assert history.diff_bytes == 10
        history.add(step(2))
    with closing(History(path)) as history:
        assert sorted(history.steps) == [1, 2]


def test_the_files_are_bounded_and_the_curve_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 439044d the file grew for as long as the run."""
    monkeypatch.setattr("echo2.coordinator.metrics.history.MOST_BYTES", 20_000, raising=False)
    path = tmp_path / "history.jsonl"
    with closing(History(path)) as history:
        for number in range(1_000):
            history.add(step(number))
            history.add(version(number))
        kept = sum(file.stat().st_size for file in tmp_path.glob("history*.jsonl"))
        assert kept <= 2 * 20_000 + 1_000
        curve, versions, sums = dict(history.steps), dict(history.versions), (history.diff_bytes, history.full_bytes)
    with closing(History(path)) as again:
        assert (again.steps, again.versions) == (curve, versions)
        assert (again.diff_bytes, again.full_bytes) == sums == (9_990, 99_900)
