"""What can strangers without work do to a run? `python -m benchmarks.flood [--quick] [--only PART ...]`

    room        learner's steps under each attack of benchmarks/flood/catalogue.py against calm, on a fake clock
    requests    CPU of the main process per hostile request against an honest one's
    forged      CPU of the scorer for a made-up group against an honest one's, G = 16
    greetings   CPU of a hello after 100,000 keys, and whom a newcomer is told of
    doors       silent connections, tiny questions and idle visitors, at a coordinator process over libp2p and HTTP
    wires       the main attacks on room again: coordinator, honest nodes and strangers as processes; not with --quick

The churn of 10,000 identities in 24 h of fake time is `python -m benchmarks.flood.churn`.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

from benchmarks import bench

bench.one_thread()

from benchmarks.bench import Claim  # noqa: E402
from benchmarks.flood import cost, doors, forged, greetings, wires, world  # noqa: E402
from benchmarks.flood.catalogue import CASES, Case  # noqa: E402
from benchmarks.flood.world import Outcome  # noqa: E402

HELLO: Final = 2.0
"""Milliseconds."""
KEYS: Final = 100_000
CALM: Final = "calm"
SECONDS: Final = 60.0
"""Of a run over real connections."""


class Room:
    """The runs on a fake clock, in processes of their own beside whatever else is measured by its CPU time."""

    def __init__(self, quick: bool, pool: ProcessPoolExecutor) -> None:
        self._cases = {name: case for name, case in CASES.items() if case.quick or not quick}
        settings = list(dict.fromkeys(case.setting for case in self._cases.values()))
        cases = self._cases.items()
        self._attacked = {name: pool.submit(world.went, case.setting, case.attack) for name, case in cases}
        self._calm = {setting: pool.submit(world.went, setting) for setting in settings}

    def claims(self) -> list[Claim]:
        """Wait for all of them, print what came out, and return what is claimed."""
        calm = {setting: run.result() for setting, run in self._calm.items()}
        rows: list[tuple[object, ...]] = [
            (f"calm, known for {setting.before:.0f} s, {setting.seconds:.0f} s", one.steps, 1.0, one.accepted, "")
            for setting, one in calm.items()
        ]
        claims = list[Claim]()
        for name, case in self._cases.items():
            one, steps = self._attacked[name].result(), calm[case.setting].steps
            said = ", ".join(f"{key} {value:.3g}" for key, value in one.said.items())
            rows.append((name, one.steps, one.steps / steps, one.accepted, said))
            claims += _room_claims(name, case, one, steps)
        print("the learner's steps, accepted groups of honest nodes, and what the strangers did")
        bench.table(["attack", "steps", "of calm", "accepted", "strangers"], rows)
        return claims


def _room_claims(name: str, case: Case, found: Outcome, calm: int) -> list[Claim]:
    claims = [Claim(f"steps: {name}", found.steps / calm, CALM, case.bar)]
    if case.most_groups is not None:
        judged = found.said["of one key"]
        claims.append(Claim(f"groups of a key: {name}", judged, "one", case.most_groups, at_most=True))
    if case.learned is not None:
        claims.append(Claim(f"learned of the class: {name}", found.said["learned"], "all of it", case.learned))
    return claims


def request_claims(quick: bool) -> list[Claim]:
    found = cost.measured(1000 if quick else 4000)
    print("CPU of the main process, milliseconds a request")
    rows = [(one.kind, one.hostile, one.honest, one.ratio) for one in found]
    bench.table(["request", "hostile", "honest", "ratio"], rows)
    return [Claim(f"CPU of a request: {one.kind}", one.ratio, "an honest one", 1.0, at_most=True) for one in found]


def forged_claims(quick: bool) -> list[Claim]:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        found = process.submit(forged.measured, 8 if quick else 32).result()
    print(f"a prompt of {found.prompt:.0f} tokens, completions of {found.completion:.0f} on the average")
    bench.table(["group", "ms of scoring"], [("honest", found.honest), ("made up", found.forged)])
    return [Claim("scoring CPU of a made-up group, G = 16", found.ratio, "an honest one", 0.15, at_most=True)]


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
    found = doors.measured(5.0 if quick else 30.0)
    print(f"{found.newcomers} newcomers, {found.requests} honest requests")
    print(f"with {doors.IDLE} idle visitors: {', '.join(f'{what}: {so}' for what, so in found.served.items())}\n")
    served = sum(found.served.values()) / len(found.served)
    return [
        Claim(f"newcomers within {doors.IN_TIME:.0f} s beside silent connections", found.came, "all", 0.95),
        Claim(f"honest requests answered under {doors.ASKS} tiny asks", found.answered, "all", 0.99),
        Claim(f"what goes on with {doors.IDLE} idle visitors", served, "all", 1.0),
    ]


def wire_claims(quick: bool) -> list[Claim]:
    if quick:
        return []
    found = wires.compared(SECONDS)
    print(f"over libp2p, {SECONDS:.0f} s each; milliseconds of the main process's CPU a second")
    rows = [
        (name, calm.steps, one.steps, one.steps / calm.steps, calm.cpu, one.cpu) for name, (calm, one) in found.items()
    ]
    bench.table(["attack", "steps, calm", "steps", "of calm", "CPU, calm", "CPU"], rows)
    return [
        Claim(f"steps over libp2p: {name}", one.steps / calm.steps, "calm beside it", CASES[name].bar)
        for name, (calm, one) in found.items()
    ]


Part = Callable[[bool], list[Claim]]
ROOM: Final = "room"
TIMED: Final[dict[str, Part]] = {"doors": door_claims, "wires": wire_claims}
"""By the clock: nothing else is measured meanwhile."""
COUNTED: Final[dict[str, Part]] = {"requests": request_claims, "forged": forged_claims, "greetings": greeting_claims}
"""By CPU time."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the main attacks alone, shorter windows: 90 s")
    parser.add_argument("--only", nargs="+", choices=[*TIMED, ROOM, *COUNTED], help="these parts alone")
    options = parser.parse_args(arguments)
    bench.header("flood: what strangers without work can do", ["libp2p", "cryptography"])
    wanted = options.only or [*TIMED, ROOM, *COUNTED]
    claims = [claim for name, part in TIMED.items() if name in wanted for claim in part(options.quick)]
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1), get_context("spawn")) as pool:
        room = Room(options.quick, pool) if ROOM in wanted else None
        claims += [claim for name, part in COUNTED.items() if name in wanted for claim in part(options.quick)]
        claims += [] if room is None else room.claims()
    return bench.close(claims)


if __name__ == "__main__":
    sys.exit(main())
