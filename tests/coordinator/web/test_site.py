"""The page, the API and the metrics as a visitor gets them."""

import csv
import gzip
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession, DummyCookieJar, web
from prometheus_client.parser import text_string_to_metric_families

import coordinator.web
from coordinator.metrics.broadcast_stats import MOST_TAKES
from coordinator.metrics.views import NodeRow, RunState
from coordinator.web import broadcast_chart, csv_export, page, refusal_texts
from coordinator.web.site import STATIC, Site, application, serve_web
from protocol.refusals import REASONS
from runtime.errors import LocalFault
from tests.support import pictures
from tests.support.fixed_run import FixedRun

BUDGET = 150_000
"""Bytes, gzipped: the page with all that it loads."""
HOSTILE = "<script>alert(1)</script>"
STATES = {"empty": pictures.EMPTY, "busy": pictures.BUSY, "finished": pictures.FINISHED}
FOLDER = Path(coordinator.web.__file__).parent


Visit = Callable[[web.Application], Awaitable[ClientSession]]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def still(state: RunState) -> FixedRun:
    """A run in which nothing happens."""
    return FixedRun(state)


@pytest.fixture
async def visit() -> AsyncIterator[Visit]:
    """`visit(app)` serves an app on the loopback and gives a session of its address."""
    opened: list[tuple[Site, ClientSession]] = []

    async def open_(app: web.Application) -> ClientSession:
        site = await serve_web(app, "127.0.0.1", 0)
        session = ClientSession(site.url, cookie_jar=DummyCookieJar(), auto_decompress=False)
        opened.append((site, session))
        return session

    yield open_
    for site, session in opened:
        await session.close()
        await site.stop()


async def fetched(session: ClientSession, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    async with session.get(path, headers={"Accept-Encoding": "identity", **headers}) as answer:
        return answer.status, dict(answer.headers), await answer.read()


class Drawn(HTMLParser):
    """What a browser would act on: tags with attributes, and text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data

    def loaded(self) -> list[str]:
        """Addresses of what the browser loads by itself."""
        sources = [attrs.get("src") for _, attrs in self.tags]
        sources += [attrs.get("href") for tag, attrs in self.tags if tag == "link"]
        return [address for address in sources if address]


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_the_page_can_be_drawn_in_every_phase(state: RunState) -> None:
    words = " ".join(Drawn(page.page(state)).words.split())
    assert state.name in words
    assert f"step {state.step} of 40" in words


def test_the_page_says_what_a_visitor_looks_for() -> None:
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


@pytest.mark.parametrize(
    ("later", "words"), [(-1, "known, suspended until 2023-11-14 22:13 UTC (drift)"), (0, "known")]
)
def test_the_page_says_how_far_a_node_is_trusted_and_whether_it_is_suspended(later: int, words: str) -> None:
    until = 1_700_000_000_000
    node = msgspec.structs.replace(pictures.BUSY.nodes[0], rank="known", suspended_until=until, suspended_for="drift")
    html = page.page(msgspec.structs.replace(pictures.BUSY, now=until + later, nodes=[node]))
    assert f"<small>{words}</small>" in html


def test_a_run_without_steps_shows_empty_charts_and_no_numbers_from_nowhere() -> None:
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
def test_text_from_strangers_is_never_markup(place: str) -> None:
    state, row = pictures.BUSY, pictures.node(1)
    change = {
        "node name": {"nodes": [msgspec.structs.replace(row, name=HOSTILE)]},
        "sender": {"nodes": [msgspec.structs.replace(pictures.NODES[0], name=HOSTILE), *pictures.NODES[1:]]},
        "device": {"nodes": [msgspec.structs.replace(row, device=HOSTILE)]},
        "engine": {"nodes": [msgspec.structs.replace(row, engine=HOSTILE)]},
        "run name": {"name": HOSTILE},
        "model": {"model": HOSTILE},
        "advice": {"capacity": msgspec.structs.replace(state.capacity, advice=HOSTILE)},
        "fault": {"faults": [HOSTILE]},
        "reason": {"refused": {HOSTILE: 1}},
    }[place]
    drawn = Drawn(page.page(msgspec.structs.replace(state, **change)))
    assert HOSTILE in drawn.words
    assert [attrs for tag, attrs in drawn.tags if tag == "script"] == [
        attrs for tag, attrs in Drawn(page.page(state)).tags if tag == "script"
    ]


def test_an_attribute_cannot_be_left() -> None:
    state = msgspec.structs.replace(pictures.BUSY, nodes=[pictures.node(1, id='x" onclick="alert(1)', name="")])
    assert not [attrs for _, attrs in Drawn(page.page(state)).tags if "onclick" in attrs]


async def test_every_answer_carries_the_security_headers(visit: Visit) -> None:
    session = await visit(application(still(pictures.BUSY)))
    paths = [
        "/",
        "/live",
        "/api/v1/run",
        "/api/v1/nodes",
        "/api/v1/nodes.csv",
        "/metrics",
        "/healthz",
        "/static/page.js",
        "/nowhere",
    ]
    for path in paths:
        status, headers, _ = await fetched(session, path)
        assert status == (404 if path == "/nowhere" else 200), path
        assert "default-src 'none'" in headers["Content-Security-Policy"], path
        assert "unsafe" not in headers["Content-Security-Policy"], path
        assert headers["X-Content-Type-Options"] == "nosniff", path
        assert headers["Referrer-Policy"] == "no-referrer", path


def test_the_page_keeps_its_own_policy() -> None:
    drawn = Drawn(page.page(pictures.BUSY))
    for tag, attrs in drawn.tags:
        assert "style" not in attrs, tag
        assert not [name for name in attrs if name.startswith("on")], tag
        assert tag != "style"
    names = sorted(address.partition("?")[0].removeprefix("static/") for address in drawn.loaded())
    assert names == sorted(STATIC)
    for name in STATIC:
        text = (FOLDER / "static" / name).read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"\w//|//\w|@import|url\(", text), f"{name} reaches elsewhere"


async def test_the_page_and_all_it_loads_stay_small(visit: Visit) -> None:
    nodes = [pictures.node(n % 99) for n in range(3_000)]
    wide = pictures.broadcast([node.id for node in nodes[:MOST_TAKES]], senders=32)
    state = msgspec.structs.replace(pictures.BUSY, steps=pictures.steps(5_000), nodes=nodes, broadcast=wide)
    session = await visit(application(still(state)))
    total = 0
    for path in ["/", *(f"/static/{name}" for name in STATIC)]:
        _, _, body = await fetched(session, path, **{"Accept-Encoding": "gzip"})
        total += len(body)
    assert total < BUDGET


async def test_a_packed_answer_is_the_plain_one(visit: Visit) -> None:
    session = await visit(application(still(pictures.BUSY)))
    for path in ("/", "/api/v1/run", "/metrics", "/static/page.css"):
        _, _, plain = await fetched(session, path)
        _, headers, packed = await fetched(session, path, **{"Accept-Encoding": "br, gzip"})
        assert headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed) == plain
        assert len(packed) < len(plain)


async def test_the_api_gives_the_picture_back(visit: Visit) -> None:
    session = await visit(application(still(pictures.BUSY)))
    _, headers, run = await fetched(session, "/api/v1/run")
    assert headers["Content-Type"] == "application/json"
    assert msgspec.json.decode(run, type=RunState) == pictures.BUSY
    _, _, nodes = await fetched(session, "/api/v1/nodes")
    assert msgspec.json.decode(nodes, type=list[NodeRow]) == pictures.NODES


async def test_the_leaderboard_is_there_as_a_table(visit: Visit) -> None:
    session = await visit(application(still(pictures.BUSY)))
    _, headers, body = await fetched(session, "/api/v1/nodes.csv")
    assert headers["Content-Type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(body.decode(), newline="")))
    assert [row["id"] for row in rows] == [node.id for node in pictures.NODES]
    assert (rows[1]["name"], rows[1]["refused"], rows[1]["connected"]) == ("Känguru im Keller", "3", "1")
    assert (rows[3]["name"], rows[3]["connected"], rows[4]["version"]) == ("", "0", "")


@pytest.mark.parametrize("name", ['=HYPERLINK("http://x")', "+1", "-1", "@a", "\t=1", "\r=1"])
def test_a_name_is_no_formula_in_a_spreadsheet(name: str) -> None:
    _, row = csv.reader(io.StringIO(csv_export.of_nodes([pictures.node(1, name=name)]), newline=""))
    assert row[1] == f"'{name}"


def test_a_name_with_commas_quotes_and_lines_stays_one_cell() -> None:
    name = 'a, "b"\nc'
    _, row = csv.reader(io.StringIO(csv_export.of_nodes([pictures.node(1, name=name)]), newline=""))
    assert row[1] == name
    assert len(row) == len(csv_export.COLUMNS)


def test_the_picture_holds_no_bytes_which_json_would_show_as_base64() -> None:
    schema = msgspec.json.schema(RunState)
    assert "base64" not in str(schema)


async def test_the_metrics_parse_and_say_what_the_picture_says(visit: Visit) -> None:
    session = await visit(application(still(pictures.BUSY)))
    _, headers, body = await fetched(session, "/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert all(name.startswith("echo2_") for name in families)

    def value(name: str, /, **labels: str) -> float:
        samples = [s for family in families.values() for s in family.samples if s.name == name and s.labels == labels]
        assert len(samples) == 1, name
        return samples[0].value

    assert value("echo2_step") == 26
    assert value("echo2_learner_idle_ratio") == 0.034
    assert value("echo2_groups_refused_total", reason="late") == 3
    assert value("echo2_heldout_accuracy", sampling="sampled") == pictures.BUSY.evaluations[-1].sampled
    assert value("echo2_broadcast_seconds", quantile="0.95") == pictures.BUSY.broadcast.p95
    assert value("echo2_broadcast_acknowledgements") == 3
    assert value("echo2_staleness_steps_bucket", le="2.0") == 31 + 188 + 142
    assert value("echo2_staleness_steps_count") == sum(pictures.BUSY.staleness)
    assert value("echo2_node_groups_accepted_total", node=pictures.NODES[0].id, name="brave-otter") == 243


async def test_what_is_not_measured_yet_is_no_metric(visit: Visit) -> None:
    session = await visit(application(still(pictures.EMPTY)))
    _, _, body = await fetched(session, "/metrics")
    samples = {sample.name for family in text_string_to_metric_families(body.decode()) for sample in family.samples}
    assert "echo2_step" in samples
    assert not samples & {"echo2_learner_idle_ratio", "echo2_reward", "echo2_capacity_need", "echo2_broadcast_seconds"}


async def test_the_picture_is_taken_at_most_once_a_second(visit: Visit) -> None:
    clock, source = Clock(), FixedRun(pictures.BUSY)
    session = await visit(application(source, clock))
    for path in ("/", "/live", "/api/v1/run", "/", "/metrics"):
        await fetched(session, path)
    assert source.calls == 1
    source.state = pictures.FINISHED
    clock.now += 1.0
    _, _, body = await fetched(session, "/api/v1/run")
    assert source.calls == 2
    assert msgspec.json.decode(body, type=RunState).phase == "finished"


async def test_the_script_replaces_exactly_the_parts_that_the_page_has() -> None:
    def parts(html: str) -> list[str | None]:
        return [attrs.get("id") for _, attrs in Drawn(html).tags if "data-part" in attrs]

    assert parts(page.live(pictures.BUSY)) == parts(page.page(pictures.BUSY))
    assert len(set(parts(page.live(pictures.BUSY)))) == 9


async def test_nothing_can_be_posted(visit: Visit) -> None:
    session = await visit(application(still(pictures.BUSY)))
    async with session.post("/", data=b"x") as answer:
        assert answer.status == 405
        assert "Content-Security-Policy" in answer.headers


async def test_a_taken_port_is_one_line_that_names_the_setting() -> None:
    first = await serve_web(application(still(pictures.EMPTY)), "127.0.0.1", 0)
    try:
        with pytest.raises(LocalFault, match=rf"port {first.port} .*web\.port"):
            await serve_web(application(still(pictures.EMPTY)), "127.0.0.1", first.port)
    finally:
        await first.stop()
        await first.stop()


def test_every_reason_of_a_receipt_has_words_without_gaps() -> None:
    for code in refusal_texts.WORDS:
        assert code in REASONS
    for code in REASONS:
        if code != "ok":
            assert refusal_texts.words(code)
            assert "{" not in refusal_texts.words(code)


def luminance(colour: str) -> float:
    """WCAG 2's relative luminance of #rrggbb."""
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
