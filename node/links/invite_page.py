"""The invite that the page of a run serves: `echo2-node join https://run.example.org`.

Rules
1. A page is an address with https:// or http://, or a host name with a dot and perhaps a path, which means https://.
   Its invite lies at `invite` below the path, beside it, or at the top of the host: the first that is there counts.
2. Whoever serves the page chooses the run. So the run's fingerprint is shown and confirmed; over http://, or with a
   certificate that does not hold, it must be typed, or given by --accept-fingerprint, and is not shown. Where one
   letter was mistyped its group is named: a forged page that comes so near takes 2^71 hashes.
3. The home keeps the fingerprint of each confirmed page, which covers the run, its Root and its HTTPS key. It is not
   asked about again, and while the page cannot be read the invite of the run joined last serves. A page whose invite
   has another fingerprint than before is refused, unless --accept-fingerprint gives that one.
"""

import asyncio
import json
import posixpath
import re
import ssl
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from echo2.node.errors import BadConfig, TryLater
from echo2.node.home import invite_of_joined_run
from echo2.node.links.local_discovery import FINGERPRINT_LETTERS, fingerprint_form, normal
from echo2.p2p.discovery.invite import MOST_INVITE_CHARACTERS, PREFIX, Invite
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import writing
from echo2.runtime.printable import printable
from echo2.runtime.terminal_question import ask_text

ANSWER_SECONDS: Final = 20.0
"""Most seconds of one request."""
MOST_REDIRECTS: Final = 5
_HOST: Final = re.compile(r"(?i)(https?://\S+|(?!echo2-)[a-z0-9-]+(\.[a-z0-9-]+)+(:\d{1,5})?(/\S*)?)")


@dataclass(frozen=True)
class ServedInvite:
    """An invite as a page serves it. `doubt`: why nobody vouches for the page; empty: its certificate holds."""

    invite: Invite
    doubt: str


def page_of(text: str) -> str | None:
    """Return the address of a page (rule 1), with its scheme; None: the text is none, as an invite."""
    text = text.strip().strip("<>")
    if _HOST.fullmatch(text) is None:
        return None
    return text if "://" in text else f"https://{text}"


async def fetch_invite(page: str, context: ssl.SSLContext | None = None) -> ServedInvite:
    """Fetch the invite of a page (rule 1). `context`: how certificates are checked; None: as the system does. Raises
    `TryLater` if the page cannot be read, `BadConfig` if it serves no invite, or its address is none."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
        doubt = ""
        for place in _places(page):
            try:
                text, plain = await _read(session, place, context or True)
            except aiohttp.ClientSSLError as error:
                doubt = f"the certificate of {urlsplit(page).hostname} does not hold ({printable(error)})"
                text, plain = await _read(session, place, False)
            if text.startswith(PREFIX):
                doubt = doubt or ("http:// does not show who answers" if plain else "")
                return ServedInvite(_parse(page, text), doubt)
    raise BadConfig(f"{page} serves no invite: is it the page of a run? Correct it, or ask the operator for the invite")


def invite_of_page(
    page: str,
    home: Path,
    accepted: str | None,
    ask: Callable[[str], str] | None = None,
    fetch: Callable[[str], Coroutine[None, None, ServedInvite]] = fetch_invite,
) -> Invite:
    """Return the invite that a page serves, confirmed by rules 2 and 3. `accepted`: the fingerprint that the owner
    gives. `ask`: shows a question, and returns the answer; None: a person at this terminal. Raises `BadConfig`,
    `TryLater`."""
    known = _known_pages(home)
    try:
        served = asyncio.run(fetch(page))
    except TryLater:
        last = invite_of_joined_run(home) if page in known and (home / "invite").exists() else None
        if last is None or normal(last.fingerprint) != known[page]:
            raise
        return last
    invite, before = served.invite, known.get(page)
    fingerprint = normal(invite.fingerprint)
    if accepted is not None:
        if fingerprint != normal(accepted):
            raise BadConfig(
                f"{page} serves the invite of another run than that of the fingerprint {fingerprint_form(accepted)}: "
                f"correct --accept-fingerprint{_one_letter(accepted, invite)}, or ask the operator for the invite"
            )
    elif before is not None and before != fingerprint:
        raise BadConfig(
            f"{page} served the invite with the fingerprint {fingerprint_form(before)} before, and serves another now: "
            f"ask the operator; if that is right, join with --accept-fingerprint and the fingerprint that they tell you"
        )
    elif before is None:
        _confirm(page, served, ask)
    if before != fingerprint:
        with writing(home / "pages.json") as file:
            file.write(json.dumps(known | {page: fingerprint}).encode())
    return invite


async def _read(session: aiohttp.ClientSession, place: str, check: ssl.SSLContext | bool) -> tuple[str, bool]:
    """Return the text at an address, empty where there is none, and whether a part of the way to it was http://."""
    try:
        async with session.get(place, ssl=check, max_redirects=MOST_REDIRECTS) as answer:
            plain = any(one.url.scheme != "https" for one in (*answer.history, answer))
            if answer.status >= 500:
                raise TryLater(f"{place} answers with status {answer.status}: try later, or give the invite itself")
            if answer.status != 200:
                return "", plain
            text = (await read_body(answer, MOST_INVITE_CHARACTERS + 2)).decode(errors="replace").strip()
            if not text:
                raise TryLater(f"{place} has no invite yet: its run is starting; try again in a minute")
            return text, plain
    except aiohttp.ClientSSLError:
        raise
    except (aiohttp.InvalidURL, ValueError) as error:
        raise BadConfig(f"{place} is no address of a page ({printable(error)}): correct it") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        why = printable(error) or "no answer in time"
        raise TryLater(f"the page {place} cannot be read ({why}): try later, or give the invite itself") from error


async def read_body(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the first bytes of an answer's body, at most `most`."""
    body = bytearray()
    async for piece in answer.content.iter_any():  # an answer may come in several
        body += piece
        if len(body) >= most:
            break
    return bytes(body[:most])


def _places(page: str) -> list[str]:
    """Return the addresses at which a page's invite may lie, first to last (rule 1)."""
    try:
        parts = urlsplit(page)
    except ValueError as error:
        raise BadConfig(f"{page} is no address of a page ({error}): correct it") from error
    top = f"{parts.scheme}://{parts.netloc}"
    whole, beside = parts.path.rstrip("/"), posixpath.dirname(parts.path).rstrip("/")
    return list(dict.fromkeys(f"{top}{path}/invite" for path in (whole, beside, "")))


def _parse(page: str, text: str) -> Invite:
    try:
        return Invite.from_text(text)
    except LocalFault as error:
        raise BadConfig(f"{page} serves an invite that cannot be read: {error}") from error


def _known_pages(home: Path) -> dict[str, str]:
    """Return the fingerprint of each confirmed page, as `normal` gives it. A file that cannot be read has none."""
    try:
        known = json.loads((home / "pages.json").read_bytes())
    except (OSError, ValueError):
        return {}
    kept = known.items() if isinstance(known, dict) else ()
    return {str(page): str(one) for page, one in kept if len(str(one)) == FINGERPRINT_LETTERS}


_SOURCE: Final = ": the operator gives it to you, and `echo2-coord invite` prints it there"


def _confirm(page: str, served: ServedInvite, ask: Callable[[str], str] | None) -> None:
    """Let the owner confirm the run of a page (rule 2). Raises `BadConfig`."""
    if ask is None and not sys.stdin.isatty():
        shown = f" after comparing {served.invite.fingerprint} with the operator's" if not served.doubt else _SOURCE
        why = f"{served.doubt}: join" if served.doubt else "join"
        raise BadConfig(f"{why} with `echo2-node join {page} --accept-fingerprint FINGERPRINT`{shown}")
    ask = ask or partial(ask_text, option="--accept-fingerprint FINGERPRINT")
    if not served.doubt:
        print(f"{page} serves the run of the fingerprint {served.invite.fingerprint}.", file=sys.stderr)
        if ask("Join it, and let it use this machine? [y/N] ").strip().lower() not in ("y", "yes"):
            raise BadConfig("not joined: the fingerprint was not confirmed")
        return
    print(f"{page}: {served.doubt}.", file=sys.stderr)
    typed = ask("Type the fingerprint that the operator gave you: ")
    if normal(typed) != normal(served.invite.fingerprint):
        raise BadConfig(
            f"{page} serves the invite of another run than that of the fingerprint {fingerprint_form(typed)}: "
            f"compare it with the operator's{_one_letter(typed, served.invite)}"
        )


def _one_letter(typed: str, served: Invite) -> str:
    """Return which group of a fingerprint has one wrong letter, in brackets; empty: more than a letter is wrong."""
    letters, right = normal(typed), normal(served.fingerprint)
    wrong = [place for place, pair in enumerate(zip(letters, right, strict=False)) if pair[0] != pair[1]]
    return f" (one letter in group {wrong[0] // 4 + 1})" if len(letters) == len(right) and len(wrong) == 1 else ""
