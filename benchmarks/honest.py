"""Count the refusals of honest nodes: `python -m benchmarks.honest [--dtype float16] [--model smollm2] [--quick]`.

A whole run as real processes over libp2p on the loopback: coordinator, learner, scorer, and nodes of each `--engine` in
each `--dtype`, as in `--engine transformers,llamacpp,vllm --dtype bfloat16,float16`. Inexact formats are calibrated
first, by the operator's command: a number format by the scorer's own engine, llama.cpp in one by llama.cpp's library,
no node's device in any. With `--dtype blocks` the run trains an adapter over a frozen base in blocks, with which the
nodes compute as they are. The learner takes its steps meanwhile, so that versions change under the nodes. The run ends
once so many rollouts are judged, and `LEAST_GROUPS` groups of each node under `LEAST_VERSIONS` versions or more, or
after so many minutes; then each group on its way gets its verdict.

Groups are counted by their final entry in run.sqlite. A group that came too late was not looked at, and does not count.
0 refused of n bounds the rate of honest rollouts that are refused by 3/n, at 95 %. A group is in doubt where it was
accepted in quarantine.
"""

import argparse
import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.harness import bench
from benchmarks.harness.crew import Crew
from benchmarks.paced.paced_run import TIMED
from echo2.coordinator.command_line.replay_report import classes_of
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.demo import engine_nodes
from echo2.coordinator.demo.demo import Programs, environment, real_programs
from echo2.coordinator.demo.demo_settings import SMOLLM2, TINY_DEMO, WIDE_HEADS, DemoSettings
from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import RunState
from echo2.coordinator.verification.calibration import Calibration
from echo2.engines.registry import is_exact, rounding_of
from echo2.p2p.errors import Unreachable
from echo2.protocol.engine_classes import parts
from echo2.runtime.errors import LocalFault
from echo2.weights.lora.adapter_folder import AdapterOrder
from echo2.weights.lora.frozen_base import BaseFormat

ROLLOUTS: Final = {"tiny": 30_000, "smollm2": 2_000}
QUICK: Final = 480
RANK: Final = 16
"""Of the adapter over a base in blocks."""
NEVER: Final = 1_000_000
"""Steps that no such run reaches."""
LAST_VERDICTS: Final = 300.0
"""Seconds for the nodes to end, and as many for the last verdicts."""
NOT_JUDGED: Final = ("expired", "late")
"""Codes of leases that came back too late, or never."""
LEAST_GROUPS: Final = 12
LEAST_VERSIONS: Final = 2
"""Judged groups of each node, and versions that they are of, before the run ends."""


class Ended(NamedTuple):
    """Groups of one kind of end. `verdict`, `code`: as in the ledger's entries."""

    verdict: str
    code: str
    groups: int
    rollouts: int
    tokens: int


class NodeEnds(NamedTuple):
    """Judged groups of a node. `versions`: number of versions that they are of. `first`: end of the first one; empty:
    there is none."""

    name: str
    engine_class: str
    accepted: int
    doubted: int
    refused: int
    versions: int
    first: str

    @property
    def suffices(self) -> bool:
        """Whether the run may end, as far as this node goes."""
        return self.accepted + self.refused >= LEAST_GROUPS and self.versions >= LEAST_VERSIONS


class Played(NamedTuple):
    """The end of a run. `calibrations`: those in force. `seconds`: since the nodes joined."""

    ended: list[Ended]
    nodes: list[NodeEnds]
    calibrations: list[Calibration]
    seconds: float


class Options(NamedTuple):
    """`classes`: engine classes, of `nodes` nodes each. `tokens`: per machine, for the calibration. `seconds`: after
    which the run ends. `base`: format of the frozen base where a class computes in blocks. `quick`: a short warm-up of
    the model."""

    model: str
    classes: tuple[str, ...]
    rollouts: int
    nodes: int
    tokens: int
    seconds: float
    base: BaseFormat = "q8_0"
    quick: bool = False

    @property
    def names(self) -> dict[str, str]:
        """Return the class of each node, by its name."""
        numbered = range(1, self.nodes + 1)
        return {f"{engine_nodes.node_name(one)}-{number}": one for one in self.classes for number in numbered}


def settings_of(options: Options) -> DemoSettings:
    """Return the demo's settings for the model, in a run without end, of the nodes' classes. The learning rate is low,
    so that the policy goes on to choose among several tokens."""
    preset = {"tiny": TIMED if options.quick else TINY_DEMO, "smollm2": SMOLLM2}[options.model]
    engines, dtypes, _ = zip(*map(parts, options.classes), strict=True)
    run = {"heldout": 1, "evaluate_every": NEVER, "compute_dtype": dtypes[0], "engines": list(options.classes)}
    wide = {"shape": dict(WIDE_HEADS)} if options.model == "tiny" and "vllm" in engines else {}
    learner: dict[str, Any] = {"learning_rate": 1e-5}
    if options.model == "smollm2":
        run |= {"limit": 32}
        learner = {"learning_rate": 1e-6, "compute_dtype": "bfloat16"}  # so that generating is most of the work
    return dataclasses.replace(
        preset, nodes=options.nodes, seconds=options.seconds, steps=NEVER, calibrate=False,
        run={**preset.run, **run}, learner={**preset.learner, **learner},
        adapter=AdapterOrder(RANK, 2.0 * RANK, base=options.base) if "blocks" in dtypes else None,
        warm_up={**preset.warm_up, **wide},
    )  # fmt: skip


def ends(database: Path) -> list[Ended]:
    """Return how the groups of a run ended."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        rows = connection.execute(
            "SELECT verdict, code, sum(groups), sum(rollouts), sum(tokens) FROM sums WHERE node = x'' "
            "GROUP BY verdict, code ORDER BY verdict, code"
        )
        return [Ended(*row) for row in rows]


def nodes_of(database: Path) -> list[NodeEnds]:
    """Return the judged groups of each node of a run."""
    codes = ", ".join(f"'{code}'" for code in NOT_JUDGED)
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        rows = connection.execute(
            "WITH judged AS ("
            " SELECT v.node, v.verdict, v.code, l.version,"
            " row_number() OVER (PARTITION BY v.node ORDER BY v.rowid) AS place"
            " FROM verdicts v JOIN leases l ON l.id = v.lease"
            f" WHERE v.verdict IN ('accepted', 'refused') AND v.code NOT IN ({codes}))"
            " SELECT n.name, n.engine, total(j.verdict = 'accepted'), total(j.code = 'quarantine'),"
            " total(j.verdict = 'refused'), count(DISTINCT j.version),"
            " coalesce(max(CASE WHEN j.place = 1 THEN j.verdict || ', ' || j.code END), '')"
            " FROM nodes n LEFT JOIN judged j ON j.node = n.key GROUP BY n.key ORDER BY n.name"
        )
        return [
            NodeEnds(name, engine, int(accepted), int(doubted), int(refused), versions, first)
            for name, engine, accepted, doubted, refused, versions, first in rows
        ]


def report(options: Options, played: Played, group_size: int) -> int:
    """Print the tables and the closing lines; return the exit status."""
    ended, seconds = played.ended, played.seconds
    bench.table(("verdict", "code", "groups", "rollouts", "tokens"), ended)
    bench.table(("node", "class", "accepted", "in doubt", "refused", "versions", "first group"), played.nodes)
    for one in played.calibrations:
        devices = f", widened by {'; '.join(one.devices)}" if one.devices else ""
        print(f"Calibration of {one.rounding}: measured {', '.join(one.classes)}{devices}")
    judged = [one for one in ended if one.verdict in ("accepted", "refused") and one.code not in NOT_JUDGED]
    rollouts = group_size * sum(one.groups for one in judged)
    refused = group_size * sum(one.groups for one in judged if one.verdict == "refused")
    if not rollouts:
        print("honest: no group was judged: nothing to report")
        return 1
    bound = f"the rate is below {3 / rollouts:.2g} at 95 %" if not refused else "see the codes"
    print(f"{refused} of {rollouts:,} rollouts refused in {seconds:.0f} s: {bound}")
    if rollouts < options.rollouts:
        print(f"ended by the clock, {options.rollouts:,} rollouts were asked for")
    doubted = group_size * sum(one.groups for one in judged if one.code == "quarantine")
    late = set(options.names) - {one.name for one in played.nodes if one.first.startswith("accepted")}
    classes, of_all, nodes = ", ".join(options.classes), f"{rollouts:,} rollouts", f"{len(options.names)} nodes"
    return bench.close([
        bench.Claim(f"honest rollouts refused, {classes}", refused / rollouts, of_all, 0.0, at_most=True),
        bench.Claim("honest rollouts in doubt", doubted / rollouts, of_all, 0.0, at_most=True),
        bench.Claim("nodes whose first group was not accepted", float(len(late)), nodes, 0.0, at_most=True),
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=sorted(ROLLOUTS), default="tiny")
    parser.add_argument("--engine", default="transformers", help="names of echo2.engines.registry, with commas")
    parser.add_argument("--dtype", default="float32", help="their number formats, with commas")
    parser.add_argument("--base", choices=("q8_0", "q4_0"), default="q8_0", help="the frozen base, with --dtype blocks")
    parser.add_argument("--rollouts", type=int, help="30,000 for tiny, 2,000 for smollm2")
    parser.add_argument("--nodes", type=int, default=1, help="of each engine and format")
    parser.add_argument("--tokens", type=int, default=8_000, help="per machine of the calibration")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which the run ends with what it has")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} rollouts, 2,000 tokens per machine")
    given = parser.parse_args(arguments)
    rollouts = QUICK if given.quick else given.rollouts or ROLLOUTS[given.model]
    pairs = [f"{engine}/{dtype}/cpu" for engine in given.engine.split(",") for dtype in given.dtype.split(",")]
    try:
        classes = engine_nodes.classes_of(",".join(pairs))
    except LocalFault as error:
        parser.error(str(error))
    tokens = 2_000 if given.quick else given.tokens
    options = Options(given.model, classes, rollouts, given.nodes, tokens, 60 * given.minutes, given.base, given.quick)
    bench.header(f"honest: refusals of {', '.join(classes)}, model {given.model}", ["torch", "transformers"])
    settings = settings_of(options)
    with tempfile.TemporaryDirectory(prefix="echo2-honest-") as folder:
        played = play(options, settings, real_programs(), Path(folder))
    print(f"load at the end {os.getloadavg()[0]:.1f}\n")
    return report(options, played, settings.run["group_size"])


def play(options: Options, settings: DemoSettings, programs: Programs, folder: Path) -> Played:
    """Run the processes. Raises `ProcessFault`."""
    logs, home = folder / "logs", folder / "run"
    logs.mkdir()
    (folder / "tmp").mkdir()
    programs.make(home, settings, 0)
    env = environment(os.environ, folder)
    crew, names = Crew(logs, env), list(options.names)
    database = RunFolder(home).database
    try:
        crew.start("coordinator", programs.coordinator(home))
        state = _until(crew, home, lambda state: bool(state.invite and state.versions), 600.0)
        calibrate(options, home, env)
        began = time.monotonic()
        for name, one in options.names.items():
            engine, dtype, _ = parts(one)
            own = ("--engine", engine, "--dtype", dtype)
            crew.start(name, [*programs.node(state.invite, folder / name, name, "direct"), *own])
        with suppress(TimeoutError):
            _until(crew, home, lambda state: _may_end(options, state, database), options.seconds)
        seconds = time.monotonic() - began
        for name in names:
            crew.tell(name, signal.SIGINT)
        if left := crew.wait(names, LAST_VERDICTS):
            print(f"{', '.join(left)} did not end within {LAST_VERDICTS:.0f} s: the verdicts so far count")
        _until(crew, home, lambda state: state.undecided == 0, LAST_VERDICTS, may_end=names)
        crew.end("coordinator", signal.SIGTERM, LAST_VERDICTS)
    finally:
        crew.stop()
    return Played(ends(database), nodes_of(database), classes_of(RunFolder(home)).newest(), seconds)


def calibrate(options: Options, home: Path, env: Any) -> None:
    """Calibrate what the nodes round in by the operator's command, and print its answers."""
    began, roundings = time.monotonic(), {rounding_of(one): one for one in options.classes if not is_exact(one)}
    for rounding, one in roundings.items():
        named = one if "/" in rounding else rounding
        words = ["calibrate", named, "--home", str(home), "--tokens", str(options.tokens)]
        subprocess.run([sys.executable, "-m", "echo2.coordinator.cli", *words], env=dict(env), check=True)
    if roundings:
        print(f"calibrated in {time.monotonic() - began:.0f} s", flush=True)


def _may_end(options: Options, state: RunState, database: Path) -> bool:
    if _judged(state) < options.rollouts:
        return False
    return {one.name for one in nodes_of(database) if one.suffices} == set(options.names)


def _judged(state: RunState) -> int:
    return state.group_size * (state.accepted + sum(state.refused.values()))


def _until(
    crew: Crew,
    home: Path,
    good: Callable[[RunState], bool],
    seconds: float,
    may_end: Sequence[str] = (),
) -> RunState:
    """Return the first state for which `good` is true. Raises `TimeoutError`, `ProcessFault`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.5)
        crew.check(may_end=may_end)
        with suppress(Unreachable, FileNotFoundError):
            state = status.decode(status.fetch(RunFolder(home).page.read_text().strip()))
            if good(state):
                return state
    raise TimeoutError(f"the run did not come so far within {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
