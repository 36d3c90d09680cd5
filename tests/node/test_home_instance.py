"""The instance of a daemon, and what its home keeps of the daemons before it."""

from pathlib import Path

import pytest

from echo2.node.home_instance import FILE, LENGTH, HomeInstance
from echo2.protocol.refusals import REASONS
from echo2.protocol.requests import MOST_INSTANCES


def drawn(number: int) -> bytes:
    return bytes([number]) * LENGTH


def started(folder: Path, number: int) -> HomeInstance:
    return HomeInstance(folder, lambda size: bytes([number]) * size)


def test_a_restart_names_the_daemon_before_it(tmp_path: Path) -> None:
    first = started(tmp_path, 1)
    assert (first.id, first.after) == (drawn(1), [])
    first.on_welcome()
    assert started(tmp_path, 2).after == [drawn(1)]


def test_a_daemon_that_was_killed_before_its_greeting_hides_none_that_the_run_knows(tmp_path: Path) -> None:
    started(tmp_path, 1).on_welcome()
    for number in range(2, 9):
        started(tmp_path, number)
    last = started(tmp_path, 9)
    assert len(last.after) <= MOST_INSTANCES
    assert last.after[0] == drawn(1)
    assert last.after[-1] == drawn(8)
    last.on_welcome()
    assert started(tmp_path, 10).after == [drawn(9)]


def test_a_daemon_that_is_fenced_does_not_count_as_known_to_the_run(tmp_path: Path) -> None:
    started(tmp_path, 1).on_welcome()
    fenced = started(tmp_path, 2)
    fenced.on_message("works")
    fenced.on_welcome()
    assert started(tmp_path, 3).after == [drawn(1), drawn(2)]


def test_the_owner_is_told_what_to_do(tmp_path: Path) -> None:
    one = started(tmp_path, 1)
    assert one.warning == ""
    one.on_message("works")
    assert one.warning == REASONS["fenced"].sentence
    one.on_message("waits")
    assert "asked for work from elsewhere" in one.warning
    assert "keys rotate" in one.warning
    one.on_message("")
    assert one.warning == ""


@pytest.mark.parametrize("data", [b"x", b"x" * (LENGTH * MOST_INSTANCES + LENGTH), b""])
def test_a_damaged_file_costs_a_wait_alone(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE).write_bytes(data)
    assert started(tmp_path, 1).after == []
    assert (tmp_path / FILE).read_bytes() == drawn(1)
