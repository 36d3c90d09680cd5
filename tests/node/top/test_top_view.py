"""The screen of `echo2-node top` as text, at any width, of whatever a node answers."""

import pytest

from echo2.node.top.top_view import TimedStatus, view_of
from tests.support.node_status import STATUS

BEFORE = TimedStatus({**STATUS, "sent_bytes": 309_500_000}, 10.0)


@pytest.mark.parametrize("width", [20, 79, 80, 120, 200])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    assert max(map(len, view_of(TimedStatus(STATUS, 12.0), BEFORE).lines(width))) <= width


def test_the_rate_of_a_line_is_that_between_two_looks() -> None:
    facts = dict(view_of(TimedStatus(STATUS, 12.0), BEFORE).facts)
    assert facts["upload"] == "4.0 Mbit/s, 310.5 MB since the start; at most 4 Mbit/s"
    assert facts["download"] == "0.0 Mbit/s, 1250.0 MB since the start; no limit"


def test_a_counter_that_fell_is_a_node_that_started_anew() -> None:
    facts = dict(view_of(TimedStatus({**STATUS, "sent_bytes": 5}, 12.0), BEFORE).facts)
    assert facts["upload"].startswith("- Mbit/s")


def test_a_node_that_has_just_started_has_a_screen() -> None:
    bare = {"state": "waiting", "blocked": "starting: the engine starts", "node": "12D3KooWabcdefgh"}
    view = view_of(TimedStatus(bare, 1.0), None)
    assert view.title == "no run yet - node abcdefgh - waiting"
    assert dict(view.facts)["why"] == "starting: the engine starts"


def test_words_of_a_run_cannot_clear_the_terminal() -> None:
    hostile = {**STATUS, "run": "\x1b[2Jsums", "refused": [{"code": "x", "reason": "a\nb\x07", "groups": 1}]}
    assert all(line.isprintable() for line in view_of(TimedStatus(hostile, 1.0), None).lines(80))


def test_a_paused_node_shows_it_at_each_device() -> None:
    view = view_of(TimedStatus({**STATUS, "state": "paused"}, 1.0), None)
    assert [row[-1] for row in view.devices] == ["paused", "paused"]
    assert dict(view.facts)["cuda:1"] == "the engine died 7 times in a row: out of memory"


def test_a_device_shows_its_limits_beside_what_is_read() -> None:
    first, second = view_of(TimedStatus(STATUS, 1.0), None).devices
    assert first[5:9] == ["100", "61/80", "212/250", "14.2/22"]
    assert second[5:9] == ["50", "-", "-", "-"]
