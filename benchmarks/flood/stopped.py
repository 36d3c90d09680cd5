"""Measure attackers that stop halfway (benchmarks/attacks/halves.py) over real connections between processes.

The coordinator, its honest nodes (half over libp2p, half over HTTPS), newcomers and attackers are processes of their
own, as in benchmarks/flood/wires.py. Leases are short, so that a group which cannot be handed in is late. Calm is
measured before and after the attacks, all in one run: one window of a minute has a tenth more or less than the next.
Newcomers come all the time, over the transport that is attacked.

`host` is a peer as a node runs it, attacked by streams of one private address, while five peers ask it for Heads.
"""

import contextlib
import time
from typing import Any, Final, NamedTuple

import trio

from benchmarks.attacks.flood_keys import Connection
from benchmarks.attacks.halves import UNSERVED, HalfStreams
from benchmarks.connections import host
from benchmarks.flood.wire import BODIES, HALVES, IDLE_STREAMS, OVER_HTTPS, REQUESTS
from benchmarks.flood.wires import SECTIONS, WiredRun, said_by, wired_run
from echo2.p2p.errors import P2PError
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.transport import LibP2PTransport
from echo2.p2p.peer.peer import Peer

NODES: Final = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
"""Seconds per group of each honest node."""
LEASES: Final = {"minimum_seconds": 5.0, "maximum_seconds": 10.0}
BATCH: Final = 8
"""Groups per step: more than these nodes and newcomers bring while the learner makes one, so that nobody waits."""
BEFORE: Final = 12.0
STANDS: Final = 30.0
"""Most seconds until an attack stands: all that it wants to hold, if the coordinator ends nothing."""
EXPIRY: Final = 10.0
"""Seconds for which an attack goes on after the groups were counted: leases that it made late have ended then."""
QUICK: Final = (REQUESTS, IDLE_STREAMS, BODIES)
BACK: Final = 60.0
"""Seconds within which the memory that attacks took has to be back."""
KEPT: Final = 32e6
"""Bytes of memory that they may leave behind, beside what the run itself takes meanwhile."""
NODE_PLACES: Final = 256
"""Connections of a node's host."""
ATTACKERS: Final = 17
ASKERS: Final = 5
"""Peers that attack a node's host, and honest ones."""


class Stopped(NamedTuple):
    """Results of one attack. `groups`, `calm`: groups per second of the honest nodes over the same transport, with it
    and in the mean of both calms. `late`: leases that expired meanwhile. `came`, `served`: newcomers. `said`: see
    `Halves.said`."""

    groups: float
    late: int
    came: int
    served: int
    said: dict[str, float]
    calm: float = 0.0

    def beside(self, before: list[float], after: list[float], https: bool) -> "Stopped":
        """Return these results with their calm, of two windows of `groups_of`."""
        return self._replace(calm=(before[https] + after[https]) / 2)


def measured(seconds: float, quick: bool) -> tuple[dict[str, Stopped], float]:
    """Measure the attacks, for `seconds` each; return the results, and the bytes of memory that they left behind."""
    with wired_run(NODES, leases=LEASES, run={**SECTIONS["run"], "batch_groups": BATCH}) as run:
        calm = calm_of(run, seconds, after=BEFORE)
        before = run.at.measure("freshly").memory
        results = {name: attacked(run, name, seconds) for name in (QUICK if quick else HALVES)}
        until = time.monotonic() + BACK
        while (left := run.at.measure("freshly").memory - before) > KEPT and time.monotonic() < until:
            time.sleep(2.0)
        again = calm_of(run, seconds, after=EXPIRY)
        return {name: one.beside(calm, again, name in OVER_HTTPS) for name, one in results.items()}, left


def calm_of(run: WiredRun, seconds: float, after: float = 0.0) -> list[float]:
    """Return `groups_of` without an attack, `after` seconds from now, while newcomers come."""
    newcomers = run.newcomers(https=False)
    time.sleep(after)
    groups = groups_of(run, seconds)
    newcomers.kill()
    return groups


def attacked(run: WiredRun, name: str, seconds: float) -> Stopped:
    expired = _expired(run)
    strangers, until = run.strangers(name), time.monotonic() + STANDS
    while (said := said_by(strangers))["standing"] < said["wanted"] and time.monotonic() < until:
        time.sleep(1.0)
    newcomers = run.newcomers(name in OVER_HTTPS)
    groups = groups_of(run, seconds)[name in OVER_HTTPS]
    time.sleep(EXPIRY)
    said, came = said_by(strangers), said_by(newcomers)
    late = _expired(run) - expired
    for crowd in (strangers, newcomers):
        crowd.kill()
    return Stopped(groups, late, int(came["came"]), int(came["served"]), said)


def groups_of(run: WiredRun, seconds: float) -> list[float]:
    """Return groups of honest nodes per second, for `seconds` from now: over libp2p, and over HTTPS."""
    before, began = [run.groups(https) for https in (False, True)], time.monotonic()
    time.sleep(seconds)
    lasted = time.monotonic() - began
    return [(run.groups(https) - before[https]) / lasted for https in (False, True)]


def _expired(run: WiredRun) -> int:
    return int(run.at.value("SELECT count(*) FROM leases WHERE state = 'expired'"))


class _Peers:
    """The place of peers that attack or use one host, all from one private address."""

    def __init__(self, address: str, tasks: trio.Nursery) -> None:
        self.address, self.tasks = address, tasks

    async def connect(self, party: str = "") -> Connection:
        peer = Peer(LibP2PTransport(generate_key(), []), seed=0)
        self.tasks.start_soon(peer.run)
        await peer.ready()
        return Connection(peer, await peer.dial([self.address]))


def node(seconds: float) -> tuple[float, int]:
    """Attack a node's host by idle streams; return the share of honest peers' requests that it answered, and their
    number."""
    with host(NODE_PLACES) as attacked:
        answers: list[bool] = trio.run(_asked, attacked.address, seconds)
    return sum(answers) / len(answers), len(answers)


async def _asked(address: str, seconds: float) -> list[bool]:
    answers = list[bool]()

    async def ask(connection: Connection) -> None:
        while True:
            answered = False
            with contextlib.suppress(P2PError):
                answered = await connection.request(connection.to, "head", b"", timeout=5.0) == b"head"
            answers.append(answered)
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        peers: Any = _Peers(address, nursery)
        nursery.start_soon(HalfStreams(ATTACKERS, 1, 256, protocol=UNSERVED).run, peers)
        await trio.sleep(6.0)
        for _ in range(ASKERS):
            nursery.start_soon(ask, await peers.connect())
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    return answers
