"""The operator's page: its token, what it shows, and that nothing of it is at the public port, also behind a proxy."""

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from aiohttp import ClientSession, web

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.trouble_views import (
    GuardRow,
    GuardView,
    PauseView,
    RollbackView,
    SetAsideView,
    TroubleView,
)
from echo2.coordinator.metrics.views import FaultView, SettingChange, TaskRow
from echo2.coordinator.settings.network_config import WebSection
from echo2.coordinator.web.formatting import moment
from echo2.coordinator.web.pages import operator_page, rollout_pages
from echo2.coordinator.web.pages.private_facts import (
    public_guard,
    public_tasks,
    public_trouble,
    without_places,
)
from echo2.coordinator.web.site import ResponseCache, application, serve_web
from echo2.runtime.errors import LocalFault
from tests.support import pictures
from tests.support.fixed_run import FixedRun
from tests.support.group_world import SPEC, TEXT, World, group
from tests.support.reverse_proxies import is_installed, proxying
from tests.support.site_visits import Drawn, Visit, fetched

TOKEN = "t" * 43
FAULT = FaultView(at=1_790_000_000_000, what="learner ended: No such file: /home/ann/runs/first/model.safetensors")
OPERATED = msgspec.structs.replace(
    pictures.PAID, rollouts=2_000,
    capacity=msgspec.structs.replace(pictures.BUSY.capacity, verified=240.0),
    changes=[SettingChange(at=pictures.STARTED, step=20, key="learner.learning_rate", old="0.0003", new="0.001")],
    guard=GuardView(
        rows=[GuardRow(kind="cut", title="it is cut", now="0.1", mood="ok", holds=0, pause_after=16, remedy="mend it")]
    ),
)  # fmt: skip
HOSTILE = "<img src=x onerror=alert(1)>\u202eevil\x1b[31m"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    (tmp_path / "coordinator.toml").write_text('[web]\nnames = ["run.example.org"]\n')
    opened = World(tmp_path)
    yield opened
    opened.close()


def cache_of(state: object = pictures.BUSY) -> ResponseCache:
    return ResponseCache(FixedRun(state).current_state, time.monotonic)  # type: ignore[arg-type]


def private(world: World) -> web.Application:
    folder = RunFolder(world.group_service.database.path.parent)
    return operator_page.application(folder, [FAULT], cache_of(OPERATED), TOKEN, tokenizer_of=lambda _: TEXT)


def answered(world: World, *texts: str) -> str:
    lease = world.lease()
    world.submit(group(lease, [texts[number % len(texts)] for number in range(len(lease.seeds))]))
    world.decide_all()
    return lease.id.hex()


async def test_every_path_asks_for_the_token(world: World, visit: Visit) -> None:
    session = await visit(private(world))
    for path in ("/", "/rollouts", f"/{TOKEN[:-1]}/", f"/{TOKEN}x/", f"/{'u' * 43}/live", "/static/page.css", "//"):
        status_, headers, body = await fetched(session, path)
        assert status_ == 401, path
        assert b"echo2-coord page" in body
    status_, headers, _ = await fetched(session, f"/{TOKEN}/")
    assert (status_, headers["Cache-Control"]) == (200, "no-store")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in headers


async def test_it_shows_curves_faults_settings_and_what_work_costs(world: World, tmp_path: Path, visit: Visit) -> None:
    session = await visit(private(world))
    drawn = Drawn((await fetched(session, f"/{TOKEN}/"))[2].decode())
    words = " ".join(drawn.words.split())
    for wanted in (
        FAULT.what, "Held-out accuracy", "Reward", "Length of answers", "Entropy", "KL to", "Gradient norm",
        "Learning rate", "Tokens per second", 'web.names = ["run.example.org"]', "All settings", "251 of 226",
        "Age of the work", "scorer, of what steps need240 of 227 rollouts/s", "wait for it3",
        f"Tbcast{moment(OPERATED.broadcast.applied or 0.0)}", "1,000 accepted rollouts cost7.15 USD", "mean diff27 kB",
        "Guard", "it is cut", "From step 20: learner.learning_rate is 0.001, it was 0.0003", str(tmp_path),
        socket.gethostname(),
    ):  # fmt: skip
        assert wanted in words, wanted
    assert not [attrs for _, attrs in drawn.tags if "style" in attrs]


async def test_a_file_of_settings_that_was_edited_wrongly_is_a_sentence_on_the_page(
    world: World, tmp_path: Path, visit: Visit
) -> None:
    (tmp_path / "coordinator.toml").write_text("[run]\nstepz = 4\n")
    status_, _, body = await fetched(await visit(private(world)), f"/{TOKEN}/")
    assert status_ == 200
    assert "the next start would be refused" in Drawn(body.decode()).words
    assert "did you mean" in Drawn(body.decode()).words


async def test_rollouts_are_listed_searched_and_shown_with_their_tokens(world: World, visit: Visit) -> None:
    lease, other = answered(world, "abc", "xyz"), answered(world, "q")
    session = await visit(private(world))
    page = (await fetched(session, f"/{TOKEN}/rollouts"))[2].decode()
    assert page.index(other[:8]) < page.index(lease[:8])
    found = (await fetched(session, f"/{TOKEN}/rollouts?words=XYZ"))[2].decode()
    assert lease[:8] in found
    assert other[:8] not in found
    whole = Drawn((await fetched(session, f"/{TOKEN}/rollouts/{lease}"))[2].decode())
    assert "Answer 1" in whole.words
    tokens = Drawn((await fetched(session, f"/{TOKEN}/rollouts/{lease}?sample=1"))[2].decode())
    assert [attrs["title"] for tag, attrs in tokens.tags if tag == "span" and "title" in attrs][:3] == ["0.6065"] * 3
    none = (await fetched(session, f"/{TOKEN}/rollouts?words=nowhere"))[2].decode()
    assert "matches" in none


async def test_a_wrong_search_is_one_sentence(world: World, visit: Visit) -> None:
    session = await visit(private(world))
    for query in ("version=x", "order=luck", "node=me", "prompt=-1"):
        status_, _, body = await fetched(session, f"/{TOKEN}/rollouts?{query}")
        assert (status_, body.count(b"\n")) == (400, 0), query
    for path in ("rollouts/zz", f"rollouts/{'0' * 32}"):
        assert (await fetched(session, f"/{TOKEN}/{path}"))[0] == 404, path


async def test_a_search_that_takes_long_says_what_it_left_out(
    world: World, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(world, "abc")
    monkeypatch.setattr(rollout_pages, "SEARCH_SECONDS", -1.0)
    session = await visit(private(world))
    assert b"older groups were not searched" in (await fetched(session, f"/{TOKEN}/rollouts?words=abc"))[2]


async def test_texts_of_a_model_are_text(world: World, visit: Visit) -> None:
    (row,) = [answered(world, "abc")]
    session = await visit(private(world))
    shown = msgspec.structs.replace(
        rollout_pages.read_group(world.group_service.database, TEXT, bytes.fromhex(row)), prompt=HOSTILE, name=HOSTILE
    )
    from echo2.coordinator.web import page as drawing

    drawn = drawing.render("rollout.html", base="../", group=shown, chosen=None, most=10, band=rollout_pages.band)
    assert "<img" not in drawn
    assert "\u202e" not in Drawn(drawn).words
    assert "\\x1b[31m" in Drawn(drawn).words
    searched = (await fetched(session, f"/{TOKEN}/rollouts?words={quote(HOSTILE)}"))[2].decode()
    assert "<img" not in searched


@pytest.mark.parametrize("letters", [3_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
async def test_of_a_long_answer_a_page_has_a_bounded_part_of_the_tokens(
    letters: int, tmp_path: Path, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "coordinator.toml").touch()
    world = World(tmp_path, spec=msgspec.structs.replace(SPEC, limit=1 << 20))
    monkeypatch.setattr(rollout_pages, "MOST_TOKENS", min(rollout_pages.MOST_TOKENS, letters // 10))
    lease = answered(world, "ab" * (letters // 2), "no")
    session = await visit(private(world))
    sizes = {}
    for path in ("rollouts", f"rollouts?words={'ab' * 40}", f"rollouts/{lease}", f"rollouts/{lease}?sample=0"):
        status_, _, body = await fetched(session, f"/{TOKEN}/{path}")
        assert status_ == 200
        sizes[path] = len(body)
    most = rollout_pages.MOST_TOKENS
    assert body.count(b'<span class="t3" title=') == most
    assert f"The first {most:,} of {letters + 1:,} tokens".encode() in body, "with its end"
    assert f"rollouts show {lease} --sample 0".encode() in body
    assert letters < sizes.popitem()[1] < letters + 50 * most + 10_000, "all of the text, and some tokens"
    assert max(sizes.values()) < 100_000
    world.close()


SERVERS = {
    program: pytest.mark.skipif(
        not is_installed(program), reason=f"{program} is not installed (Debian: apt install {program})"
    )
    for program in ("nginx", "caddy")
}


@pytest.fixture(params=["none", *(pytest.param(program, marks=mark) for program, mark in SERVERS.items())])
async def proxied(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> AsyncIterator[ClientSession]:
    """Clients of the public page by its public name: at its port, and at that of a web server, set up as
    docs/first-run.md says."""
    folder = RunFolder(world.group_service.database.path.parent)
    public = await serve_web(application(FixedRun(pictures.BUSY), names=["run.example.org"]), "127.0.0.1", 0)
    mine = await operator_page.serve(folder, WebSection(), [FAULT], cache_of())
    assert mine is not None
    place = public.url.removeprefix("http://").rstrip("/")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(public.stop)
        stack.push_async_callback(mine.stop)
        entrance = public.url
        if request.param != "none":
            entrance = await stack.enter_async_context(proxying(request.param, tmp_path / "proxy", place))
        named = {"Host": f"run.example.org:{entrance.rstrip('/').rpartition(':')[2]}"}
        yield await stack.enter_async_context(ClientSession(entrance, headers=named))


async def test_the_public_port_has_no_private_route_also_behind_a_proxy(world: World, proxied: ClientSession) -> None:
    folder = RunFolder(world.group_service.database.path.parent)
    app = private(world)
    paths = {resource.canonical for resource in app.router.resources()}
    assert len(paths) > 5
    token = folder.operator_page.read_text().rstrip("/\n").rpartition("/")[2]
    for path in paths:
        asked = [path.replace("{token}", token).replace("{lease}", "0" * 32)]
        asked += [asked[0].removeprefix(f"/{token}")] if "static" not in path and path.count("/") > 2 else []
        for one in asked + [path.removeprefix("/{token}")] * ("rollouts" in path):
            async with proxied.get(one) as answer:
                assert answer.status == 404, one
    async with proxied.get("/") as answer:
        shown = await answer.text()
    assert answer.status == 200
    assert token not in shown


async def test_the_token_is_for_its_owner_alone_and_stays_over_restarts(tmp_path: Path) -> None:
    folder, tokens = RunFolder(tmp_path), []
    for _ in range(2):
        served = await operator_page.serve(folder, WebSection(), [], cache_of())
        assert served is not None
        tokens.append(served.address.rstrip("/").rpartition("/")[2])
        await served.stop()
    assert folder.operator_page.stat().st_mode & 0o777 == 0o600
    assert tokens[0] == tokens[1]
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", tokens[0])
    folder.page.write_text("http://127.0.0.1:8420\n")
    assert tokens[0] in "\n".join(status.pages_in(folder))
    assert await operator_page.serve(folder, WebSection(operator_listen=""), [], cache_of()) is None
    assert "switched off" in "\n".join(status.pages_in(folder))


async def _folders_made_meanwhile_can_be_opened(place: Path, run: RunFolder, section: WebSection) -> None:
    async def make() -> None:
        while True:
            (made := place / "made").mkdir()
            assert made.stat().st_mode & 0o700 == 0o700
            made.rmdir()
            await asyncio.sleep(0)

    making = asyncio.create_task(make())
    served = await operator_page.serve(run, section, [], cache_of())
    assert served is not None
    assert not making.done()
    making.cancel()
    await served.stop()


async def test_a_unix_socket_serves_its_owner_and_takes_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "coordinator.toml").touch()
    run = RunFolder(tmp_path)
    run.database.touch()
    place = tmp_path / "operator.sock"
    section = WebSection(operator_listen=str(place))
    served = await operator_page.serve(run, section, [], cache_of())
    assert served is not None
    assert place.stat().st_mode & 0o777 == 0o600
    token = served.address.split("/")[3]
    from aiohttp import UnixConnector

    async with ClientSession(connector=UnixConnector(str(place))) as session:
        async with session.get(f"http://any.name/{token}/live") as answer:
            assert answer.status == 200
        async with session.get("http://any.name/") as answer:
            assert answer.status == 401
    with pytest.raises(LocalFault, match="another process listens"):
        await operator_page.serve(run, section, [], cache_of())
    await served.stop()
    await _folders_made_meanwhile_can_be_opened(tmp_path, run, section)
    place.unlink(missing_ok=True)
    place.write_text("mine")
    with pytest.raises(LocalFault, match=r"web\.operator_listen"):
        await operator_page.serve(run, section, [], cache_of())
    assert place.read_text() == "mine"


@pytest.mark.parametrize("place", ["0.0.0.0:8421", "192.168.1.7:80", "8421", "example.org:1", "127.0.0.1:x", "[::]:1"])
def test_a_public_place_is_refused_with_a_sentence(place: str) -> None:
    with pytest.raises(ValueError, match=r"write 127\.0\.0\.1:8421, or the path of a Unix socket"):
        WebSection(operator_listen=place)


def test_paths_and_hosts_are_left_out_of_public_texts() -> None:
    assert without_places(FAULT.what) == "learner ended: No such file: …/model.safetensors"
    assert without_places("connect to 10.0.0.7:29500 or gpu-1.lan:29500 failed") == "connect to … or … failed"
    assert without_places("failed to connect to [gpu1]:29500, (gpu1.lan, 29500)") == "failed to connect to …, …"
    assert without_places("[2001:db8::7]:4310, 2001:db8::7 and ::1") == "…, … and …"
    assert without_places("math:/srv/sums.jsonl or file:///home/ann/a.py") == "math:…/sums.jsonl or …/a.py"
    for text in ("3/4 of 7:30", "KL of 0.5 at step 12/40", "https://example.org/a/b", "transformers/float32/cpu",
                 "c10::Error in std::vector", "at 12:30:45 UTC", "(step, 12)"):  # fmt: skip
        assert without_places(text) == text, text


def test_the_sentences_of_a_run_in_trouble_are_public_without_places() -> None:
    secret = "/home/ann/sums.jsonl"
    trouble = TroubleView(
        paused=PauseView(kind="task-score", why=f"math:{secret} fails", since=0, until=None), waiting=f"for {secret}",
        set_aside=[SetAsideView(at=0, groups=1, reason=f"no {secret}")], reasons={f"no {secret}": 1},
        episodes={f"no {secret}": 2, "no /srv/ann/sums.jsonl": 3},
    )  # fmt: skip
    shown = public_trouble(trouble)
    assert shown.episodes == {"no …/sums.jsonl": 5}
    row = GuardRow(
        kind="held-out", title="", now=f"math:{secret} solves 0.1", mood="ok", holds=0, pause_after=3, remedy=""
    )
    back = RollbackView(at=0, era=1, version=1, new_era=2, new_version=2, why=f"{secret}", automatic=True, rate=0.5)
    guard = public_guard(GuardView(rows=[row], rollbacks=[back]))
    assert guard.rows[0].now == "math:…/sums.jsonl solves 0.1"
    assert b"ann" not in msgspec.json.encode((shown, guard))


PRIVATE_WORDS = {
    "a host in brackets": ("cannot reach [gpu1]:29500 (errno 111)", "cannot reach … (errno 111)"),
    "an IPv6 address": ("cannot reach [fd00::7]:29500 by fd00::9", "cannot reach … by …"),
    "a pool of connections": ("ConnectionPool(host='judge', port=80) failed", "ConnectionPool(host=…, port=80) failed"),
    "a token in a query": ("Max retries with url: /score?token=abc", "Max retries with url: /score?…"),
    "a password": ("401 for https://ann:secret@judge.corp/v1", "401 for https://…/v1"),
    "a host of the intranet": ("404 for http://judge/v1", "404 for http://…/v1"),
}


@pytest.mark.parametrize("why", PRIVATE_WORDS)
def test_hosts_and_secrets_of_web_addresses_are_left_out_of_public_texts(why: str) -> None:
    text, public = PRIVATE_WORDS[why]
    assert without_places(text) == public


def test_no_reason_of_a_trouble_names_a_place() -> None:
    reason = "OSError: [Errno 2] No such file: /home/ann/judge/model.bin"
    public = "OSError: [Errno 2] No such file: …/model.bin"
    aside = SetAsideView(at=0, groups=3, reason=reason)
    shown = public_trouble(TroubleView(set_aside=[aside], reasons={reason: 3, public: 1}, episodes={reason: 7}))
    assert (shown.set_aside[0].reason, shown.reasons, shown.episodes) == (public, {public: 4}, {public: 7})
    (row,) = public_tasks([TaskRow(name="judge", kind="single", share=1.0, failed={reason: 7})])
    assert row.failed == {public: 7}


@pytest.mark.parametrize("piece", ["-", "a-", "a.", "-a.", "/", "/-", ":", "1:", "?", "a?", "[", "://", "1."])
def test_a_long_text_costs_no_more_than_its_length(piece: str) -> None:
    text = piece * (100_000 // len(piece))
    began = time.thread_time()
    without_places(text)
    assert time.thread_time() - began < 5


async def test_bytes_that_are_no_text_are_asked_for_the_token_and_not_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    site = await serve_web(private(world), "127.0.0.1", 0)
    for path in (b"/\xff\xfe", b"/\xed\xb3\xbf/", b"/%ff/rollouts"):
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert (await reader.read())[:12] in (b"HTTP/1.1 401", b"HTTP/1.0 400"), path
        writer.close()
    await site.stop()
    assert not caplog.records
