"""The operator's page, on a listener of its own that always asks for a token.

Rules
1. It listens on a loopback address or a Unix socket (`web.operator_listen`), never where the page does. A visitor's
   address says nothing behind a proxy on the same machine, so none is trusted: every path begins with the token, and
   any other is answered 401.
2. The token is `TOKEN_BYTES` random bytes. It stands in the run folder in a file that its owner alone can read, and
   stays the same over restarts, so that a bookmark holds. Without the file the next start chooses a new one.
3. Shown here alone are paths, hosts, settings, whole faults, and rollouts. No cache may hold a page.
4. The page changes nothing: commands do that.
"""

import hmac
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import structlog
from aiohttp import web

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.metrics.views import FaultView, RunState
from echo2.coordinator.settings import config_edits
from echo2.coordinator.settings.network_config import WebSection
from echo2.coordinator.submissions import rollouts_report
from echo2.coordinator.web import page
from echo2.coordinator.web.page_listener import SERVER_LOG, WebLimits
from echo2.coordinator.web.pages.rollout_pages import RolloutPages
from echo2.coordinator.web.site import SECURITY, STATIC, ResponseCache, answer_static, check_host, serve_web
from echo2.runtime.control_socket import bind_for_owner
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import writing
from echo2.runtime.settings import SettingsFault
from echo2.tasks.task import Tokenizer

TOKEN_BYTES: Final = 32
_TOKEN: Final = re.compile(r"/([A-Za-z0-9_-]{43})/\s*$")
_LIMITS: Final = WebLimits(connections=64, per_visitor=64)
_HEADERS: Final = {**SECURITY, "Content-Security-Policy": SECURITY["Content-Security-Policy"].replace(
    "form-action 'none'", "form-action 'self'")}  # fmt: skip
_HTML: Final = "text/html; charset=utf-8"

log = structlog.get_logger("coordinator")


def application(
    folder: RunFolder,
    faults: Sequence[FaultView],
    cache: ResponseCache,
    token: str,
    *,
    over_socket: bool = False,
    tokenizer_of: Callable[[RunFolder], Tokenizer] = rollouts_report.tokenizer_of,
) -> web.Application:
    """Return the web application. `faults`: deaths of child processes, whole. `cache`: cache of the public page, whose
    state is shown here as well. `over_socket`: whether a Unix socket serves it, so that any name may be asked for.
    `tokenizer_of`: returns the tokenizer of a run folder."""
    guards = [_ask_for(token)] if over_socket else [check_host(frozenset()), _ask_for(token)]
    app = web.Application(middlewares=guards)
    app.on_response_prepare.append(_add_headers)
    shown = {
        "/": (
            _HTML,
            lambda state: page.render("operator.html", facts(state, folder, faults), **settings(folder)).encode(),
        ),
        "/live": (_HTML, lambda state: _render("live.html", facts(state, folder, faults))),
    }
    prefix = "/{token:[A-Za-z0-9_-]{1,64}}"
    ResponseCache(cache.current_state, time.monotonic, shown).add_to(app, prefix)
    for name, kind in STATIC.items():
        app.router.add_get(f"{prefix}/static/{name}", answer_static(page.asset(name), kind))
    rollouts = RolloutPages(folder, tokenizer_of)
    app.router.add_get(f"{prefix}/rollouts", rollouts.show_list)
    app.router.add_get(prefix + "/rollouts/{lease}", rollouts.show)
    return app


def _render(template: str, values: dict[str, Any]) -> bytes:
    return page.render(template, values).encode()


def facts(state: RunState, folder: RunFolder, faults: Sequence[FaultView]) -> dict[str, Any]:
    """Return the values that the templates use, with those that are the operator's alone (rule 3)."""
    capacity = state.capacity
    seconds = capacity.step_seconds
    return page.facts(state, kept=True) | {
        "diffs": sum(row.diff_bytes is not None for row in state.versions),
        "private": {
            "least": capacity.need / capacity.gamma if capacity.need and capacity.gamma else None,
            "checked": capacity.rollouts_per_step / seconds if seconds else None,
            "cost": page.cost_per_thousand(state),
            "faults": list(faults),
            "folder": str(folder.path.resolve()),
            "host": socket.gethostname(),
            "free": shutil.disk_usage(folder.path).free,
            "database": folder.database.stat().st_size,
        },
    }


def settings(folder: RunFolder) -> dict[str, Any]:
    """Return the settings of the run folder as lines: those that differ from their defaults, and all. Where the file
    was edited so that it is wrong, a sentence says it."""
    try:
        differing = list(config_edits.list_differences(folder.config))
        return {"differing": differing, "every": list(config_edits.list_settings(folder.config, None, origin=True))}
    except SettingsFault as fault:
        return {"differing": [f"# the next start would be refused: {fault}"], "every": []}


async def serve(
    folder: RunFolder, section: WebSection, faults: Sequence[FaultView], cache: ResponseCache
) -> "OperatorSite | None":
    """Serve the operator's page; None: the setting switches it off. `faults`, `cache`: see `application`. Raises
    `LocalFault`, `DiskFull`."""
    place, token = section.operator_place, _token(folder)
    if place is None:
        folder.operator_page.unlink(missing_ok=True)
        return None
    app = application(folder, faults, cache, token, over_socket=isinstance(place, Path))
    if isinstance(place, Path):
        runner = web.AppRunner(app, access_log=None, logger=SERVER_LOG)
        await runner.setup()
        try:
            await _listen_on_socket(runner, place)
        except BaseException:
            await runner.cleanup()
            raise
        served = OperatorSite(f"http://localhost/{token}/ at the Unix socket {place.absolute()}", runner.cleanup)
    else:
        site = await serve_web(app, *place, limits=_LIMITS, setting="web.operator_listen")
        served = OperatorSite(f"{site.url}{token}/", site.stop)
    with writing(folder.operator_page, 0o600) as file:
        file.write(f"{served.address}\n".encode())
    log.info("operator's page ready", address="echo2-coord page prints it")
    return served


class OperatorSite:
    """The operator's page being served. `address`: how to open it, with the token."""

    def __init__(self, address: str, stop: Callable[[], Awaitable[None]]) -> None:
        self.address = address
        self.stop = stop


async def _listen_on_socket(runner: web.AppRunner, path: Path) -> None:
    """Listen on a Unix socket that its owner alone can open. Raises `LocalFault`."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        _remove_dead_socket(path)
        bind_for_owner(listener, path)
        await web.SockSite(runner, listener).start()
    except OSError as error:
        listener.close()
        raise LocalFault(
            f"the operator's page cannot be served at {path} ({error.strerror or error}): name another "
            "web.operator_listen"
        ) from error


def _remove_dead_socket(path: Path) -> None:
    """Remove a socket to which no process listens. Raises `OSError` if another process does, or it is another file."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(0, "there is a file of that name")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
        raise FileExistsError(0, "another process listens there")
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink()


def _token(folder: RunFolder) -> str:
    """Return the token (rule 2)."""
    try:
        kept = _TOKEN.search(folder.operator_page.read_text().split(" ")[0].strip())
    except OSError:
        kept = None
    return kept[1] if kept else secrets.token_urlsafe(TOKEN_BYTES)


def _ask_for(token: str) -> Any:
    @web.middleware
    async def ask(request: web.Request, handler: Any) -> web.StreamResponse:
        named = request.path.partition("/")[2].partition("/")[0].encode(errors="replace")  # bytes of no UTF-8
        if not hmac.compare_digest(named, token.encode()):
            raise web.HTTPUnauthorized(
                text="This is the operator's page. It asks for a token: `echo2-coord page` prints its whole address.",
                headers={"WWW-Authenticate": 'Bearer realm="the operator\'s page"'},
            )
        answer: web.StreamResponse = await handler(request)
        return answer

    return ask


async def _add_headers(request: web.Request, answer: web.StreamResponse) -> None:
    answer.headers.update(_HEADERS)
    answer.headers["Cache-Control"] = "no-store"
