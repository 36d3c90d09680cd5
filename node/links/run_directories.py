"""The directories of runs that the owner names, as `URL#KEY`: fetched, verified, and never older than before.

Rules
1. A list is taken under the key of the owner's setting alone (protocol/run_directory.py). The highest sequence number
   of each is kept in the home (`directories.json`); a list with a lower one is refused.
2. One that has expired is shown as such: its runs may have moved. One that cannot be had is said, and hides no other.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp

from echo2.node.errors import TryLater
from echo2.node.links.invite_page import read_body
from echo2.protocol.run_directory import MOST_BYTES, BadDirectory, RunDirectory, read
from echo2.runtime.files import writing
from echo2.runtime.printable import printable

DIRECTORY_SECONDS: Final = 15.0
"""Seconds for the answer of one host."""
KEPT_FILE: Final = "directories.json"


class DirectoryName(NamedTuple):
    """A setting's `URL#KEY`. `key`: the author's, 32 bytes."""

    url: str
    key: bytes


class FetchedDirectory(NamedTuple):
    """What came of one directory. `content`: None: nothing, because of `trouble`. `expired`: whether it is too old."""

    name: DirectoryName
    content: RunDirectory | None
    trouble: str = ""
    expired: bool = False


Fetch = Callable[[str], Awaitable[bytes]]


def parse_directory(text: str) -> DirectoryName:
    """Return the address and the key of a setting, whose form is checked (node/config.py)."""
    url, _, key = text.partition("#")
    return DirectoryName(url, bytes.fromhex(key))


async def fetch_bytes(url: str) -> bytes:
    """Return what lies at an address, at most a byte more than a directory may have. Raises `TryLater`."""
    try:
        timeout = aiohttp.ClientTimeout(total=DIRECTORY_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session, session.get(url) as answer:
            if answer.status != 200:
                raise TryLater(f"it answers with status {answer.status}")
            return await read_body(answer, MOST_BYTES + 1)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise TryLater(f"it cannot be read ({printable(error) or 'no answer in time'})") from error


async def fetch_directories(
    names: Sequence[DirectoryName], home: Path, now: int, fetch: Fetch = fetch_bytes
) -> list[FetchedDirectory]:
    """Fetch all directories, side by side. `now`: ms."""
    kept = _read_kept(home)
    fetched = await asyncio.gather(*(_fetch_one(name, kept, now, fetch) for name in names))
    newest = dict(kept)
    for one in fetched:
        if one.content is not None:  # an author may have several hosts, and one of them an older list
            key = one.name.key.hex()
            newest[key] = max(newest.get(key, 0), one.content.sequence)
    if newest != kept:
        _keep(home, newest)
    return fetched


async def _fetch_one(name: DirectoryName, kept: dict[str, int], now: int, fetch: Fetch) -> FetchedDirectory:
    try:
        content = read(await fetch(name.url), name.key)
    except (TryLater, BadDirectory) as error:
        return FetchedDirectory(name, None, str(error))
    before = kept.get(name.key.hex(), 0)
    if content.sequence < before:
        trouble = f"it is list {content.sequence}, older than list {before}, which was here before"
        return FetchedDirectory(name, None, trouble)
    return FetchedDirectory(name, content, expired=content.expires <= now)


def _keep(home: Path, sequences: dict[str, int]) -> None:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with writing(home / KEPT_FILE) as file:
        file.write(json.dumps(sequences).encode())


def _read_kept(home: Path) -> dict[str, int]:
    """Return the highest sequence number by key; none where the file cannot be read."""
    try:
        known = json.loads((home / KEPT_FILE).read_bytes())
        return {str(key): int(sequence) for key, sequence in known.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
