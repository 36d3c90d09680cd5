"""A day of strangers who come and go: `python -m benchmarks.flood.churn [--hours 24] [--identities 10000]`.

A whole coordinator on a fake clock and the in-memory network (benchmarks/flood/world.py), two honest nodes that stay,
and strangers that come one after the other, each with a key and a connection of its own, and go for good:

    a fifth each    says hello, and no more
                    takes a lease and returns nothing
                    hands in a made-up group
                    hands in an honest group and never asks what became of it
                    works honestly, asks for its verdict, and goes

Memory is taken after what nobody needs was given back; tasks are those of the event loop; rows are counted by table.
The rest that one stranger leaves behind for good is the slope over the identities from a third of the time on, the
median over all pairs of samples. Rows of the record of what was paid and refused, and those that are kept for a day or
a week, are kept by design (`LASTING`): they are printed, and held to a number a stranger.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import anyio
import psutil

from benchmarks import bench

bench.one_thread()

from benchmarks.bench import Claim  # noqa: E402
from benchmarks.flood.engine import honest, made_up  # noqa: E402
from benchmarks.flood.world import Setting, World, running  # noqa: E402
from benchmarks.load.host import give_back  # noqa: E402
from benchmarks.load.versions import slope  # noqa: E402
from p2p.messages import Refusal  # noqa: E402

SETTING: Final = Setting(nodes=(60.0, 90.0), step=20.0, before=0.0, batch_groups=2)
SAMPLES: Final = 24
LASTING: Final = (
    *("entries", "leases", "submissions", "verdicts", "versions", "buffer", "sums", "balances", "accounts"),
    *("nodes", "ends", "refused_tokens"),
)
"""Tables whose rows are the run's record, and those whose rows go after a day or a week."""
MOST_BYTES: Final = 512.0
"""Of memory that a stranger may leave behind."""
MOST_ROWS: Final = 10.0
"""Of those, a stranger."""
_PATIENCE: Final = 120.0


class Sample(NamedTuple):
    """At one time: strangers that came, bytes of memory, tasks of the loop, rows by table."""

    came: int
    memory: int
    tasks: int
    rows: dict[str, int]

    def lasting(self) -> int:
        return sum(count for table, count in self.rows.items() if table in LASTING)

    def passing(self) -> int:
        return sum(count for table, count in self.rows.items() if table not in LASTING)


def measured(hours: float, identities: int, count: int = SAMPLES) -> list[Sample]:
    """Let so many strangers come and go; `count` samples at equal times."""
    setting = replace(SETTING, seconds=3600 * hours)

    async def main(world: World) -> list[Sample]:
        for seconds in setting.nodes:
            world.tasks.start_soon(world.volunteer, seconds)
        samples, pause = [], setting.seconds / identities
        for number in range(identities):
            world.tasks.start_soon(_visit, world, number)
            await anyio.sleep(pause)
            if (number + 1) % max(1, identities // count) == 0:
                samples.append(_sample(world, number + 1))
        return samples

    return running(setting, main)


async def _visit(world: World, number: int) -> None:
    line = await world.line(f"party {number}")
    key = world.key(line)
    world.attackers.clear()
    try:
        await key.hello()
        kind = number % 5
        with anyio.move_on_after(_PATIENCE):
            if kind > 0 and not isinstance(lease := await world.lease(key), Refusal) and kind > 1:
                await anyio.sleep(0.0 if kind == 2 else 20.0)
                await key.submit(made_up(lease) if kind == 2 else honest(lease))
            while kind == 4 and key.undecided:
                await anyio.sleep(20.0)
                await key.ask_verdicts()
    finally:
        world.hang_up(line)


def _sample(world: World, came: int) -> Sample:
    give_back()
    database = world.coordinator.books.database
    tables = [name for (name,) in database.all("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    rows = {name: int(database.value(f"SELECT count(*) FROM {name}")) for name in tables}
    return Sample(came, psutil.Process().memory_info().rss, len(asyncio.all_tasks()), rows)


def claims_of(samples: Sequence[Sample]) -> list[Claim]:
    """Print the samples, and return what is claimed of them."""
    rows = [(one.came, one.memory / 2**20, one.tasks, one.passing(), one.lasting()) for one in samples]
    bench.table(["strangers", "MiB", "tasks", "passing rows", "lasting rows"], rows)
    print("rows by table at a third, and at the end")
    settled = list(samples[len(samples) // 3 :])
    first, last = settled[0], settled[-1]
    bench.table(["table", "a third", "end"], [(t, first.rows.get(t, 0), n) for t, n in sorted(last.rows.items()) if n])
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=float, default=24.0, help="of fake time")
    parser.add_argument("--identities", type=int, default=10_000)
    options = parser.parse_args(arguments)
    bench.header("flood: strangers that come and go")
    return bench.close(claims_of(measured(options.hours, options.identities)))


if __name__ == "__main__":
    sys.exit(main())
