"""Measure the gain of the diff codec from a second core: two threads against one, by the clock. For `benchmarks.diff`.

The possible gain depends on the machine: its cores share memory bandwidth, and a virtual machine shares it with other
guests. So two processes that share no data, each with its own weights, alternate with the two threads. Their gain is
the machine's limit for any program.
"""

import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any, Final, NamedTuple

from benchmarks.diff.speed import Tiled
from benchmarks.diff.streams import Stream
from benchmarks.harness import bench
from benchmarks.harness.bench import Claim

Work = Callable[[int], Any]
"""Does its work with the given number of threads."""
BAR: Final = 1.8
"""Least gain from the second core."""
CLAIMED: Final = ("encode", "decode+apply")
TURNS: Final = 30
QUIET: Final = 5
"""Least number of quiet rounds, those in which both cores were free, for a claim."""
WAITED: Final = 0.02
"""Largest share of its time that a thread waits for a core in a quiet round."""


class Took(NamedTuple):
    """Duration of one piece of work by the clock. `waited`: the share of it in which a thread was ready to run and had
    no core."""

    seconds: float
    waited: float


class CoreTurn(NamedTuple):
    """The same work by one thread, by two threads, and by two processes at once, each of which does the whole work."""

    one: Took
    two: Took
    both: Took

    @property
    def quiet(self) -> bool:
        return max(took.waited for took in self) < WAITED


def cores(stream: Stream) -> list[Claim]:
    """Compare two threads with one over the quiet rounds, print the table, and return the claims.

    With fewer than `QUIET` of them no claim is made: without a second free core a round tells nothing about the codec.
    """
    tiled = Tiled(stream)
    claims: list[Claim] = []
    rows: list[tuple[object, ...]] = []
    with _other(stream) as other:
        for what, work in _works(tiled).items():
            turns = [_core_turn(tiled, what, work, other) for _ in range(TURNS)]
            quiet = [core_turn for core_turn in turns if core_turn.quiet]
            if len(quiet) < QUIET:
                rows.append((what, len(quiet), "not judged", "not judged"))
                continue
            threads, processes = _gains(quiet)
            rows.append((what, len(quiet), threads, processes))
            if what in CLAIMED:
                claims.append(Claim(f"{stream.name}, {what} on two cores", threads, "one", BAR))
    print(f"{stream.name}: two cores against one, by the clock (load {os.getloadavg()[0]:.1f})")
    bench.table(["what", f"quiet turns of {TURNS}", "two threads", "two processes"], rows)
    return claims


def _gains(turns: list[CoreTurn]) -> tuple[float, float]:
    """Return the work of two threads, and of two processes, in the time in which one thread does one unit."""
    one, two, both = (statistics.median(took.seconds for took in each) for each in zip(*turns, strict=True))
    return one / two, 2 * one / both


def _works(tiled: Tiled) -> dict[str, Work]:
    bodies = tiled.encode()
    return {
        "memcpy": tiled.copy_place,
        "encode": tiled.encode,
        "decode+apply": lambda threads: tiled.decode(bodies, threads),
    }


def _core_turn(tiled: Tiled, what: str, work: Work, other: Connection) -> CoreTurn:
    one, two = _took(tiled, work, 1), _took(tiled, work, 2)
    other.send(what)
    ours, theirs = _took(tiled, work, 1), other.recv()
    return CoreTurn(one, two, Took(max(ours.seconds, theirs.seconds), max(ours.waited, theirs.waited)))


def _took(tiled: Tiled, work: Work, threads: int) -> Took:
    """Time one call. `waited` is the mean over the threads."""
    tiled.waits.clear()
    start = perf_counter()
    work(threads)
    seconds = perf_counter() - start
    return Took(seconds, sum(tiled.waits) / (threads * seconds))


@contextmanager
def _other(stream: Stream) -> Iterator[Connection]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(stream, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield ours
    finally:
        ours.close()
        process.join()


def _serve(stream: Stream, pipe: Connection) -> None:
    """Run the second process: do the work that the pipe names and send its duration, until the pipe closes."""
    tiled = Tiled(stream)
    works = _works(tiled)
    pipe.send(None)
    while True:
        try:
            what = pipe.recv()
        except EOFError:
            return
        pipe.send(_took(tiled, works[what], 1))
