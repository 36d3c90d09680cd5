import json
from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks.harness.log_events import Event, events
from benchmarks.loop import STAGES, Journey, births, firsts, journeys, p90, report, rows
from echo2.coordinator.metrics.views import BroadcastView, CapacityView, RunState


def told(at: float, event: str, **fields: Any) -> Event:
    return Event(event, at, {"event": event, **fields})


def born(version: int, at: float) -> list[Event]:
    """Return the coordinator's log of a step that begins at `at`: step 1 s, export 0.5 s, checkpoint 0.25 s."""
    return [
        told(at, "step begun", step=version, groups=16),
        told(at + 1.75, "step made", step=version, seconds=1.0, export_seconds=0.5),
        told(at + 2.0, "version stored", version=version, era=1),
        told(at + 2.125, "head out", version=version, sequence=7),
    ]


def arrived(version: int, at: float, longest: int = 4) -> list[Event]:
    """Return a node's log lines, from `at` on."""
    return [
        told(at, "head heard", version=version, sequence=7),
        told(at + 0.25, "way found", version=version, edges=1),
        told(at + 0.5, "payload fetched", version=version, nbytes=10),
        told(at + 1.0, "applying", version=version, edges=1),
        told(at + 1.25, "version held", version=version, era=1),
        told(at + 1.5, "lease asked", version=version),
        told(at + 2.5, "lease asked", version=version),
        told(at + 2.75, "lease received", version=version, lease="aa"),
        told(at + 4.75, "group generated", version=version, lease="aa", longest=longest),
    ]


def test_the_path_of_a_version_is_split_without_loss() -> None:
    (journey,) = journeys(born(1, 10.0), {"otter": arrived(1, 12.5)})
    split = dict(zip(STAGES, journey.seconds, strict=True))
    assert split == {
        "export and encode": 0.5, "checkpoint": 0.25, "sign and store": 0.25, "Head signed": 0.125,
        "Head on its way": 0.375, "documents": 0.25, "payload": 0.25, "running group ends": 0.5, "apply": 0.25,
        "lease refused": 1.25, "lease": 0.25, "first token": 0.5,
    }  # fmt: skip
    assert journey.total == (12.5 + 2.75 + 0.5) - 11.0


def test_a_head_that_is_sent_again_changes_nothing() -> None:
    lines = [*born(1, 10.0), told(70.0, "head out", version=1, sequence=8)]
    assert births(lines)[1][-1] == 12.125


def test_a_restarted_step_counts_from_its_second_beginning() -> None:
    lines = [told(5.0, "step begun", step=1, groups=16), *born(1, 10.0)]
    assert births(lines)[1][0] == 11.0


def test_a_step_without_export_is_no_version() -> None:
    lines = [told(1, "step begun", step=1), told(2, "step made", step=1, seconds=1.0, export_seconds=0.0)]
    assert births(lines) == {}


def test_a_version_that_a_node_passed_over_is_no_pair() -> None:
    passed = [event for event in arrived(1, 12.5) if event.name in ("head heard", "payload fetched")]
    assert journeys([*born(1, 10.0), *born(2, 20.0)], {"otter": [*passed, *arrived(2, 23.0)]})[0].version == 2
    assert journeys(born(1, 10.0), {"otter": passed}) == []


def test_a_line_written_late_gives_no_negative_time() -> None:
    (journey,) = journeys(born(1, 10.0), {"otter": arrived(1, 12.0)})
    assert min(journey.seconds) == 0.0
    assert journey.total == (12.0 + 2.75 + 0.5) - 11.0


def test_torn_and_foreign_lines_are_passed_over() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    good = json.dumps({"event": "head out", "timestamp": at.isoformat(), "version": 3})
    events_read = events(["Traceback (most recent call last):", "{}", "[]", "3", good[:-9], good])
    assert events_read == [Event("head out", at.timestamp(), json.loads(good))]


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (10, 9), (11, 10), (100, 90)])
def test_p90_is_the_nearest_rank(count: int, rank: int) -> None:
    assert p90([float(value) for value in range(count, 0, -1)]) == rank


def test_the_first_node_of_each_version_is_the_quickest() -> None:
    slow, quick, other = (Journey(v, name, (s,) * 12) for v, name, s in ((1, "a", 2.0), (1, "b", 1.0), (2, "a", 3.0)))
    assert firsts([slow, quick, other]) == [quick, other]
    assert list(rows([slow, quick, other]))[-1] == ("all of it", 24.0, 36.0, 24.0, 36.0)


def picture(idle: float | None) -> RunState:
    capacity = CapacityView(
        step_seconds=None, turnaround_seconds=None, rollouts_per_step=0, publish_every=1, supply=0, need=None, advice=""
    )
    return RunState(
        objective="",
        run="", name="", model="", parameters=0, started=0, now=0, phase="finished", era=1, version=2, step=2,
        steps_wanted=2, staleness_limit=4, group_size=1, batch_groups=1, idle=idle, buffered=0, undecided=0, running=0,
        received=0, accepted=0, too_old=0, refused={}, expired=0, staleness=[], steps=[], evaluations=[], versions=[],
        broadcast=BroadcastView(source=""), capacity=capacity,
        diff_bytes=0, full_bytes=0, nodes=[], invite="", faults=[],
    )  # fmt: skip


def test_the_closing_lines_say_that_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([Journey(1, "otter", (0.5,) * 12)], picture(0.25)) == 0
    closing = [text_line for text_line in capsys.readouterr().out.splitlines() if text_line.startswith("loop: ")]
    assert closing == [
        "loop: end of step to a first token 6.00 s (p90 6.00 s), reported, no bar",
        "loop: end of step to every node's first token 6.00 s (p90 6.00 s), reported, no bar",
        "loop: learner idle 25 % of its time since its first step, reported, no bar",
    ]


def test_a_run_without_a_pair_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([], picture(None)) == 1
    assert "nothing to report" in capsys.readouterr().out
