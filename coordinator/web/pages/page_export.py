"""`echo2-coord page export`: a copy of the public page as files, for any web host.

Rules
1. The copy is of now where a coordinator runs, else of the state at its last end; nodes are read from run.sqlite. It
   needs no script, loads nothing from other hosts, and holds what the public page shows and nothing else.
2. Files are written into a hidden folder beside the named one, which appears whole or not at all.
3. Pages have names that end with .html, JSON with .json, so that a web host knows their types.
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.metrics.views import NodeView, RunState
from echo2.coordinator.web import csv_export, page, report_file
from echo2.coordinator.web.node_rows import Page
from echo2.coordinator.web.pages import node_page
from echo2.coordinator.web.pages.node_page import render_badge, render_json, render_page
from echo2.coordinator.web.site import BODIES, SECURITY, STATIC
from echo2.runtime.errors import LocalFault

MOST_NODES: Final = 1_000
"""Nodes with a page of their own, those with the most accepted work."""
HTML: Final = ".html"
_POLICY: Final = '<meta http-equiv="Content-Security-Policy" content="{}">'


def export(home: Path, folder: Path, now: int) -> str:
    """Write a copy of the page of the run in `home`; return what it is, in words. Raises `LocalFault`, `Untrusted`."""
    place, folder = RunFolder(home), folder.resolve()
    state, source = report_file.state_of(place)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LocalFault(f"{folder} exists and is not empty: name another folder")
    with Database.read(place.database) as database, database.reading():
        rows = node_page.most_work(database, MOST_NODES, now)
        views = [view for row in rows if (view := node_page.read_node(database, row.id, (), now)) is not None]
    hidden = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir(parents=True)  # a link, or another user's folder, of that name is refused
        for name, body in files_of(state, views).items():
            file = hidden / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(body)
        if folder.exists():
            folder.rmdir()
        hidden.rename(folder)
    except OSError as error:
        shutil.rmtree(hidden, ignore_errors=True)
        raise LocalFault(f"cannot write {folder} ({error.strerror}): name another folder") from error
    return f"{folder}: {source}, step {state.step}, with pages of {len(views)} nodes; put it on any web host"


def files_of(state: RunState, views: list[NodeView]) -> Mapping[str, bytes]:
    """Return the files of a copy, by path. `views`: the nodes with a page, most accepted work first."""
    return dict(_files(state, views))


def _files(state: RunState, views: list[NodeView]) -> Iterator[tuple[str, bytes]]:
    rows = [view.node for view in views]
    yield "index.html", _document(page.page(state, suffix=HTML))
    yield "nodes.html", _document(page.ranking(state, Page(rows, 1, None), suffix=HTML))
    for view in views:
        yield f"nodes/{view.node.id}.html", _document(render_page(view, state, suffix=HTML))
        yield f"nodes/{view.node.id}.svg", render_badge(view, state).encode()
        yield f"api/v1/nodes/{view.node.id}.json", render_json(view, state).encode()
    yield "api/v1/nodes.json", msgspec.json.encode(rows)
    yield "api/v1/nodes.csv", csv_export.of_nodes(rows, market=state.market is not None).encode()
    for path in ("/api/v1/run", "/api/v1/teams"):
        yield f"{path[1:]}.json", BODIES[path][1](state)
    for path in ("/api/v1/steps.csv", "/api/v1/tasks.csv", "/api/v1/market.csv", "/invite", "/ledger/head"):
        yield path[1:], BODIES[path][1](state)
    for name in STATIC:
        if not name.endswith(".js"):
            yield f"static/{name}", page.asset(name)


def _document(html: str) -> bytes:
    """Return a page that states its own content security policy, which a web host may not."""
    policy = SECURITY["Content-Security-Policy"].partition("; frame-ancestors")[0]
    return html.replace("<head>", f"<head>\n{_POLICY.format(policy)}", 1).encode()
