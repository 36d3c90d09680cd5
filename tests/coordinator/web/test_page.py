"""The page as HTML: its words and figures in every phase, escaping, and contrast."""

import html
import re
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator import web
from echo2.coordinator.metrics.trouble_views import PauseView, TroubleView
from echo2.coordinator.metrics.views import FaultView, RunState
from echo2.coordinator.web import broadcast_chart, page
from echo2.coordinator.web.site import STATIC
from tests.support import pictures
from tests.support.site_visits import Drawn

HOSTILE = "<script>alert(1)</script>"


STATES = {"empty": pictures.EMPTY, "busy": pictures.BUSY, "finished": pictures.FINISHED}


PAUSED = PauseView(kind="operator", why="moving house", since=0, until=None)
FOLDER = Path(web.__file__).parent


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_the_page_can_be_drawn_in_every_phase(state: RunState) -> None:
    words = " ".join(Drawn(page.page(state)).words.split())
    assert state.name in words
    assert f"step {state.step} of 40" in words


def test_the_page_has_the_main_figures() -> None:
    words = " ".join(Drawn(page.page(pictures.BUSY)).words.split())
    for wanted in (
        "brave-otter",
        "3,911",
        "65 %",
        "+48 points",
        "3.4 %",
        "42 ×",
        "How version 26 spread",
        "passed on by volunteers",
        "Received after the lease had expired.",
    ):
        assert wanted in words


def test_a_visitor_sees_what_the_run_is_for_and_how_to_take_part() -> None:
    state = msgspec.structs.replace(
        pictures.BUSY, description="Sorts lists.", contact="ann@example.org", page="https://run.example.org",
        fingerprint="AAAA-BBBB-CCCC-DDDD", installing="uv tool install 'echo2 @ git+https://git.example/echo2@1'",
    )  # fmt: skip
    words = " ".join(Drawn(page.page(state)).words.split())
    for wanted in (
        "Sorts lists.", "Run by ann@example.org", state.installing, "echo2-node join https://run.example.org",
        "AAAA-BBBB-CCCC-DDDD", f"echo2-node join {state.invite}", "Linux, macOS, or Windows inside WSL2",
    ):  # fmt: skip
        assert wanted in words
    assert '<a href="https://git.example/echo2">echo2: its code and its documents</a>' in page.page(state)
    assert "echo2-node join https" not in page.page(pictures.BUSY)


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        (pictures.FINISHED, "This run has finished"),
        (msgspec.structs.replace(pictures.BUSY, trouble=TroubleView(paused=PAUSED)), "This run is paused"),
    ],
    ids=["finished", "paused"],
)
def test_a_run_that_gives_no_work_asks_nobody(state: RunState, wanted: str) -> None:
    words = Drawn(page.page(state)).words
    assert wanted in words
    assert "echo2-node join" not in words


def test_what_a_run_says_of_itself_is_text() -> None:
    state = msgspec.structs.replace(
        pictures.BUSY, description=HOSTILE, contact=HOSTILE, page=f"https://{HOSTILE}", installing=HOSTILE
    )
    assert HOSTILE not in page.page(state)
    assert page.page(state).count(html.escape(HOSTILE)) == 4


def test_the_page_says_what_a_reserve_gives_and_takes_and_the_share_of_new_keys() -> None:
    words = " ".join(Drawn(page.page(pictures.BUSY)).words.split())
    assert "1.1 × as set2492up to 4 1.5 ×3393about 3.0 2 ×452more than are hereabout 2.6" in words
    assert "new keys10 %" in words
    assert "What a reserve of supply gives" not in page.page(pictures.EMPTY)


def test_the_page_shows_where_the_groups_learned_lately_spent_their_time() -> None:
    words = " ".join(Drawn(page.page(pictures.BUSY)).words.split())
    assert pictures.STAGES.sentence in words
    assert "generatedthe engine generates the group0.37" in words
    assert words.count("next batch largest part") == 1
    assert "No group was learned from yet." in page.page(pictures.EMPTY)


@pytest.mark.parametrize(
    ("later", "words"), [(-1, "known, suspended until 2023-11-14 22:13 UTC (drift)"), (0, "known")]
)
def test_the_page_shows_a_nodes_rank_and_suspension(later: int, words: str) -> None:
    until = 1_700_000_000_000
    node = msgspec.structs.replace(pictures.BUSY.nodes[0], rank="known", suspended_until=until, suspended_for="drift")
    drawn = page.page(msgspec.structs.replace(pictures.BUSY, now=until + later, nodes=[node]))
    assert f"<small>{words}</small>" in drawn


def test_a_run_without_steps_shows_empty_charts_and_no_invalid_number() -> None:
    words = Drawn(page.page(pictures.EMPTY)).words
    for wanted in (
        "not evaluated yet",
        "No step yet",
        "No volunteer has joined yet",
        "No group used yet",
        "No node has acknowledged a version yet",
    ):
        assert wanted in words
    assert not re.search(r"\b(None|nan|inf)\b", words)


@pytest.mark.parametrize(
    "place", ["node name", "sender", "device", "engine", "run name", "model", "advice", "fault", "reason"]
)
def test_text_from_volunteers_is_never_markup(place: str) -> None:
    state, row = pictures.BUSY, pictures.node(1)
    change = {
        "node name": {"nodes": [msgspec.structs.replace(row, name=HOSTILE)]},
        "sender": {"nodes": [msgspec.structs.replace(pictures.NODES[0], name=HOSTILE), *pictures.NODES[1:]]},
        "device": {"nodes": [msgspec.structs.replace(row, device=HOSTILE)]},
        "engine": {"nodes": [msgspec.structs.replace(row, engine=HOSTILE)]},
        "run name": {"name": HOSTILE},
        "model": {"model": HOSTILE},
        "advice": {"capacity": msgspec.structs.replace(state.capacity, advice=HOSTILE)},
        "fault": {"faults": [FaultView(at=state.now, what=HOSTILE)]},
        "reason": {"refused": {HOSTILE: 1}},
    }[place]
    drawn = Drawn(page.page(msgspec.structs.replace(state, **change)))
    assert HOSTILE in drawn.words
    assert [attrs for tag, attrs in drawn.tags if tag == "script"] == [
        attrs for tag, attrs in Drawn(page.page(state)).tags if tag == "script"
    ]


def test_text_cannot_break_out_of_an_attribute() -> None:
    state = msgspec.structs.replace(pictures.BUSY, nodes=[pictures.node(1, id='x" onclick="alert(1)', name="")])
    assert not [attrs for _, attrs in Drawn(page.page(state)).tags if "onclick" in attrs]


def test_the_page_obeys_its_content_security_policy() -> None:
    drawn = Drawn(page.page(pictures.BUSY))
    for tag, attrs in drawn.tags:
        assert "style" not in attrs, tag
        assert not [name for name in attrs if name.startswith("on")], tag
        assert tag != "style"
    names = sorted(address.partition("?")[0].removeprefix("static/") for address in drawn.loaded())
    assert names == sorted(STATIC.keys() - {"proof.js"}), "the script of another page"
    for name in STATIC:
        text = (FOLDER / "static" / name).read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"\w//|//\w|@import|url\(", text), f"{name} reaches elsewhere"


async def test_the_script_replaces_exactly_the_parts_that_the_page_has() -> None:
    def parts(html: str) -> list[str | None]:
        return [attrs.get("id") for _, attrs in Drawn(html).tags if "data-part" in attrs]

    assert parts(page.live(pictures.BUSY)) == parts(page.page(pictures.BUSY))
    assert len(set(parts(page.live(pictures.BUSY)))) == 13


def luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb by WCAG 2."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_text_colour_has_contrast_aa(theme: int) -> None:
    css = (FOLDER / "static" / "page.css").read_text()
    rules = css.partition("* {")[0].split("@media (prefers-color-scheme: dark)")[theme]
    palette = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", rules))
    for ground in ("card", "page"):
        for ink in ("text", "muted", "first", "second", "good", "bad", "warn", "other", *broadcast_chart.COLOURS):
            assert contrast(palette[ink], palette[ground]) >= 4.5, f"{ink} on {ground}"
    for ink, ground in (("good", "good-tint"), ("warn", "warn-tint"), ("first", "done-tint")):
        assert contrast(palette[ink], palette[ground]) >= 4.5, f"{ink} on {ground}"
