"""Visitors of a web site: requests at a fixed rate, whether or not the answers before have come."""

import asyncio
import gc
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

CONNECTIONS = 64
PROBE_SECONDS = 0.005


class Answer(NamedTuple):
    """An answer. `seconds`: from when it was due to be asked, until all of it was here. `nbytes`: of its body, packed.
    `age`: seconds since the state that it shows; None: it does not say."""

    kind: str
    status: int
    seconds: float
    nbytes: int
    age: float | None


class Visit(NamedTuple):
    """The answers that visitors saw. `late`: by how many seconds the event loop that asks was late itself, every
    `PROBE_SECONDS`: an answer that came meanwhile was seen that much later than it was here."""

    answers: list[Answer]
    late: list[float]


Ask = Callable[[random.Random], tuple[str, str]]
"""Returns the kind and the path of the next request."""


async def visit(url: str, ask: Ask, rate: float, seconds: float, *, seed: int = 1) -> Visit:
    """Ask at `rate` requests per second, for as many seconds, as visitors from many addresses. Python collects no
    garbage meanwhile: the stop would count as the server's."""
    gc.collect()
    gc.disable()
    try:
        return await _visit(url, ask, rate, seconds, seed)
    finally:
        gc.enable()


async def _visit(url: str, ask: Ask, rate: float, seconds: float, seed: int) -> Visit:
    chance = random.Random(seed)
    connector = TCPConnector(limit=CONNECTIONS)
    late = list[float]()
    probe = asyncio.create_task(_measure_lateness(late))
    async with ClientSession(
        url, connector=connector, auto_decompress=False, cookie_jar=DummyCookieJar(), timeout=ClientTimeout(60)
    ) as session:
        began = time.monotonic()
        tasks = []
        for number in range(round(rate * seconds)):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            kind, path = ask(chance)
            visitor = f"8.{chance.randrange(256)}.{chance.randrange(256)}.7"
            tasks.append(asyncio.create_task(_ask(session, kind, path, visitor, due)))
        answers = list(await asyncio.gather(*tasks))
    probe.cancel()
    return Visit(answers, late)


async def _measure_lateness(late: list[float]) -> None:
    while True:
        due = time.monotonic() + PROBE_SECONDS
        await asyncio.sleep(PROBE_SECONDS)
        late.append(time.monotonic() - due)


async def _ask(session: ClientSession, kind: str, path: str, visitor: str, due: float) -> Answer:
    # The state is read unpacked: what the API says of its age need not be unpacked in this process.
    headers = {"X-Forwarded-For": visitor, "Accept-Encoding": "identity" if kind == "news" else "gzip"}
    try:
        async with session.get(path, headers=headers, allow_redirects=False) as answer:
            body = await answer.read()
    except (ClientError, TimeoutError):
        return Answer(kind, 0, time.monotonic() - due, 0, None)
    age = time.time() - json.loads(body)["now"] / 1000 if kind == "news" and answer.status == 200 else None
    return Answer(kind, answer.status, time.monotonic() - due, len(body), age)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed; infinite without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("inf")
