"""The screen of `echo2-node top`: as it looks at two sizes, and what its keys do."""

import re
from html import unescape
from pathlib import Path

import pytest

from echo2.node.top.top_app import TopApp
from tests.support.node_status import StandInNode

SCREENS = Path(__file__).parent / "screens"


class Clock:
    """A clock that a test sets, seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def rows_of(app: TopApp) -> list[str]:
    """Return the text on the screen, from Textual's own picture of it."""
    rows: dict[float, dict[float, str]] = {}
    for x, y, text in re.findall(
        r'<text [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*clip-path[^>]*>(.*?)</text>', app.export_screenshot()
    ):
        rows.setdefault(float(y), {})[float(x)] = unescape(text).replace("\xa0", " ")
    return [_joined(rows[y]) for y in sorted(rows)]


def _joined(pieces: dict[float, str]) -> str:
    """Return the pieces of a row at their columns; a column is 12.2 wide in the picture."""
    row = ""
    for x in sorted(pieces):
        row = row.ljust(round(x / 12.2)) + pieces[x]
    return row.rstrip()


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80x24", "200x50"])
async def test_the_screen_is_the_one_stored(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    node, clock = StandInNode(), Clock()
    app = TopApp(node.ask, clock)
    async with app.run_test(size=size) as pilot:
        clock.now += 2.0
        node.status |= {"sent_bytes": 311_500_000}
        await app.look()
        await pilot.pause()
        shown = "\n".join(rows_of(app)).rstrip() + "\n"
    stored = SCREENS / f"{size[0]}x{size[1]}.txt"
    assert shown == stored.read_text(), f"if it is meant so, write it to {stored}:\n{shown}"


async def test_keys_pause_resume_and_switch_caps_and_the_screen_says_so() -> None:
    node = StandInNode()
    app = TopApp(node.ask, Clock())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p")
        assert "node      pause: paused" in rows_of(app)
        await pilot.press("r", "s")
        assert "sums - node fox - working - slow" in "\n".join(rows_of(app))
        await pilot.press("s")
    orders = [asked for asked in node.asked if asked["command"] != "status"]
    assert orders == [
        {"command": "pause"}, {"command": "resume"}, {"command": "slow", "slow": True},
        {"command": "slow", "slow": False},
    ]  # fmt: skip


async def test_keys_choose_a_cap_and_change_it_by_steps_and_the_screen_says_until_when() -> None:
    node = StandInNode()
    app = TopApp(node.ask, Clock())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("minus")
        assert "cap       duty of all devices: 90 % (+ and - change it until the node ends)" in rows_of(app)
        assert "node      caps: until the node ends" in rows_of(app)
        await pilot.press("c", "c", "plus", "c", "minus", "c", "minus")
        assert "cap       downlink: 512 Mbit/s (+ and - change it until the node ends)" in rows_of(app)
        assert max(map(len, rows_of(app))) <= 80
    assert [row["duty"] for row in node.status["engines"]] == [90, 100]
    assert node.status["caps"] == {"uplink": 2, "downlink": 512, "duty": 90}


async def test_a_node_is_finished_by_a_second_press_within_five_seconds() -> None:
    node, clock = StandInNode(), Clock()
    app = TopApp(node.ask, clock)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f")
        clock.now += 6.0
        await pilot.press("f")
        assert {"command": "finish"} not in node.asked
        await pilot.press("f")
        assert {"command": "finish"} in node.asked


async def test_a_node_that_goes_away_is_said_and_asked_again() -> None:
    node = StandInNode()
    app = TopApp(node.ask, Clock())
    async with app.run_test(size=(200, 50)) as pilot:
        node.away = True
        await app.look()
        await pilot.pause()
        assert "no node runs in /home/fox" in "\n".join(rows_of(app))
        node.away = False
        await app.look()
        await pilot.pause()
        assert "no node runs" not in "\n".join(rows_of(app))


async def test_without_colour_the_screen_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = TopApp(StandInNode().ask, Clock())
    async with app.run_test(size=(80, 24)):
        strips = app.screen._compositor.render_strips()
        colours = {style.color for strip in strips for _, style, _ in strip if style and style.color}
        assert {colour.name for colour in colours} <= {"default"}
