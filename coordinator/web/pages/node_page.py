"""The page of a node: what it made, what was learned from it, refusals with reasons, proofs, a badge and a feed.

Rules
1. The address by peer id is permanent; a name leads there while one node alone has it.
2. A page shows the groups leased last of those that are decided, and the last steps, so no page grows with the run. Of
   an accepted group no code is shown, as it would tell canaries from others.
3. A page is read and rendered in a thread, for half of the time at most over all visitors (rationed_reads.py). Any
   cache may hold it for `PAGE_SECONDS`.
"""

import gzip
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from itertools import groupby
from typing import Final, NamedTuple, Protocol

import msgspec
from aiohttp import web

from echo2.coordinator.database.database import Database
from echo2.coordinator.metrics.views import LearnedStep, MadeGroup, NodeRow, NodeView, RunState
from echo2.coordinator.nodes.node_names import display_name, skeleton
from echo2.coordinator.web import curves, node_rows, page, refusal_texts
from echo2.coordinator.web.page_listener import party_of
from echo2.coordinator.web.rationed_reads import RationedReads
from echo2.coordinator.web.tile_routes import etag_of, headers_unless_known
from echo2.p2p.errors import Malformed
from echo2.p2p.identity import peer_id, public_key

MOST_GROUPS: Final = 50
MOST_STEPS: Final = 20
PAGE_SECONDS: Final = 10
_MOST_LEASES: Final = 200
_READ_SHARE: Final = 1.0
_LETTER: Final = 6.6  # width of a letter of the badge, in its units
_PEER: Final = "/nodes/{peer:[0-9A-Za-z]{40,64}}"


class NodeSource(Protocol):
    """The source of the pages: coordinator/web/run_view_builder.py. Called in a thread."""

    def find_node(self, name: str) -> str | None:
        """Return the peer id of the node that a name or peer id names; None: it names no node, or several."""

    def node(self, peer: str) -> NodeView | None:
        """Return a node and what became of its work; None: there is no such node."""


class StepShare(NamedTuple):
    """A step that learned from a node. `reward`, `change`: reward there, and against the step before; None: not
    known."""

    step: int
    groups: int
    reward: float | None
    change: float | None


class VersionNews(NamedTuple):
    """An entry of the feed: what became of a node's groups of one version. `refused`: groups by code."""

    version: int
    at: int
    accepted: int
    refused: dict[str, int]


Render = Callable[[NodeView, RunState], str]


class NodePages:
    """The handlers. `state`: returns the current state. `clock`: monotonic seconds."""

    def __init__(
        self, source: NodeSource, state: Callable[[], Awaitable[RunState]], clock: Callable[[], float]
    ) -> None:
        self._source = source
        self._state = state
        self._reads = RationedReads("pages of nodes", clock, _READ_SHARE)

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        router = app.router
        self._reads.end_with(app)
        router.add_get(_PEER, self._handler("text/html; charset=utf-8", render_page))
        router.add_get(f"{_PEER}.svg", self._handler("image/svg+xml", render_badge))
        router.add_get(f"{_PEER}.atom", self._handler("application/atom+xml", render_feed))
        router.add_get(f"/api/v1{_PEER}", self._handler("application/json", render_json))
        router.add_get("/nodes/{name}", self._lead)

    def _handler(self, kind: str, render: Render) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def show(request: web.Request) -> web.StreamResponse:
            peer, state = request.match_info["peer"], await self._state()
            packed = "gzip" in request.headers.get("Accept-Encoding", "")

            def read() -> bytes | None:
                view = self._source.node(peer)
                body = None if view is None else render(view, state).encode()
                return gzip.compress(body, 1, mtime=0) if packed and body is not None else body

            if (body := await self._reads.read(party_of(request), read)) is None:
                raise web.HTTPNotFound(text="this run knows no such node: /nodes lists all of them")
            caching = {"Cache-Control": f"public, max-age={PAGE_SECONDS}", "Vary": "Accept-Encoding"}
            headers = {"Content-Type": kind, **caching, "ETag": etag_of(body)}
            if packed:
                headers["Content-Encoding"] = "gzip"
            return web.Response(body=body, headers=headers_unless_known(request, headers))

        return show

    async def _lead(self, request: web.Request) -> web.StreamResponse:
        """Lead from a name to the node's permanent address (rule 1)."""
        name = request.match_info["name"]
        peer = await self._reads.read(party_of(request), lambda: self._source.find_node(name))
        if peer is None:
            raise web.HTTPNotFound(text="no node, or more than one, has this name: /nodes lists all of them")
        raise web.HTTPFound(peer)


def find_node(database: Database, name: str) -> str | None:
    """Return the peer id of the node that a name or peer id names; None: it names no node, or several."""
    try:
        rows = database.all("SELECT key FROM nodes WHERE key = ?", (public_key(name),))
    except Malformed:
        query = "SELECT key FROM nodes WHERE skeleton = ? AND name = ? LIMIT 2"
        rows = database.all(query, (skeleton(display_name(name)), display_name(name)))
    return peer_id(rows[0][0]) if len(rows) == 1 else None


def most_work(database: Database, most: int, now: int) -> list[NodeRow]:
    """Return at most `most` nodes, those with the most accepted work."""
    return node_rows.page(database, None, most, (), {}, now).rows


def read_node(database: Database, peer: str, connected: Collection[str], now: int) -> NodeView | None:
    """Return a node and what became of its work; None: there is no such node."""
    rows = node_rows.rows_of(database, [peer], connected, {}, now)
    if not rows:
        return None
    key = public_key(peer)
    groups = database.all(  # unordered, so that it ends at the last one that is shown
        "SELECT l.id, v.at, l.version, v.verdict, v.code, v.rollouts FROM"
        " (SELECT id, version FROM leases WHERE node = ? ORDER BY sent DESC LIMIT ?) l"
        " CROSS JOIN verdicts v ON v.lease = l.id LIMIT ?",
        (key, _MOST_LEASES, MOST_GROUPS),
    )
    steps = database.all("SELECT step, groups FROM learned WHERE node = ? ORDER BY step DESC", (key,))
    return NodeView(
        node=rows[0],
        groups=[
            MadeGroup(
                lease=lease.hex(), at=at, version=version, code=code if verdict == "refused" else "", rollouts=rollouts
            )
            for lease, at, version, verdict, code, rollouts in sorted(groups, key=lambda row: (-row[1], row[0]))
        ],
        learned=[LearnedStep(step=step, groups=groups) for step, groups in steps],
    )


def render_page(view: NodeView, state: RunState, *, suffix: str = "") -> str:
    """Render the page. `suffix`: see `page.facts`."""
    return page.render(
        "node.html",
        base="../",
        suffix=suffix,
        state=state,
        row=page.volunteer_of(state, 0, view.node),
        view=view,
        shares=_shares(view, state),
        refusals=refusal_texts.rows(view.node.refusals),
        chart=curves.learned_chart(state, {one.step for one in view.learned}) if view.learned else None,
        words=refusal_texts.words,
    )


def render_badge(view: NodeView, state: RunState) -> str:
    """Render the badge, an image for other sites."""
    left, right = state.name[:40], f"{_name(view)}: {view.node.accepted:,} groups"
    widths = [round(12 + _LETTER * len(text)) for text in (left, right)]
    return page.render("badge.svg", left=left, right=right, widths=widths)


def render_feed(view: NodeView, state: RunState) -> str:
    """Render the feed: an entry per version of the last groups."""
    return page.render("feed.atom", view=view, state=state, name=_name(view), news=news_of(view))


def render_json(view: NodeView, state: RunState) -> str:
    """Render the node as JSON."""
    return msgspec.json.encode(view).decode()


def news_of(view: NodeView) -> list[VersionNews]:
    """Return what became of the last groups, by version; a version of which older groups may be cut off is left out."""
    ordered = sorted(view.groups, key=lambda group: -group.version)
    news = []
    for version, some in groupby(ordered, key=lambda group: group.version):
        groups = list(some)
        refused = Counter(group.code for group in groups if group.code)
        news.append(VersionNews(version, max(one.at for one in groups), len(groups) - refused.total(), dict(refused)))
    return news[:-1] if len(view.groups) == MOST_GROUPS and len(news) > 1 else news


def _shares(view: NodeView, state: RunState) -> list[StepShare]:
    rewards = {one.step: one.reward for one in state.steps}

    def share(one: LearnedStep) -> StepShare:
        now, before = rewards.get(one.step), rewards.get(one.step - 1)
        return StepShare(one.step, one.groups, now, None if now is None or before is None else now - before)

    return [share(one) for one in view.learned[:MOST_STEPS]]


def _name(view: NodeView) -> str:
    return view.node.name or view.node.id[-8:]
