"""Measure the page under load: `python -m benchmarks.web [--quick] [--folder FOLDER]`.

    latency    p99 of the answers at 200 requests per second: 40 % the page, 20 % pages of nodes, 20 % the API, 20 % the
               ledger's files, from visitors of many addresses; each answer must be a right one
    cost       CPU of the coordinator's main process per request, less what it takes without visitors, against static
               files of the same sizes by the same aiohttp, asked in the same order
    size       bytes of the page with what it loads, packed
    news       p99 of the age of the state that /api/v1/run shows

The run has a million groups of 10,000 nodes, and a ledger of as many entries; `--quick` has 20,000 groups. The
coordinator verifies its whole ledger during the first minutes after a start, beside the visitors; with `--after 180`
that is over. The visitors' own process is measured too: what it was late itself counts as the page's.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.harness.lab import Process
from benchmarks.load.large import make_large, shape_of
from benchmarks.load.station import Station, station
from benchmarks.web.visitors import Answer, Ask, percentile, visit
from echo2.coordinator.run import setup
from echo2.coordinator.run.setup import Run
from echo2.ledger.tile_places import WIDTH, TilePlace

RATE: Final = 200.0
BAR_SECONDS, BAR_COST, BAR_BYTES, BAR_NEWS = 0.1, 2.0, 150_000, 5.0
SETTLED_SECONDS: Final = 2.0
"""Seconds after the last answer until the coordinator has nothing to do for visitors."""
IDLE_SECONDS: Final = 5.0
_PAGES: Final = ("/", "/live")


def main() -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--groups", type=int, default=0, help="groups of the run (default: 1,000,000)")
    parser.add_argument("--seconds", type=float, default=0.0, help="seconds of load (default: 30)")
    parser.add_argument("--after", type=float, default=0.0, help="seconds from the start to the first visitor")
    parser.add_argument("--folder", type=Path, help="where the run is, or is made; default: a temporary folder")
    options = parser.parse_args()
    groups = options.groups or (20_000 if options.quick else 1_000_000)
    seconds = options.seconds or (5.0 if options.quick else 30.0)
    bench.one_thread()
    bench.header("The page under 200 requests per second", ("aiohttp", "jinja2"))
    with tempfile.TemporaryDirectory() as temporary:
        run = run_of(options.folder or Path(temporary) / "run", groups)
        with station(run.folder.path, sections={}, run=run) as place:
            time.sleep(options.after)
            return bench.close(measure(place, seconds, Path(temporary)))


def run_of(folder: Path, groups: int) -> Run:
    """Return the run in a folder; make it where it does not exist."""
    now = time.time_ns() // 1_000_000
    if (folder / "coordinator.toml").exists():
        return setup.load_run(folder, now=now, env={})
    proxy = {"network": {"trusted_proxies": ["127.0.0.1"]}}
    return make_large(folder, shape_of(groups, now=now), leases={"minimum_seconds": 600.0}, **proxy)


def measure(place: Station, seconds: float, folder: Path) -> Sequence[Claim]:
    """Measure the page of a coordinator; return the claims."""
    url = f"http://127.0.0.1:{place.page}"
    ask = requests_of(url)
    asyncio.run(visit(url, ask, RATE / 4, 3.0, seed=2))
    before = place.measure()
    answers, late = asyncio.run(visit(url, ask, RATE, seconds))
    after = place.measure()
    time.sleep(SETTLED_SECONDS)
    idle = _idle(place, max(IDLE_SECONDS, seconds / 3))
    cpu = (after.cpu - before.cpu - idle * (after.at - before.at)) / len(answers)
    anchor = static_cost(answers, seconds, folder)
    size = sum(len(_get(url, path)) for path in page_files(url))
    _print(answers, late, cpu, anchor, idle)
    wrong = [one for one in answers if one.status not in (200, 304)]
    if wrong:
        print(f"{len(wrong)} answers were wrong, the first {wrong[0]}")
        return [Claim("right answers", 1 - len(wrong) / len(answers), "all", 1.0)]
    ages = [one.age for one in answers if one.age is not None]
    return [
        Claim("latency", percentile([one.seconds for one in answers], 0.99), "one second, p99", BAR_SECONDS, True),
        Claim("cost", cpu / anchor, "static files of the same sizes", BAR_COST, True),
        Claim("size", size / BAR_BYTES, "150 kB, the page packed", 1.0, True),
        Claim("news", percentile(ages, 0.99), "one second", BAR_NEWS, True),
    ]


def requests_of(url: str) -> Ask:
    """Return the mix of requests to a page."""
    state = json.loads(_get(url, "/api/v1/run", packed=False))
    nodes, link = list[str](), "/api/v1/nodes"
    while link and len(nodes) < 10_000:
        rows, link = _nodes(url, link)
        nodes += rows
    size = state["ledger"]["size"]

    def ask(chance: random.Random) -> tuple[str, str]:
        kind = chance.random()
        if kind < 0.4:
            return "page", chance.choice(_PAGES)
        if kind < 0.6:
            return "node", f"/nodes/{chance.choice(nodes)}"
        if kind < 0.8:
            return ("news", "/api/v1/run") if kind < 0.65 else ("api", "/api/v1/nodes")
        if kind < 0.85:
            return "proof", f"/ledger/proof/{size}/{chance.randrange(1, size + 1)}"
        place = TilePlace(chance.randrange(size // WIDTH))
        return "ledger", f"/ledger/{'tile/0' if kind < 0.95 else 'entries'}/{place.path()}"

    return ask


def static_cost(answers: Sequence[Answer], seconds: float, folder: Path) -> float:
    """Return the CPU seconds per request of a server of static files, of the sizes that were answered."""
    files = folder / "files"
    files.mkdir()
    for number in {one.nbytes for one in answers}:
        (files / f"{number}.bin").write_bytes(random.Random(number).randbytes(number))
    sizes = iter([one.nbytes for one in answers])
    process = Process([], "benchmarks.web.static_files", str(files))
    try:
        port = process.hear()["port"]
        before = bench.cpu_of(process.pid)
        asyncio.run(visit(f"http://127.0.0.1:{port}", lambda _: ("static", f"/{next(sizes)}.bin"), RATE, seconds))
        return (bench.cpu_of(process.pid) - before) / len(answers)
    finally:
        process.kill()


def page_files(url: str) -> list[str]:
    """Return the page and the files that it loads, as paths."""
    html = _get(url, "/", packed=False).decode()
    return ["/", *(f"/static/{name}" for name in ("page.css", "page.js", "icon.svg") if name in html)]


def _idle(place: Station, seconds: float) -> float:
    before = place.measure()
    time.sleep(seconds)
    after = place.measure()
    return (after.cpu - before.cpu) / (after.at - before.at)


def _print(answers: Sequence[Answer], late: Sequence[float], cpu: float, anchor: float, idle: float) -> None:
    rows = []
    for kind in sorted({one.kind for one in answers}):
        some = [one for one in answers if one.kind == kind]
        spent = [1000 * one.seconds for one in some]
        size = sum(one.nbytes for one in some) / len(some) / 1000
        rows.append((kind, len(some), percentile(spent, 0.5), percentile(spent, 0.99), max(spent), size))
    bench.table(("kind", "requests", "median, ms", "p99, ms", "longest, ms", "kB"), rows)
    late_by, longest = 1000 * percentile(late, 0.99), 1000 * max(late)
    print(f"The visitors' own process was late by {late_by:.1f} ms (p99), {longest:.1f} ms at most: within the above")
    print(f"CPU per request: {1000 * cpu:.2f} ms, of a static file {1000 * anchor:.2f} ms")
    print(f"Without visitors: {idle:.1%} of a core\n")


def _nodes(url: str, path: str) -> tuple[list[str], str]:
    """Return the ids of a page of nodes, and the path of the next."""
    for _ in range(20):
        try:
            with _open(url, path) as answer:
                following = answer.headers.get("Link", "").partition(">")[0].removeprefix("<")
                return [row["id"] for row in json.loads(answer.read())], following and f"/api/v1/{following}"
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                raise
            time.sleep(0.5)
    raise SystemExit("the list of nodes is not answered")


def _get(url: str, path: str, *, packed: bool = True) -> bytes:
    with _open(url, path, "gzip" if packed else "identity") as answer:
        body: bytes = answer.read()
        return body


def _open(url: str, path: str, encoding: str = "identity") -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(urllib.request.Request(url + path, headers={"Accept-Encoding": encoding}), timeout=60)


if __name__ == "__main__":
    sys.exit(main())
