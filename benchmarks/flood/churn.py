"""Measure a day of short-lived keys: `python -m benchmarks.flood.churn [--hours 24] [--identities 10000]`.

A whole coordinator runs on a fake clock and the in-memory network (benchmarks/flood/world.py), with two honest nodes
that stay. Short-lived peers come one after the other, each with a key and a connection of its own, and leave for good.
There are five kinds, a fifth of the peers each. A peer

    1. says hello, and no more
    2. takes a lease and returns nothing
    3. submits a fabricated group
    4. submits an honest group and never requests its verdict
    5. submits an honest group, requests its verdict, and leaves

Memory is measured after unused memory was given back; tasks are those of the event loop; rows are counted by table. The
growth per peer is the slope over the second half of the peers: the median over all pairs of samples. By then all
bounded tables are full (4,096 answers and records, 2,048 nodes seen, the documents of 1,024 versions). Some rows are
kept by design (`LASTING`): the record of payments and refusals, and rows that go after a day or a week. They are
printed, and their number per peer has a bar.

A second run without honest nodes measures the disk: the bytes that peers without accepted work (kinds 1 to 3) leave in
run.sqlite, less those before the first peer came. They are measured at the end of the hour in which the peers come, and
again after the clock was put forward to 25 hours and to 8 days after that hour. Before each measurement the coordinator
has `_SETTLES` seconds to clean up.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import anyio
import psutil

from benchmarks.harness import bench

bench.one_thread()

from benchmarks.attacks.groups import made_up  # noqa: E402
from benchmarks.flood.engine import honest  # noqa: E402
from benchmarks.flood.world import Setting, World, running  # noqa: E402
from benchmarks.harness.bench import Claim  # noqa: E402
from benchmarks.load.host import give_back  # noqa: E402
from benchmarks.load.versions import slope  # noqa: E402
from echo2.protocol.requests import Refusal  # noqa: E402

SETTING: Final = Setting(nodes=(60.0, 90.0), step=20.0, before=0.0, batch_groups=2, tick=5.0, look=2.0)
"""At the defaults of 1 s and 0.25 s ticks and looks would be most of the CPU time of a calm day."""
SAMPLES: Final = 24
"""Number of samples in the first run."""
LASTING: Final = (
    *("entries", "leases", "submissions", "verdicts", "versions", "buffer", "sums", "balances", "accounts"),
    *("nodes", "ends", "refused_tokens"),
)
"""Tables whose rows are the run's record, and those whose rows go after a day or a week."""
MOST_BYTES: Final = 512.0
"""Most bytes of memory that a short-lived peer may leave behind."""
MOST_ROWS: Final = 10.0
"""Most rows of the `LASTING` tables per peer."""
KINDS: Final = 5
FREE_KINDS: Final = 3
"""Number of kinds of peers without accepted work: the first ones."""
AFTER: Final = (0.0, 25.0, 8 * 24.0)
"""Hours to which the clock is put forward, counted from the arrival of the last peer."""
MOST_OF_A_GROUP: Final = 10_000.0
"""Most bytes on disk of a refused group after the challenge window."""
_SETTLES: Final = 300.0  # seconds in which the coordinator cleans up
_PATIENCE: Final = 120.0  # seconds after which a peer leaves in any case


class Sample(NamedTuple):
    """State at one time: peers that came so far, resident bytes, tasks of the event loop, rows by table."""

    came: int
    memory: int
    tasks: int
    rows: dict[str, int]

    def report_line(self) -> str:
        """Return the progress line of a sample, printed while the run continues."""
        return f"{self.came} strangers: {self.memory >> 10} KiB, {self.tasks} tasks, {self.passing()} passing rows"

    def lasting(self) -> int:
        return sum(count for table, count in self.rows.items() if table in LASTING)

    def passing(self) -> int:
        return sum(count for table, count in self.rows.items() if table not in LASTING)


class Left(NamedTuple):
    """State some hours after the last peer came: bytes on disk per peer, rows by table."""

    hours: float
    nbytes: float
    rows: dict[str, int]


def measured(hours: float, identities: int, count: int = SAMPLES) -> list[Sample]:
    """Let `identities` short-lived peers come and leave within `hours`; return about `count` samples at equal
    distances."""
    setting = replace(SETTING, seconds=3600 * hours)

    async def main(world: World) -> list[Sample]:
        for seconds in setting.nodes:
            world.tasks.start_soon(world.volunteer, seconds)
        samples, pause = [], setting.seconds / identities
        for number in range(identities):
            world.tasks.start_soon(_visit, world, number, number % KINDS)
            await anyio.sleep(pause)
            if (number + 1) % max(1, identities // count) == 0:
                samples.append(_sample(world, number + 1))
                print(samples[-1].report_line(), flush=True)
        return samples

    return running(setting, main)


def left(strangers: int, after: Sequence[float] = AFTER) -> list[Left]:
    """Let peers without accepted work come for an hour; return what they leave `after` so many hours more."""

    async def main(world: World) -> list[Left]:
        await anyio.sleep(60)
        before = _on_disk(world)
        for number in range(strangers):
            world.tasks.start_soon(_visit, world, number, number % FREE_KINDS)
            await anyio.sleep(3600 / strangers)
        samples = []
        ended = anyio.current_time()
        for hours in after:
            world.put_forward(max(0.0, ended + 3600 * hours - anyio.current_time()))
            await anyio.sleep(_SETTLES)
            samples.append(Left(hours, (_on_disk(world) - before) / strangers, _rows(world)))
        return samples

    return running(replace(SETTING, nodes=()), main)


async def _visit(world: World, number: int, kind: int) -> None:
    connection = await world.connect(f"party {number}")
    key = world.key(connection)
    world.attackers.clear()
    try:
        await key.hello()
        with anyio.move_on_after(_PATIENCE):
            if kind > 0 and not isinstance(lease := await world.lease(key), Refusal) and kind > 1:
                await anyio.sleep(0.0 if kind == 2 else 20.0)
                await key.submit(made_up(lease) if kind == 2 else honest(lease))
            while kind == 4 and key.undecided:
                await anyio.sleep(20.0)
                await key.ask_verdicts()
    finally:
        world.hang_up(connection)


def _sample(world: World, came: int) -> Sample:
    give_back()
    return Sample(came, psutil.Process().memory_info().rss, len(asyncio.all_tasks()), _rows(world))


def _rows(world: World) -> dict[str, int]:
    tables = [name for (name,) in world.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return {name: int(world.value(f"SELECT count(*) FROM {name}")) for name in tables}


def _on_disk(world: World) -> int:
    """Return the bytes in use of run.sqlite."""
    used = int(world.value("PRAGMA page_count")) - int(world.value("PRAGMA freelist_count"))
    return used * int(world.value("PRAGMA page_size"))


def claims_of(samples: Sequence[Sample]) -> list[Claim]:
    """Print the samples, and return the claims."""
    rows = [(one.came, one.memory / 2**20, one.tasks, one.passing(), one.lasting()) for one in samples]
    bench.table(["strangers", "MiB", "tasks", "passing rows", "lasting rows"], rows)
    print("rows by table at half, and at the end")
    settled = list(samples[len(samples) // 2 :])
    first, last = settled[0], settled[-1]
    bench.table(["table", "half", "end"], [(t, first.rows.get(t, 0), n) for t, n in sorted(last.rows.items()) if n])
    each = {
        "memory": slope([(one.came, one.memory) for one in settled]),
        "tasks": slope([(one.came, one.tasks) for one in settled]),
        "passing": slope([(one.came, one.passing()) for one in settled]),
        "lasting": slope([(one.came, one.lasting()) for one in settled]),
    }
    return [
        Claim("bytes of memory a stranger leaves behind", each["memory"], "one", MOST_BYTES, at_most=True),
        Claim("tasks a stranger leaves behind", each["tasks"], "one", 0.001, at_most=True),
        Claim("rows a stranger leaves behind beside the record", each["passing"], "one", 0.001, at_most=True),
        Claim("rows of the record a stranger leaves", each["lasting"], "one", MOST_ROWS, at_most=True),
    ]


def claims_of_disk(strangers: int, sizes: Sequence[Left]) -> list[Claim]:
    """Print the bytes and rows left on disk, and return the claims."""
    bench.table(["hours later", "bytes on disk a stranger"], [(one.hours, one.nbytes) for one in sizes])
    tables = sorted(table for table, count in sizes[0].rows.items() if count)
    bench.table(["table", *(f"{one.hours:g} h later" for one in sizes)], [
        (table, *(one.rows[table] for one in sizes)) for table in tables
    ])  # fmt: skip
    last = sizes[-1]
    groups = last.rows["submissions"]
    each = last.nbytes * strangers / max(1, groups)
    silent = sum(last.rows[table] - groups for table in ("nodes", "leases", "verdicts")) + last.rows["ends"]
    return [
        Claim("rows of strangers that handed nothing in, 8 days later", silent, "one", 0, at_most=True),
        Claim("bytes on disk of a made-up group, 8 days later", each, "one", MOST_OF_A_GROUP, at_most=True),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=float, default=24.0, help="of fake time")
    parser.add_argument("--identities", type=int, default=10_000)
    parser.add_argument("--without-work", type=int, default=600, help="strangers whose rows are followed for 8 days")
    parser.add_argument("--only", choices=("growth", "disk"))
    options = parser.parse_args(arguments)
    bench.header("flood: strangers that come and go")
    claims: list[Claim] = []
    if options.only != "disk":
        claims += claims_of(measured(options.hours, options.identities))
    if options.only != "growth":
        claims += claims_of_disk(options.without_work, left(options.without_work))
    return bench.close(claims)


if __name__ == "__main__":
    sys.exit(main())
