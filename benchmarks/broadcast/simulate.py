"""Simulate broadcasts to thousands of peers: `python -m benchmarks.broadcast.simulate [--quick]`.

The product's planner and chunk picker run, with every message and chunk between the peers as an event
(benchmarks/broadcast/simulator.py). All figures are simulated. Links differ, in Mbit/s up/down: 25 % of the peers have
5/50, 35 % 20/100, 25 % 50/200, 15 % 100/500. The source's uplink is 100. The planner knows 80 to 100 % of each uplink.
Scenarios:

    calm        all peers stay
    30 % fail   30 % of the peers fail at any time within T*, one in three of them by freezing; meanwhile 10 % join
    unplanned   100 peers as in calm, with the planner switched off
    equal       16 peers and the source on equal links of 40 Mbit/s, as in `benchmarks.broadcast`
    30 % killed as equal; 30 % of the peers are killed at T*/2, and their connections end with them

The column `star` is the time in which all peers fetch from the source alone: n W / U, by its formula. The bars of calm
and 30 % fail are 2 T* + 2 ceil(log_K n) hops. A hop is K c / B + l: K stripes, chunks of c bytes, B the rate of all
stripes together, l the mean latency to the source.

`--picture FILE` draws time against n instead, over links that are all alike, beside stars and the bound; `--measured`
adds measured points, as `benchmarks.broadcast` prints them in its column `of T*`.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from benchmarks.broadcast import drawing
from benchmarks.broadcast.simulated_space import Place
from benchmarks.broadcast.simulator import World
from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from echo2.p2p.plan.trees import LinkCapacity, PayloadSize, lower_bound
from echo2.p2p.swarm.manifest import chunk_size
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import MBIT

SOURCE_UPLINK: Final = 100 * MBIT
LINES: Final = ((0.25, 5, 50), (0.60, 20, 100), (0.85, 50, 200), (1.0, 100, 500))
"""Kinds of links: cumulative share of the peers, Mbit/s up, down."""
FAILING, FROZEN, COMING = 0.3, 1 / 3, 0.1
QUICK: Final = (300,)
FULL: Final = (1_000, 10_000)
UNPLANNED: Final = 100
PICTURED: Final = (4, 8, 16, 32, 64, 128, 200)
EQUAL: Final = 16
EQUAL_MBIT: Final = 40
"""Mbit/s of each link where all are alike, in the picture too: that of `benchmarks.broadcast`."""
SEED: Final = 1
MOST: Final = 100.0
"""Multiple of T* after which a simulation is given up."""


class Outcome(NamedTuple):
    """Result of one simulation. `times`: per peer that stayed, the seconds from its arrival until it had all. `best`:
    T*. `hop`, `stripes`: of the first plan. `unserved`: number of peers that stayed and never had all. `surplus`: share
    of the chunks that arrived a second time. `copies`: of the payload, sent by the source. `cpu`: seconds of the
    simulation."""

    n: int
    times: list[float]
    best: float
    hop: float
    stripes: int
    unserved: int
    surplus: float
    copies: float
    cpu: float

    @property
    def last(self) -> float:
        return max(self.times) if not self.unserved else math.inf

    @property
    def allowed(self) -> float:
        """Return 2 T* + 2 ceil(log_K n) hops."""
        return 2 * self.best + 2 * math.ceil(math.log(self.n, max(self.stripes, 2))) * self.hop


def places(n: int, seed: int) -> list[Place]:
    """Place `n` peers at random on a disk, with links of the kinds in `LINES`."""
    random, drawn_places = Random(seed), []
    for _ in range(n):
        chance = random.random()
        up, down = next((up, down) for share, up, down in LINES if chance <= share)
        angle, radius = random.uniform(0, 2 * math.pi), math.sqrt(random.random())
        believed = up * MBIT * random.uniform(0.8, 1.0)
        drawn_places.append(Place(up * MBIT, down * MBIT, believed, radius * math.cos(angle), radius * math.sin(angle)))
    return drawn_places


def alike(n: int, uplink: float, seed: int) -> list[Place]:
    """Place `n` peers at random on a disk, all with links of `uplink` bytes per second up and down."""
    return [place._replace(up=uplink, down=uplink, believed=uplink) for place in places(n, seed)]


def simulated(
    load: PayloadSize,
    peers: Sequence[Place],
    uplink: float,
    seed: int,
    *,
    trouble: Callable[[World, int, float, int], None] | None = None,
    planned: bool = True,
) -> Outcome:
    """Simulate one broadcast. `trouble`: schedules failures and joins, given the world, n, T* and the seed."""
    began = time.process_time()
    world = World(uplink, peers, load, seed, planned=planned)
    best = lower_bound(uplink, [LinkCapacity(place.up, place.down) for place in peers], load.length)
    if trouble is not None:
        trouble(world, len(peers), best, seed)
    world.clock.run(lambda: world.waiting == 0 and world.coming == 0, MOST * best)
    plan = world.first
    return Outcome(
        n=len(peers),
        times=[peer.done - peer.since for peer in world.peers.values() if peer.done and peer.awake],
        best=best,
        hop=plan.stripes * load.chunk / plan.rate + statistics.mean(place.distance(world.middle) for place in peers),
        stripes=plan.stripes,
        unserved=world.waiting,
        surplus=world.surplus / world.delivered,
        copies=world.from_source / world.chunks,
        cpu=time.process_time() - began,
    )


def disturb(world: World, n: int, best: float, seed: int) -> None:
    """Schedule failures at random times, a share `FROZEN` of them by freezing, and peers that join."""
    random, clock = Random(seed + 1), world.clock
    for number in random.sample(range(n), round(FAILING * n)):
        clock.after(random.random() * best, world.peers[f"p{number}"].end, random.random() < FROZEN)
    newcomers = places(round(COMING * n), seed + 2)
    world.coming = len(newcomers)
    for number, place in enumerate(newcomers):
        clock.after(random.random() * best, world.come, f"late{number}", place)


def kill(world: World, n: int, best: float, seed: int) -> None:
    """Schedule the kill of many peers at once, in the middle of the broadcast."""
    for number in Random(seed + 1).sample(range(n), round(FAILING * n)):
        world.clock.after(best / 2, world.peers[f"p{number}"].end, False)


EQUALS: Final = {"equal": None, "30 % killed": kill}


class Table:
    """Runs the simulations, and keeps a row of each."""

    def __init__(self, load: PayloadSize) -> None:
        self._load = load
        self._rows: list[Sequence[object]] = []

    def run(self, what: str, n: int, *, equal: bool = False, **how: Any) -> Outcome:
        uplink = EQUAL_MBIT * MBIT if equal else SOURCE_UPLINK
        peers = alike(n, uplink, SEED) if equal else places(n, SEED)
        outcome = simulated(self._load, peers, uplink, SEED, **how)
        ordered = sorted(outcome.times)
        p95 = ordered[int(0.95 * (len(ordered) - 1))]
        self._rows.append(
            (
                what, n, outcome.stripes if how.get("planned", True) else "", outcome.best, statistics.median(ordered),
                p95, outcome.last, outcome.last / outcome.best, n * self._load.length / uplink, outcome.surplus,
                outcome.copies, round(outcome.cpu),
            )
        )  # fmt: skip
        print(f"{what}, n = {n}: {outcome.last:.2f} s, simulated in {outcome.cpu:.0f} s of CPU", file=sys.stderr)
        return outcome

    def print(self) -> None:
        columns = (
            "simulated", "n", "K", "T*, s", "median, s", "p95, s", "last, s", "of T*", "star, s", "surplus",
            "copies from the source", "CPU s",
        )  # fmt: skip
        bench.table(columns, self._rows)


def claims_of(sizes: Sequence[int], load: PayloadSize) -> list[Claim]:
    """Simulate all scenarios, print the table, and return the claims."""
    table, claims = Table(load), []
    for n in sizes:
        for what, trouble in (("calm", None), ("30 % fail", disturb)):
            outcome = table.run(what, n, trouble=trouble)
            anchor = "2 T* + 2 ceil(log_K n) hops"
            claims.append(
                Claim(f"simulated, n = {n}, {what}", outcome.last / outcome.allowed, anchor, 1.0, at_most=True)
            )
    equal, killed = (table.run(what, EQUAL, equal=True, trouble=trouble) for what, trouble in EQUALS.items())
    claims.append(
        Claim(f"simulated, 30 % of {EQUAL} killed", killed.last / equal.last, "undisturbed", 1.35, at_most=True)
    )
    unplanned = table.run("unplanned", UNPLANNED, planned=False)
    claims.append(
        Claim(f"simulated, n = {UNPLANNED}, unplanned: not served", unplanned.unserved, "none", 0, at_most=True)
    )
    table.print()
    return claims


def picture(sizes: Sequence[int], measured: Mapping[int, float], load: PayloadSize) -> str:
    """Simulate broadcasts over equal links, print their table, and return the SVG. Raises `LocalFault` for fewer than
    two sizes."""
    uplink = EQUAL_MBIT * MBIT
    outcomes = [simulated(load, alike(n, uplink, SEED), uplink, SEED) for n in sizes]
    times = {one.n: one.last / one.best for one in outcomes}
    said = f"{load.length / 1e6:g} MB over {EQUAL_MBIT} Mbit/s"
    drawn = drawing.draw(times, measured, said)
    bench.table(
        ("simulated, n", "K", "T*, s", "last, s", "of T*", "star, s"),
        [(one.n, one.stripes, one.best, one.last, times[one.n], one.n * load.length / uplink) for one in outcomes],
    )
    return drawn


def point(given: str) -> tuple[int, float]:
    """Parse N=TIMES of the command line. Raises `ValueError`."""
    n, _, times = given.partition("=")
    position = int(n), float(times)
    if position[0] < 1 or not 0 < position[1] < math.inf:
        raise ValueError(given)
    return position


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="n = 300 only")
    parser.add_argument("--n", type=int, nargs="+", help="numbers of peers")
    parser.add_argument("--megabytes", type=float, default=40, help="length of the payload")
    parser.add_argument("--picture", type=Path, help="draw time against n into this file (.svg), and nothing else")
    parser.add_argument("--measured", type=point, nargs="+", default=[], metavar="N=TIMES", help="of T*: 16=1.2")
    given = parser.parse_args()
    bench.header("broadcast to thousands: simulated time, the shipped planner and swarm")
    length = round(given.megabytes * 1e6)
    load = PayloadSize(length, chunk_size(length))
    if given.picture:
        try:
            given.picture.write_text(picture(given.n or PICTURED, dict(given.measured), load))
        except (LocalFault, OSError) as error:
            parser.error(str(error))
        return 0
    return bench.close(claims_of(given.n or (QUICK if given.quick else FULL), load))


if __name__ == "__main__":
    sys.exit(main())
