"""`echo2-node logs`: the last lines of the file, and those that follow, also over a new file."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from echo2.node.control import log_view
from echo2.node.errors import BadConfig


def write(home: Path, *events: str) -> None:
    with (home / log_view.LOG_FILE).open("a") as file:
        for event in events:
            file.write(json.dumps({"event": event, "level": "info", "timestamp": "2026-11-30T02:00:00.1Z"}) + "\n")


def test_the_last_lines_are_shown_for_people(tmp_path: Path) -> None:
    write(tmp_path, "one", "two", "three")
    shown = [log_view.readable(line) for line in log_view.last_lines(tmp_path, 2)]
    assert shown == ["2026-11-30T02:00:00 info    two", "2026-11-30T02:00:00 info    three"]


def test_fields_follow_the_event_and_a_line_that_is_none_stays() -> None:
    line = json.dumps({"event": "ended", "level": "info", "timestamp": "t", "why": "the owner said finish", "left": 2})
    assert log_view.readable(line) == "t info    ended why='the owner said finish' left=2"
    assert log_view.readable("half a li") == "half a li"
    assert log_view.readable("[1]") == "[1]"


def test_lines_that_are_added_follow_also_in_the_file_that_replaces_a_full_one(tmp_path: Path) -> None:
    write(tmp_path, "before")
    path, steps = tmp_path / log_view.LOG_FILE, iter(range(9))

    def wait(seconds: float) -> None:
        match next(steps):
            case 0:
                write(tmp_path, "added")
            case 1:
                path.rename(tmp_path / "node.log.1")
                write(tmp_path, "in a new file")

    with closing(log_view.follow(tmp_path, wait)) as lines:
        assert [json.loads(next(lines))["event"] for _ in range(2)] == ["added", "in a new file"]


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / log_view.LOG_FILE
    path.write_text("")
    parts = iter(["half", " a line\n"])

    def wait(seconds: float) -> None:
        with path.open("a") as file:
            file.write(next(parts))

    with closing(log_view.follow(tmp_path, wait)) as lines:
        assert next(lines) == "half a line"


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, *map(str, range(100)))
    monkeypatch.setattr(log_view, "MOST_TAIL_BYTES", 200)
    assert [json.loads(line)["event"] for line in log_view.last_lines(tmp_path, 50)] == ["98", "99"]


def test_a_home_without_a_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="there is no log in"):
        log_view.last_lines(tmp_path, 5)
