"""Measure attackers without accepted work: `python -m benchmarks.flood [--quick] [--only PART ...]`.

    room        the learner's steps under each attack of benchmarks/flood/catalogue.py, against a run without attack
                (calm), on a fake clock
    requests    CPU of the main process per hostile request against an honest one
    forged      CPU of the scorer for a fabricated group against an honest one, 16 rollouts each
    greetings   CPU of a hello after 100,000 keys, and the list of nodes that a newcomer gets
    doors       connection limits: silent connections, tiny requests and idle connections to the page, at a coordinator
                process over libp2p and HTTP
    wires       some attacks of room, and attackers over HTTPS, over real connections between processes; not with
                --quick
    stopped     attackers that stop halfway, over real connections between processes: at a coordinator, and at a node
    proxied     the same at a coordinator, all through a TCP proxy: one that sends PROXY headers, and one that does not
    readers     readers of the page beside one address that asks for the list of nodes or the ledger without end

The churn of 10,000 identities in 24 h of fake time is `python -m benchmarks.flood.churn`.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Final

from benchmarks.harness import bench

bench.one_thread()

from benchmarks.flood import cost, doors, forged, greetings, proxied, readers, stopped, wires, world  # noqa: E402
from benchmarks.flood.catalogue import CASES, KNOWN, Case  # noqa: E402
from benchmarks.flood.stopped import Stopped  # noqa: E402
from benchmarks.flood.world import Outcome, Setting  # noqa: E402
from benchmarks.harness.bench import Claim  # noqa: E402

HELLO: Final = 2.0
"""Most milliseconds of CPU of a hello."""
KEYS: Final = 100_000
CALM: Final = "calm"
SECONDS: Final = 60.0
"""Seconds of a run over real connections."""


class Room:
    """The runs on a fake clock, in the processes of a pool, while parts that are measured by CPU time run here.

    Calm runs have the length of `KNOWN`: their speed is constant, so longer attacks are compared by steps per second.
    """

    def __init__(self, quick: bool, attacks: int | None, pool: ProcessPoolExecutor) -> None:
        """`attacks`: the first so many alone; None: all."""
        chosen = [name for name, case in CASES.items() if case.quick or not quick][:attacks]
        self._cases = {name: CASES[name] for name in chosen}
        self._settings = {name: case.at(quick) for name, case in self._cases.items()}
        slowest_first = sorted(self._cases, key=lambda name: -self._settings[name].seconds)
        self._attacked = {
            name: pool.submit(world.went, self._settings[name], self._cases[name].attack) for name in slowest_first
        }
        calm = dict.fromkeys(map(_calm, self._settings.values()))
        self._calm = {setting: pool.submit(world.went, setting) for setting in calm}

    def claims(self) -> list[Claim]:
        """Wait for all runs, print their results, and return the claims."""
        calm = {setting: run.result() for setting, run in self._calm.items()}
        rows: list[tuple[object, ...]] = [
            (_calm_name(setting), one.steps, 1.0, one.accepted, one.cpu, "") for setting, one in calm.items()
        ]
        claims = list[Claim]()
        for name, case in self._cases.items():
            one, setting = self._attacked[name].result(), self._settings[name]
            steps = calm[_calm(setting)].steps * setting.seconds / KNOWN.seconds
            said = ", ".join(f"{key} {value:.3g}" for key, value in one.said.items())
            rows.append((name, one.steps, one.steps / steps, one.accepted, one.cpu, said))
            claims += _room_claims(name, case, setting, one, steps)
        print("the learner's steps, accepted groups of honest nodes, CPU seconds of the run, counts of the attackers")
        bench.table(["attack", "steps", "of calm", "accepted", "CPU", "strangers"], rows)
        return claims


def _calm(setting: Setting) -> Setting:
    return replace(setting, seconds=KNOWN.seconds)


def _calm_name(setting: Setting) -> str:
    return f"calm, {len(setting.nodes)} nodes, known for {setting.before:.0f} s, {setting.seconds:.0f} s"


def _room_claims(name: str, case: Case, setting: Setting, outcome: Outcome, calm: float) -> list[Claim]:
    seconds = setting.seconds
    claims = [
        Claim(
            f"steps{f' in minutes {begin / 60:.0f} to {end / 60:.0f}' if case.spans else ''}: {name}",
            outcome.steps_within(begin, end) / (calm * (end - begin) / seconds), CALM, case.bar,
        )
        for begin, end in case.spans or [(0.0, seconds)]
    ]  # fmt: skip
    if case.most_groups is not None:
        judged = outcome.said["of one key"]
        claims.append(Claim(f"groups of a key: {name}", judged, "one", case.most_groups, at_most=True))
    if case.learned is not None:
        claims.append(Claim(f"learned of the class: {name}", outcome.said["learned"], "all of it", case.learned))
    return claims


def request_claims(quick: bool) -> list[Claim]:
    measured = cost.measured(1000 if quick else 4000)
    print("CPU of the main process, milliseconds a request")
    rows = [(one.kind, one.hostile, one.honest, one.ratio) for one in measured]
    bench.table(["request", "hostile", "honest", "ratio"], rows)
    return [Claim(f"CPU of a request: {one.kind}", one.ratio, "an honest one", 1.0, at_most=True) for one in measured]


def forged_claims(quick: bool) -> list[Claim]:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        measured = process.submit(forged.measured, 8 if quick else 32).result()
    print(f"a prompt of {measured.prompt:.0f} tokens, completions of {measured.completion:.0f} on the average")
    bench.table(["group", "ms of scoring"], [("honest", measured.honest), ("made up", measured.forged)])
    return [Claim("scoring CPU of a made-up group, G = 16", measured.ratio, "an honest one", 0.15, at_most=True)]


def greeting_claims(quick: bool) -> list[Claim]:
    hello, told = greetings.greeted(KEYS), greetings.told(8, 1000)
    print(f"a hello costs {hello.few:.2f} ms of CPU, and {hello.many:.2f} ms after {KEYS:,} keys")
    print(f"a newcomer is told of {told.told} nodes, {told.worked} of the {told.here} that worked\n")
    return [
        Claim(f"milliseconds of CPU of a hello after {KEYS:,} keys", hello.many, "one", HELLO, at_most=True),
        Claim("nodes with work a newcomer is told of", told.worked / min(told.here, told.told / 2), "half, or all", 1),
        Claim("strangers of one subnet a newcomer is told of", told.of_a_subnet, "one", 2, at_most=True),
    ]


def door_claims(quick: bool) -> list[Claim]:
    measured = doors.measured(5.0 if quick else 30.0)
    print(f"{measured.newcomers} newcomers, {measured.requests} honest requests")
    print(f"with {doors.IDLE} idle visitors: {', '.join(f'{what}: {so}' for what, so in measured.served.items())}\n")
    served = sum(measured.served.values()) / len(measured.served)
    return [
        Claim(f"newcomers within {doors.IN_TIME:.0f} s beside silent connections", measured.came, "all", 0.95),
        Claim(f"honest requests answered under {doors.ASKS} tiny asks", measured.answered, "all", 0.99),
        Claim(f"what goes on with {doors.IDLE} idle visitors", served, "all", 1.0),
    ]


def wire_claims(quick: bool) -> list[Claim]:
    if quick:
        return []
    measured = wires.compared(SECONDS)
    print(f"over libp2p and HTTPS, {SECONDS:.0f} s calm, as long with strangers; ms of the main process's CPU a second")
    columns = ["attack", "calm", "steps", "of calm", "CPU, calm", "CPU", "honest requests", "unanswered", "strangers"]
    rows: list[tuple[object, ...]] = [
        (
            *(name, one.calm, one.steps, one.steps / one.calm, one.calm_cpu, one.cpu, int(one.requests)),
            *(int(one.unanswered), ", ".join(f"{key} {value:.3g}" for key, value in one.said.items())),
        )
        for name, one in measured.items()
    ]
    bench.table(columns, rows)
    steps = [
        Claim(f"steps over the wire: {name}", one.steps / one.calm, CALM, one.bar) for name, one in measured.items()
    ]
    asks = [Claim(f"honest requests answered: {name}", one.answered, "all", 0.99) for name, one in measured.items()]
    return steps + asks


def stopped_claims(quick: bool) -> list[Claim]:
    seconds = 12.0 if quick else SECONDS
    results, left = stopped.measured(seconds, quick)
    print(f"half of what was begun, {seconds:.0f} s each; newcomers: one every 3 s")
    _print_stopped(results)
    answered, requests = stopped.node(seconds)
    print(f"a node under idle streams of one private address answered {answered:.3f} of {requests} requests")
    print(f"{left / 1e6:.1f} MB left behind at the coordinator\n")
    claims = [Claim("requests a node answers under idle streams", answered, "all", 0.99)]
    claims.append(Claim("MB left behind a minute later", left / 1e6, "one", stopped.KEPT / 1e6, at_most=True))
    for name, one in results.items():
        claims.append(Claim(f"groups: {name}", one.groups / one.calm, CALM, 0.9))
        claims.append(Claim(f"late: {name}", one.late, "one", 0, at_most=True))
        claims.append(Claim(f"newcomers served: {name}", one.served / max(1, one.came), "all", 0.95))
    return claims


def _print_stopped(results: dict[str, Stopped]) -> None:
    columns = ["attack", "calm groups/s", "groups/s", "of calm", "late", "newcomers", "served", "strangers"]
    rows: list[tuple[object, ...]] = [
        (
            *(name, one.calm, one.groups, one.groups / one.calm, one.late, one.came, one.served),
            ", ".join(f"{key} {value:.3g}" for key, value in one.said.items()),
        )
        for name, one in results.items()
    ]
    bench.table(columns, rows)


def proxied_claims(quick: bool) -> list[Claim]:
    claims = list[Claim]()
    for proxy, behind in proxied.measured(12.0 if quick else SECONDS, quick).items():
        print(f"all through {proxy}; status: {behind.hidden or 'nothing on hidden strangers'}")
        _print_stopped(behind.stopped)
        names_clients = proxied.HEADERS[proxy] > 0
        claims.append(Claim(f"status says why: {proxy}", float(bool(behind.hidden) != names_clients), "it does", 1))
        for name, one in behind.stopped.items():
            claims.append(Claim(f"groups: {proxy}: {name}", one.groups / one.calm, CALM, 0.9))
            claims.append(Claim(f"late: {proxy}: {name}", one.late, "one", 0, at_most=True))
            if names_clients:
                claims.append(Claim(f"newcomers served: {proxy}: {name}", one.served / max(1, one.came), "all", 0.95))
    return claims


def reader_claims(quick: bool) -> list[Claim]:
    measured = readers.measured()
    print(f"{readers.OTHERS} readers beside one address that sends {readers.GREEDY:.0f} requests per second")
    rows: list[tuple[object, ...]] = [
        (kind, one.answered, one.seconds, ", ".join(f"{status}: {count}" for status, count in one.greedy.items()))
        for kind, one in measured.items()
    ]
    bench.table(["reading", "answered", "slowest, s", "the greedy one's answers"], rows)
    return [
        Claim(f"readers answered: {kind}", one.answered / readers.OTHERS, "all", 1) for kind, one in measured.items()
    ]


Part = Callable[[bool], list[Claim]]
ROOM: Final = "room"
TIMED: Final[dict[str, Part]] = {
    "doors": door_claims,
    "wires": wire_claims,
    "stopped": stopped_claims,
    "proxied": proxied_claims,
    "readers": reader_claims,
}
"""Parts measured by the clock: each runs alone."""
COUNTED: Final[dict[str, Part]] = {"requests": request_claims, "forged": forged_claims, "greetings": greeting_claims}
"""Parts measured by CPU time: they run beside `room`."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the main attacks alone, shorter windows: 90 s")
    parser.add_argument("--attacks", type=int, help="the first so many attacks of room alone")
    parser.add_argument("--only", nargs="+", choices=[*TIMED, ROOM, *COUNTED], help="these parts alone")
    options = parser.parse_args(arguments)
    bench.header("flood: attackers without accepted work", ["cryptography"])
    wanted = options.only or [*TIMED, ROOM, *COUNTED]
    began, spent, claims = time.monotonic(), dict[str, float](), list[Claim]()

    def take(name: str, part: Callable[[], list[Claim]]) -> None:
        before = _cpu()
        claims.extend(part())
        spent[name] = _cpu() - before

    for name in (name for name in TIMED if name in wanted):
        take(name, partial(TIMED[name], options.quick))
    before = _cpu()
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1), get_context("spawn")) as pool:
        room = Room(options.quick, options.attacks, pool) if ROOM in wanted else None
        for name in (name for name in COUNTED if name in wanted):
            take(name, partial(COUNTED[name], options.quick))
        claims += [] if room is None else room.claims()
    spent[ROOM] = _cpu() - before - sum(spent.get(name, 0.0) for name in COUNTED)
    print(f"{time.monotonic() - began:.0f} s by the clock; CPU seconds of each part, its processes included")
    bench.table(list(spent), [list(spent.values())])
    return bench.close(claims)


def _cpu() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


if __name__ == "__main__":
    sys.exit(main())
