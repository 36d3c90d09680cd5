"""Measure readers of the page beside one address that asks for the list of nodes, or for files of the ledger, without
end.

A coordinator process serves a run of `SHAPE` (benchmarks/load/large.py). The greedy address sends `GREEDY` requests per
second. Meanwhile `OTHERS` readers of subnets of their own send one request each. Every request is for another part, so
that no cache answers it. The list is read once more with all of them behind a trusted proxy, which names each by
X-Forwarded-For.
"""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp

from benchmarks.load.large import make_large
from benchmarks.load.rows import Shape
from benchmarks.load.station import station

GREEDY: Final = 30.0
"""Requests per second."""
OTHERS: Final = 15
STANDS: Final = 3.0
"""Seconds until the others come."""
PATIENCE: Final = 20.0
"""Seconds that a reader waits."""
NODES: Final = "the list of nodes"
TILES: Final = "files of the ledger"
PROXIED: Final = "the list of nodes, all through a proxy"
PROXY: Final = "127.0.0.1"
PATHS: Final[dict[str, Callable[[int], str]]] = {
    NODES: lambda number: f"/api/v1/nodes?limit={1 + number % 399}",
    TILES: lambda number: f"/ledger/entries/{number % 16:03d}",
    PROXIED: lambda number: f"/api/v1/nodes?limit={399 - number % 399}",
}


class Read(NamedTuple):
    """Results. `answered`: of `OTHERS` readers. `seconds`: of the slowest of these. `greedy`: answers of the greedy
    address by status, 0 for none."""

    answered: int
    seconds: float
    greedy: Counter[int]


def measured() -> dict[str, Read]:
    """Measure each kind of reading."""
    shape = Shape(now=time.time_ns() // 1_000_000, groups=6_000, nodes=2_000, versions=500, open=0)
    options = ("--foreign-loopback",)
    with tempfile.TemporaryDirectory(prefix="echo2-flood-") as folder:
        run = make_large(Path(folder) / "run", shape, network={"trusted_proxies": [PROXY]})
        with station(Path(folder), sections={}, options=options, run=run) as place:
            return {kind: asyncio.run(_read(place.page, path, kind == PROXIED)) for kind, path in PATHS.items()}


async def _read(port: int, path: Callable[[int], str], proxied: bool) -> Read:
    greedy, waits = Counter[int](), list[tuple[int, float]]()

    async def ask(source: str, number: int) -> int:
        connector = aiohttp.TCPConnector(local_addr=(PROXY if proxied else source, 0), force_close=True)
        forwarded = {"X-Forwarded-For": source} if proxied else {}
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        try:
            async with (
                aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector, timeout=timeout) as session,
                session.get(path(number), headers=forwarded) as answer,
            ):
                await answer.read()
                return answer.status
        except (TimeoutError, aiohttp.ClientError, OSError):
            return 0

    async def greed() -> None:
        async with asyncio.TaskGroup() as asks:
            for number in range(10**9):
                asks.create_task(count(number))
                await asyncio.sleep(1 / GREEDY)

    async def count(number: int) -> None:
        greedy[await ask("127.9.9.9", number)] += 1

    async def other(number: int) -> None:
        began = asyncio.get_running_loop().time()
        status = await ask(f"127.30.{number}.1", 200 + number)
        waits.append((status, asyncio.get_running_loop().time() - began))

    await _until_there(ask)
    greedy_task = asyncio.create_task(greed())
    await asyncio.sleep(STANDS)
    async with asyncio.TaskGroup() as others:
        for number in range(OTHERS):
            others.create_task(other(number))
            await asyncio.sleep(0.2)
    greedy_task.cancel()
    await asyncio.wait([greedy_task])
    served = [seconds for status, seconds in waits if status == 200]
    return Read(len(served), max(served, default=PATIENCE), greedy)


async def _until_there(ask: Callable[[str, int], Awaitable[int]]) -> None:
    """Wait until a head covers the entries."""
    while await ask("127.31.0.1", 15) != 200:  # noqa: ASYNC110 (another process signs it)
        await asyncio.sleep(0.5)
