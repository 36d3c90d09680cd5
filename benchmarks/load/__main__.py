"""Measure the capacity and the cost of a coordinator: `python -m benchmarks.load [--quick] [--only PART ...]`.

    goodput    accepted groups per second at twice the peak's load against the peak, also where each commit takes 4 ms
               longer
    cost       CPU of the main process per group against five bare rounds of Ed25519 and SQLite
    growth     cost of a start, a tick, a lease request, a judged group, a version and a view of the page, after 1,000
               and after 1,000,000 groups
    idle       CPU that a refused node costs per second
    versions   descriptors and memory after 3,000 versions

The coordinator is real in every part. Model processes are stubs behind their real pipes, except that in `cost` and
`growth` the stub learner is an object in the coordinator's process. Nodes have no engine.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness import bench

bench.one_thread()

from benchmarks.harness.bench import Claim  # noqa: E402
from benchmarks.load import cost, goodput, growth, idle, versions  # noqa: E402

SLOWER: Final = 4.0
"""Milliseconds that a commit takes longer on a slow disk."""
TINY, MIDDLE, LONG = cost.Size(2, 4), cost.Size(16, 512), cost.Size(16, 4096)
ANCHOR: Final = "five bare rounds of Ed25519 and SQLite"


def goodput_claims(quick: bool, folder: Path) -> list[Claim]:
    seconds, factor, first = (6.0, 2.0, 24.0) if quick else (12.0, 1.5, 24.0)
    claims = []
    for commit in (0.0, SLOWER):
        rungs, twice = goodput.climb(seconds, first=first, factor=factor, commit=commit)
        slower = f", commits {commit:g} ms slower" if commit else ""
        print(f"goodput{slower}: groups per second, CPU in milliseconds per accepted group")
        bench.table(["offered", "accepted", "CPU, main", "CPU, all"], [tuple(rung) for rung in (*rungs, twice)])
        peak = max(rung.accepted for rung in rungs)
        claims.append(Claim(f"goodput at twice the load{slower}", twice.accepted / peak, "the peak", 0.9))
    return claims


def cost_claims(quick: bool, folder: Path) -> list[Claim]:
    turns, scale = (5, 1) if quick else (5, 4)
    costs = {}
    for size, groups in ((TINY, 64), (MIDDLE, 16), (LONG, 12)):
        costs[size] = cost.measured(size, groups * scale, turns)
    print("CPU of main per group, milliseconds")
    rows = [(size.name, one.main, one.anchor, one.ratio, one.requests) for size, one in costs.items()]
    bench.table(["group", "main", "anchor", "ratio", "requests"], rows)
    return [
        Claim(f"CPU per group of {TINY.name}", costs[TINY].ratio, ANCHOR, 1.5, at_most=True),
        Claim(f"CPU per group of {MIDDLE.name}", costs[MIDDLE].ratio, ANCHOR, 6.0, at_most=True),
        Claim(f"milliseconds per group of {LONG.name}", costs[LONG].main, "one", 10.0, at_most=True),
    ]


def growth_claims(quick: bool, folder: Path) -> list[Claim]:
    many, few = 100_000 if quick else 1_000_000, 1_000
    runs = {groups: growth.run_with_history(folder / f"growth-{groups}", groups) for groups in (few, many)}
    pictures = {groups: growth.picture(run, 10.0 if quick else 20.0) for groups, run in runs.items()}
    folders = [run.folder.path for run in runs.values()]
    costs = dict(zip(runs, growth.compared(folders, 2 if quick else 3, 8, 90), strict=True))
    print("milliseconds of CPU; the start also by the clock")
    columns = ["groups", *growth.Cost._fields]
    bench.table(columns, [(f"{groups:,}", *(1000 * value for value in one)) for groups, one in costs.items()])
    print("the picture with three tabs open")
    bench.table(["groups", *growth.Picture._fields], [(f"{groups:,}", *one) for groups, one in pictures.items()])
    short, long = costs[few], costs[many]
    claims = [
        Claim(f"{name} after {many:,} groups", after / before, f"after {few:,}", 1.5, at_most=True)
        for name, before, after in zip(growth.Cost._fields, short, long, strict=True)
        if not name.startswith("start")
    ]
    bar = 50.0 if quick else 100.0
    hold_time = f"milliseconds that a picture holds the loop after {many:,} groups"
    return [
        *claims,
        Claim(f"seconds of a start after {many:,} groups", long.start_wall, "one", 5.0, at_most=True),
        Claim(hold_time, 1000 * pictures[many].loop_seconds, "one", bar, at_most=True),
    ]


def idle_claims(quick: bool, folder: Path) -> list[Claim]:
    measured = idle.measured(300, 20.0) if quick else idle.measured(1000, 60.0)
    print(f"a refused node is told to wait for {measured.told:.1f} s; an ask costs {measured.ask:.2f} ms of CPU\n")
    return [Claim("milliseconds of CPU per second of a refused node", measured.cpu, "one", 0.1, at_most=True)]


def version_claims(quick: bool, folder: Path) -> list[Claim]:
    measured = versions.measured(300 if quick else 3000)
    memory = (
        f"{measured.first / 2**20:.1f} MiB after {versions.EARLY} versions, {measured.last / 2**20:.1f} MiB at the end"
    )
    print(f"{measured.versions} versions: {measured.descriptors:.0f} descriptors; {memory}\n")
    excess = measured.descriptors - versions.CONNECTIONS
    claim = Claim(
        f"descriptors beside connections after {measured.versions} versions", excess, "one", 100.0, at_most=True
    )
    if measured.per_version is None:
        return [claim]
    return [claim, Claim("bytes of memory per version", measured.per_version, "one", 2048.0, at_most=True)]


PARTS: Final[dict[str, Callable[[bool, Path], list[Claim]]]] = {
    "goodput": goodput_claims,
    "cost": cost_claims,
    "growth": growth_claims,
    "idle": idle_claims,
    "versions": version_claims,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100,000 groups instead of 1,000,000, shorter windows")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts alone")
    parser.add_argument("--keep", type=Path, help="a folder for the long runs, which are made once and reused")
    options = parser.parse_args(arguments)
    bench.header("load: a coordinator under load and after a long run", ["cryptography"])
    claims = []
    with tempfile.TemporaryDirectory(prefix="echo2-load-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.only:
            claims += PARTS[name](options.quick, folder)
    return bench.close(claims)


if __name__ == "__main__":
    sys.exit(main())
