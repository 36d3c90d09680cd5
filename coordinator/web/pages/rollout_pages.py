"""The operator's pages of stored rollouts: a list with a search, a group, and an answer with its tokens.

Rules
1. They show what `echo2-coord rollouts` shows (verdicts/stored_rollouts.py): groups whose tokens are stored.
2. Texts of a model are shown as text: characters that are not printed are written as escapes, and of an answer at most
   `MOST_TEXT` characters stand on the group's page; its own page has all, and the first `MOST_TOKENS` tokens.
3. One read runs at a time, in a thread, which draws the page too, as texts may be long. A search ends after
   `SEARCH_SECONDS`; the page says so.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import anyio.to_thread
from aiohttp import web

from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.nodes.operator_remarks import key_of
from echo2.coordinator.submissions import rollouts_report
from echo2.coordinator.submissions.verdict_commands import lease_of
from echo2.coordinator.verdicts.stored_rollouts import ShownGroup, Wanted, list_groups, read_group
from echo2.coordinator.web import page
from echo2.runtime.errors import LocalFault
from echo2.tasks.task import Tokenizer

MOST_TEXT: Final = 20_000
MOST_TOKENS: Final = 20_000
SEARCH_SECONDS: Final = 5.0
GROUPS_SHOWN: Final = 20
_FIELDS: Final = ("words", "order", "version", "task", "prompt", "node", "refused")
_BANDS: Final = (0.01, 0.1, 0.5)
"""Probabilities below which a token is marked, the rarest first."""
T = TypeVar("T")


class RolloutPages:
    """The handlers of the pages of a run folder."""

    def __init__(self, folder: RunFolder, tokenizer_of: Callable[[RunFolder], Tokenizer]) -> None:
        self._folder = folder
        self._tokenizer_of = tokenizer_of
        self._tokenizer: Tokenizer | None = None
        self._reading = asyncio.Lock()

    async def show_list(self, request: web.Request) -> web.StreamResponse:
        """Answer with the groups that match the query."""
        asked = {name: request.query.get(name, "").strip() for name in _FIELDS}
        try:
            wanted = wanted_groups(asked)
        except LocalFault as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        none = rollouts_report.explain_none(self._folder, wanted)

        def draw() -> str:
            groups, whole = self._find(wanted)
            return page.render("rollouts.html", base="", groups=groups, whole=whole, asked=asked, reason=none)

        return _html(await self._read(draw))

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Answer with a group, or with one answer of it and its tokens (`?sample=`)."""
        sample = request.query.get("sample", "")
        try:
            lease = lease_of(request.match_info["lease"])
            group = await self._read(lambda: self._group(lease, by_token=bool(sample)))
        except LocalFault as error:
            raise web.HTTPNotFound(text=str(error)) from error
        if group is None:
            raise web.HTTPNotFound(text=f"the tokens of {lease.hex()} are not stored, or no longer")
        if sample and not (sample.isdecimal() and len(sample) < 6 and int(sample) < len(group.answers)):
            raise web.HTTPNotFound(text=f"the group has the answers 0 to {len(group.answers) - 1}")
        chosen = group.answers[int(sample)] if sample else None
        values: dict[str, Any] = {"base": "../", "group": group, "chosen": chosen, "band": band}
        values |= {"most": MOST_TEXT, "most_tokens": MOST_TOKENS}
        return _html(await self._read(lambda: page.render("rollout.html", values)))

    async def _read(self, action: Callable[[], T]) -> T:
        async with self._reading:
            return await anyio.to_thread.run_sync(action)

    def _find(self, wanted: Wanted) -> tuple[list[ShownGroup], bool]:
        """Return the groups, and whether all were searched (rule 3)."""
        ends = time.monotonic() + SEARCH_SECONDS
        with Database.read(self._folder.database) as database:
            groups = list(list_groups(database, self._texts(), wanted, lambda: time.monotonic() > ends))
        return groups, time.monotonic() <= ends

    def _group(self, lease: bytes, *, by_token: bool) -> ShownGroup | None:
        with Database.read(self._folder.database) as database, database.reading():
            return read_group(database, self._texts(), lease, by_token=by_token)

    def _texts(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = self._tokenizer_of(self._folder)
        return self._tokenizer


def wanted_groups(asked: Mapping[str, str]) -> Wanted:
    """Return the search that a form's fields say. Raises `LocalFault`."""
    order: Any = asked["order"] or "newest"
    if order not in ("newest", "best", "worst"):
        raise LocalFault(f"{order[:20]!r} is no order: choose newest, best or worst")
    return Wanted(
        order=order, most=GROUPS_SHOWN, version=_number(asked, "version"), task=asked["task"],
        node=key_of(asked["node"]) if asked["node"] else None, prompt=_number(asked, "prompt"), words=asked["words"],
        refused=bool(asked["refused"]),
    )  # fmt: skip


def band(probability: float) -> int:
    """Return the mark of a token: the lower, the rarer."""
    return sum(probability >= limit for limit in _BANDS)


def _number(asked: Mapping[str, str], name: str) -> int | None:
    text = asked[name]
    if text and not (text.isdecimal() and len(text) < 16):
        raise LocalFault(f"{name} should be a number, not {text[:20]!r}")
    return int(text) if text else None


def _html(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/html")
