"""Measure the time until n peers hold a new payload: `python -m benchmarks.broadcast [--quick]`.

One source and n peers run as processes, each in a network namespace of its own, on links that `tc tbf` caps alike in
both directions. Every peer runs the product's network stack (`ThreadedPeer`: libp2p; chunks are verified before they
are stored and passed on), with the parents that `p2p.plan` assigns. Time runs from the moment when all peers are told
of the payload until the last of them holds the whole of it, verified and on disk. In one run:

    ours        n peers, undisturbed
    T*          W / r: the bound where all links are alike. W: bytes of the payload. r: the rate of one plain TCP stream
                on such a link
    star        all peers fetch from the source alone: n W / r by the formula; also measured
    libtorrent  the same file, links and number of peers, at its best settings; from its first payload byte on
    churn       30 % of the peers are killed after half of T*; `NOTICED` seconds later the plan is rebuilt
    poison      30 % of the peers send chunks with a flipped bit

Where namespaces are not permitted, the benchmark says so. Peers then share the loopback, token buckets cap their
uplinks, and r is the bucket's rate. Libtorrent is left out, since it ignores its limits at private addresses.
"""

import argparse
import contextlib
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.harness.lab import Lab, NotPermitted, Process, payload_rate
from echo2.p2p.plan.repair import Planner
from echo2.p2p.plan.trees import LinkCapacity, PayloadSize
from echo2.runtime.units import MBIT

PEER: Final = "benchmarks.broadcast.peer"
TORRENT: Final = "benchmarks.broadcast.torrent_peer"
LATENCY: Final = 0.001
"""Latency of an idle link one way, in seconds; given to the planner."""
HARMED: Final = 0.3
"""Share of the peers that are killed, or send false chunks."""
NOTICED: Final = 1.0
"""Seconds from a kill until the plan is rebuilt: more than a coordinator needs to see a connection end."""


class Plan(NamedTuple):
    """One measurement: Mbit/s of each link, bytes of the payload, numbers of peers, and those at which a star is
    measured too."""

    mbit: float
    payload: int
    sizes: tuple[int, ...]
    star: tuple[int, ...]


FULL: Final = Plan(mbit=40, payload=40 << 20, sizes=(4, 8, 16), star=(4, 8, 16))
QUICK: Final = Plan(mbit=40, payload=20 << 20, sizes=(4, 8), star=(4,))


class Outcome(NamedTuple):
    """Result of one broadcast. `times`: seconds until each surviving peer was complete. `from_source`: bytes that the
    source sent. `bad_sent`: chunks with a flipped bit that honest peers sent on. `bad_received`: those that they
    refused."""

    times: list[float]
    from_source: int
    bad_sent: int
    bad_received: int

    @property
    def last(self) -> float:
        return max(self.times)


class Loopback:
    """Replacement for `Lab` where namespaces are not permitted: all peers on 127.0.0.1, with uplinks capped by token
    buckets."""

    def __init__(self) -> None:
        self._processes: list[Process] = []

    def address(self, host: int) -> str:
        return "127.0.0.1"

    def process(self, host: int, module: str, *arguments: str) -> Process:
        process = Process([], module, *arguments)
        self._processes.append(process)
        return process

    def end(self) -> None:
        for process in self._processes:
            process.kill()


class Ground(NamedTuple):
    """The hosts of a broadcast. `rate`: of each link, bytes per second. `real`: whether `tc tbf` caps the links."""

    lab: Lab | Loopback
    rate: float
    real: bool


@contextlib.contextmanager
def ground(hosts: int, mbit: float) -> Iterator[Ground]:
    """Make a new network: each broadcast gets its own, so that none profits from the connections of another."""
    try:
        with Lab(hosts).running(mbit) as lab:
            yield Ground(lab, mbit * MBIT, True)
    except NotPermitted as reason:
        print(f"no namespaces here ({reason}): token buckets on the loopback instead")
        loopback = Loopback()
        try:
            yield Ground(loopback, mbit * MBIT, False)
        finally:
            loopback.end()


def rate_of_a_line(plan: Plan) -> float:
    """Return r, the bytes of payload per second that a link carries."""
    with ground(2, plan.mbit) as hosts:
        return payload_rate(hosts.lab, plan.payload) if isinstance(hosts.lab, Lab) else hosts.rate


class Ours:
    """A source and `n` connected peers. `star`: each is connected with the source alone, without a plan. `liars`:
    number of peers that flip a bit of each chunk."""

    def __init__(
        self, hosts: Ground, n: int, folder: Path, payload: Path, *, star: bool = False, liars: int = 0
    ) -> None:
        self._payload = payload
        uplink = [] if hosts.real else ["--uplink", str(hosts.rate)]
        self.processes = [
            hosts.lab.process(
                host, PEER, hosts.lab.address(host), str(folder / f"peer{host}"), str(host),
                *uplink, *(["--liar"] if 0 < host <= liars else []),
            )
            for host in range(n + 1)
        ]  # fmt: skip
        self.liars = range(1, liars + 1)
        met = [process.hear() for process in self.processes]
        self._planner, self._rate = Planner(met[0]["peer"], seed=0), hosts.rate
        self.source = met[0]["peer"]
        self._named = {process: one["peer"] for process, one in zip(self.processes, met, strict=True)}
        for number, process in enumerate(self.processes):
            others = met[:1] if star else met[:number]  # a connection serves both ends
            process.say(dial=[other["addresses"] for other in others] if number else [])
        for process in self.processes:
            process.hear()
        self.processes[0].say(share=str(payload))
        self._manifest = self.processes[0].hear()["manifest"]
        if not star:
            self._follow(self.processes[1:])

    def _follow(self, processes: Sequence[Process]) -> None:
        """Send the plan to these peers, as from a coordinator that has measured their links."""
        _, length, chunk, _ = self._manifest
        lines = {self._named[process]: LinkCapacity(self._rate, self._rate, LATENCY) for process in processes}
        plan = self._planner.update(self._rate, lines, PayloadSize(length, chunk))
        for process in processes:
            process.say(follow=plan.parents[self._named[process]])

    def broadcast(self, *, kill_after: float | None = None) -> Outcome:
        """Let all peers fetch the payload. `kill_after`: seconds after which a share `HARMED` of them is killed."""
        start = time.monotonic()
        waiting = self.processes[1:]
        for process in waiting:
            process.say(fetch=self._manifest, last=self.source, truth=str(self._payload))
        if kill_after is not None:
            time.sleep(max(0.0, start + kill_after - time.monotonic()))
            doomed = waiting[: round(HARMED * len(waiting))]
            for process in doomed:
                process.kill()
            waiting = waiting[len(doomed) :]
            time.sleep(NOTICED)
            self._follow(waiting)
        ends = [_heard(process, "end")["end"] - start for process in waiting]
        return self._outcome(ends, waiting)

    def _outcome(self, ends: list[float], survivors: Sequence[Process]) -> Outcome:
        honest = [process for process in survivors if process not in [self.processes[i] for i in self.liars]]
        reports = []
        for process in (self.processes[0], *honest):
            process.say(report=True)
            reports.append(_heard(process, "sent"))
        return Outcome(
            ends,
            reports[0]["sent"],
            sum(report["bad_sent"] for report in reports),
            sum(report["bad_received"] for report in reports),
        )


def _heard(process: Process, what: str) -> dict[str, Any]:
    """Return the next message with this key; skip replies to orders about the plan."""
    while what not in (said := process.hear()):
        pass
    return said


def ours(plan: Plan, n: int, folder: Path, payload: Path, **how: Any) -> Outcome:
    """Broadcast to `n` peers in a new network. `how`: `kill_after` of `Ours.broadcast`, the rest for `Ours`."""
    kill_after = how.pop("kill_after", None)
    with ground(n + 1, plan.mbit) as hosts, tempfile.TemporaryDirectory(dir=folder) as own:
        return Ours(hosts, n, Path(own), payload, **how).broadcast(kill_after=kill_after)


def torrent(plan: Plan, n: int, folder: Path, payload: Path) -> float | None:
    """Return the seconds from the first payload byte until the last peer has all; None where libtorrent is not
    installed or namespaces are not permitted."""
    if importlib.util.find_spec("libtorrent") is None:
        print("libtorrent is not installed (pip install libtorrent): left out")
        return None
    with ground(n + 1, plan.mbit) as hosts, tempfile.TemporaryDirectory(dir=folder) as own:
        if not hosts.real:
            return None
        processes = [
            hosts.lab.process(host, TORRENT, hosts.lab.address(host), f"{own}/peer{host}") for host in range(n + 1)
        ]
        addresses = [(hosts.lab.address(host), process.hear()["port"]) for host, process in enumerate(processes)]
        processes[0].say(seed=str(payload))
        data = processes[0].hear()["torrent"]
        for host, process in enumerate(processes[1:], 1):
            process.say(fetch=data, peers=[address for other, address in enumerate(addresses) if other != host])
        heard = [process.hear() for process in processes[1:]]
        return float(max(one["end"] for one in heard) - min(one["first"] for one in heard))


class Table:
    """Runs the broadcasts, and keeps a row of each. `best`: T* in seconds."""

    def __init__(self, plan: Plan, folder: Path, best: float) -> None:
        self.plan, self.best = plan, best
        self._folder, self._payload = folder, folder / "payload"
        self._rows: list[Sequence[object]] = []

    def ours(self, what: str, n: int, **how: Any) -> Outcome:
        outcome = ours(self.plan, n, self._folder, self._payload, **how)
        copies = outcome.from_source / self.plan.payload
        self._row(what, n, statistics.median(outcome.times), outcome.last, copies)
        return outcome

    def torrent(self, n: int) -> float | None:
        last = torrent(self.plan, n, self._folder, self._payload)
        if last is not None:
            self._row("libtorrent", n, "", last, "")
        return last

    def print(self) -> None:
        columns = ["what", "n", "median, s", "last, s", "of T*", "copies from the source", "load"]
        bench.table(columns, self._rows)

    def _row(self, what: str, n: int, median: object, last: float, copies: object) -> None:
        self._rows.append((what, n, median, last, last / self.best, copies, round(os.getloadavg()[0], 1)))
        print(f"{what}, n = {n}: {last:.2f} s", file=sys.stderr)


def measured(plan: Plan, folder: Path) -> Iterator[list[Claim]]:
    """Run all broadcasts, print the table, and yield the claims: first those of undisturbed ones."""
    (folder / "payload").write_bytes(os.urandom(plan.payload))
    rate = rate_of_a_line(plan)
    best = plan.payload / rate
    print(f"{plan.payload / 1e6:.1f} MB, {plan.mbit:g} Mbit/s: {rate / 1e6:.2f} MB/s of payload, T* {best:.2f} s\n")
    table = Table(plan, folder, best)
    least, most = min(plan.sizes), max(plan.sizes)
    free = {n: table.ours("ours", n).last for n in plan.sizes}
    yield [
        Claim(f"broadcast, n = {most}", free[most] / best, "T*", 1.25, at_most=True),
        Claim(f"flatness, n = {least} -> {most}", free[most] / free[least], f"n = {least}", 1.2, at_most=True),
    ]
    swarm = table.torrent(most)
    churn = table.ours("ours, 30 % killed", most, kill_after=best / 2).last
    poison = table.ours("ours, 30 % lie", most, liars=round(HARMED * most))
    stars = {n: table.ours("star", n, star=True).last for n in plan.star}
    table.print()
    print(f"30 % lie: {poison.bad_received} bad chunks came and were refused\n")
    claims = [
        Claim(f"broadcast, 30 % of {most} killed", churn / free[most], "undisturbed", 1.5, at_most=True),
        Claim("bad chunks sent on, 30 % lie", poison.bad_sent, "none", 0, at_most=True),
    ]
    if swarm is not None:
        claims.append(Claim(f"broadcast, n = {most}, time", free[most] / swarm, "libtorrent", 1.0, at_most=True))
    for n, star in stars.items():
        # By the formula a star takes n T*; ours may take 1.25 T*.
        claims.append(Claim(f"broadcast, n = {n}, times sooner", star / free[n], "star", n / 1.25))
    yield claims


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="n = 4 and 8, a smaller file")
    parser.add_argument("--mbit", type=float, help="rate of each link, Mbit/s")
    parser.add_argument("--megabytes", type=int, help="length of the file, MiB")
    given = parser.parse_args()
    bench.one_thread()
    bench.header("broadcast: from one source to n peers, until the last has all of it")
    plan = QUICK if given.quick else FULL
    plan = plan._replace(mbit=given.mbit or plan.mbit, payload=(given.megabytes or plan.payload >> 20) << 20)
    with tempfile.TemporaryDirectory() as folder:
        return bench.close_each(measured(plan, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
