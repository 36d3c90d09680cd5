"""The pages in a real Chromium: hostile texts run nothing, the policy is never broken, axe-core finds nothing serious,
and no page is wider than its window. `make test-web` installs what it needs."""

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.metrics.views import FaultView, RunState, TeamRow
from echo2.coordinator.web import page
from echo2.coordinator.web.pages import operator_page, page_export
from echo2.coordinator.web.site import ResponseCache, application, serve_web
from tests.support import pictures
from tests.support.fixed_run import FixedRun
from tests.support.group_world import TEXT, World, group
from tests.support.paths import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
INSTALLED = ROOT / ".browser" / "node_modules" / "puppeteer-core"
MISSING = not INSTALLED.exists() or CHROMIUM is None or shutil.which("node") is None
pytestmark = [pytest.mark.slow, pytest.mark.skipif(MISSING, reason="make test-web brings what it needs")]
QUICK = bool(os.environ.get("QUICK"))
"""Whether few pages are visited, at two widths: `make test-web QUICK=yes`."""
WIDTHS = (320, 1280) if QUICK else (320, 375, 768, 1280, 1920)
TOKEN = "t" * 43
_SHAPES = (
    "<script>hostile.push('{n}')</script>",
    "<img src=x onerror=hostile.push('{n}')>",
    '"><svg onload=hostile.push({n})>',
    "' onmouseover=hostile.push({n}) x='",
    "javascript:hostile.push({n})",
    "</title><script>hostile.push({n})</script>",
    "{{{{ 7*7 }}}}{{% {n} %}}",
    "\u202e{n}\u2066evil",
    "<iframe srcdoc='<script>parent.hostile.push({n})</script>'>",
    "<style>*{{display:none}}</style>{n}",
    "<base href=//evil.example/{n}>",
    "<meta http-equiv=refresh content=0;//{n}>",
    "\x00\x1b[2J{n}",
    "&lt;script&gt;hostile.push({n})",
    "<a href=javascript:hostile.push({n})>click</a>",
    "WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW{n}",
    "=cmd|' /C calc'!A{n}",
    "{n}\U0001f469\u200d\U0001f680\u0301\u0301\u0301",
    "]]><script>hostile.push({n})</script>",
    "<math><mtext><img src onerror=hostile.push({n})>",
)
HOSTILE = [_SHAPES[number % len(_SHAPES)].format(n=number) for number in range(200)]
NODES = 100


def hostile_state() -> RunState:
    """A run of which every text that others choose is hostile: of 100 nodes, 50 teams, and of the run itself."""
    nodes = [
        pictures.node(
            number % 99, id=f"{pictures.NODES[0].id[:-3]}{number:03d}".replace("0", "z"), name=text, device=text,
            engine=text, refused=1, refusals={text: 1},
        )
        for number, text in enumerate(HOSTILE[:NODES])
    ]  # fmt: skip
    teams = [
        TeamRow(id=f"{number:064x}", name=text, members=1, groups=2, weight=3, score=4)
        for number, text in enumerate(HOSTILE[100:150])
    ]
    return msgspec.structs.replace(
        pictures.PAID, nodes=nodes, teams=teams, name=HOSTILE[150], model=HOSTILE[151], description=HOSTILE[152],
        contact=HOSTILE[153], page=HOSTILE[154], installing=HOSTILE[155],
        faults=[FaultView(at=0, what=text) for text in HOSTILE[156:166]],
    )  # fmt: skip


async def visited(url: str, pages: list[str], **more: Any) -> dict[str, Any]:
    """Visit pages; return what the browser saw."""
    script = ROOT / ".browser" / "visit.mjs"
    shutil.copyfile(ROOT / "tests" / "browser" / "js" / "visit.mjs", script)
    child = await asyncio.create_subprocess_exec(
        "node", str(script), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT / ".browser"
    )
    asked = {"url": url, "pages": pages, "widths": WIDTHS, "chromium": CHROMIUM, **more}
    said, _ = await child.communicate(json.dumps(asked).encode())
    assert child.returncode == 0
    seen: dict[str, Any] = json.loads(said)
    return seen


@pytest.fixture
async def public() -> AsyncIterator[tuple[str, RunState]]:
    state = hostile_state()
    site = await serve_web(application(FixedRun(state)), "127.0.0.1", 0)
    yield site.url.rstrip("/"), state
    await site.stop()


def nothing_wrong(seen: dict[str, Any], pages: int) -> None:
    assert seen["executed"] == []
    assert seen["violations"] == []
    assert seen["serious"] == []
    assert seen["wide"] == []
    assert seen["visited"] == pages * (len(WIDTHS) + 1)


async def test_public_pages_of_hostile_nodes_and_teams(public: tuple[str, RunState]) -> None:
    url, state = public
    shown = [f"/nodes/{node.id}" for node in state.nodes[: 2 if QUICK else 20]]
    pages = ["/", "/nodes", *shown]
    nothing_wrong(await visited(url, pages, shots=os.environ.get("SHOTS")), len(pages))


async def test_a_copy_of_the_pages_and_a_report_of_hostile_nodes(tmp_path: Path) -> None:
    state = hostile_state()
    views = [pictures.made_by(node) for node in state.nodes[:2]]
    files = {**page_export.files_of(state, views), "report.html": page.report(state, HOSTILE).encode()}
    for name, body in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(body)
    app = web.Application()
    app.router.add_static("/", tmp_path)
    site = await serve_web(app, "127.0.0.1", 0)
    pages = ["/index.html", "/nodes.html", f"/nodes/{state.nodes[0].id}.html", "/report.html"]
    try:
        nothing_wrong(await visited(site.url.rstrip("/"), pages), len(pages))
    finally:
        await site.stop()


class HostileTexts:
    """A tokenizer that reads every token of a model as a hostile text."""

    def encode(self, text: str) -> list[int]:
        return TEXT.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return HOSTILE[hash(tuple(tokens)) % len(HOSTILE)]


async def test_pages_of_the_operator_with_hostile_rollouts(tmp_path: Path) -> None:
    (tmp_path / "coordinator.toml").touch()
    world = World(tmp_path)
    for number in range(20):
        if number and number % 2 == 0:
            world.learner_at(number // 2)
        lease = world.lease(version=number // 2)
        world.submit(group(lease, [f"{number} {sample}" for sample in range(len(lease.seeds))]))
        world.decide_all()
    cache = ResponseCache(FixedRun(hostile_state()).current_state, time.monotonic)
    app = operator_page.application(
        RunFolder(tmp_path),
        [FaultView(at=0, what=text) for text in HOSTILE[:5]],
        cache,
        TOKEN,
        tokenizer_of=lambda _: HostileTexts(),
    )
    site = await serve_web(app, "127.0.0.1", 0)
    pages = ["/", "/rollouts", "/rollouts?words=%3Cscript%3E", f"/rollouts/{lease.id.hex()}"]
    pages.append(f"/rollouts/{lease.id.hex()}?sample=0")
    try:
        nothing_wrong(await visited(f"{site.url}{TOKEN}", pages), len(pages))
    finally:
        await site.stop()
        world.close()


async def test_a_planted_script_would_have_been_seen() -> None:
    """The visit sees what it looks for: a page without a policy that runs a script, is too wide, and lacks contrast."""

    async def planted(request: web.Request) -> web.Response:
        return web.Response(
            content_type="text/html",
            text="<title>x</title><p style='color:#ddd;background:#fff;width:3000px'>faint</p>"
            "<script>hostile.push('ran')</script>",
        )

    app = web.Application()
    app.router.add_get("/", planted)
    site = await serve_web(app, "127.0.0.1", 0)
    seen = await visited(site.url.rstrip("/"), ["/"])
    await site.stop()
    assert seen["executed"]
    assert seen["wide"]
    assert any("color-contrast" in one for one in seen["serious"])
