"""Count the refusals of honest nodes: `python -m benchmarks.honest [--dtype float16] [--model smollm2] [--quick]`.

A whole run as real processes over libp2p on the loopback: coordinator, learner, scorer, and nodes that compute in the
run's number format. A class that is not exact is calibrated first, by the operator's command. With `--dtype blocks` the
run trains an adapter over a frozen base in blocks, with which the nodes compute as they are. The learner takes its
steps meanwhile, so that versions change under the nodes. The run ends once so many rollouts are judged, or after so
many minutes; then each group on its way gets its verdict.

Groups are counted by their final entry in run.sqlite. A group that came too late was not looked at, and does not count.
0 refused of n bounds the rate of honest rollouts that are refused by 3/n, at 95 %.
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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.harness import bench
from benchmarks.harness.crew import Crew
from benchmarks.paced.paced_run import TIMED
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.demo.demo import Programs, environment, real_programs
from echo2.coordinator.demo.demo_settings import SMOLLM2, TINY_DEMO, DemoSettings
from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import RunState
from echo2.engines.engine import DTYPES
from echo2.engines.registry import is_exact
from echo2.p2p.errors import Unreachable
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


class Ended(NamedTuple):
    """Groups of one kind of end. `verdict`, `code`: as in the ledger's entries."""

    verdict: str
    code: str
    groups: int
    rollouts: int
    tokens: int


class Options(NamedTuple):
    """`engine_class`: of the nodes. `tokens`: per machine, for the calibration. `seconds`: after which the run ends.
    `base`: format of the frozen base where the class computes in blocks. `quick`: a short warm-up of the model."""

    model: str
    engine_class: str
    rollouts: int
    nodes: int
    tokens: int
    seconds: float
    base: BaseFormat = "q8_0"
    quick: bool = False

    @property
    def dtype(self) -> str:
        return self.engine_class.split("/")[1]


def settings_of(options: Options) -> DemoSettings:
    """Return the demo's settings for the model, in a run without end, of the nodes' number format. The learning rate is
    low, so that the policy goes on to choose among several tokens."""
    preset = {"tiny": TIMED if options.quick else TINY_DEMO, "smollm2": SMOLLM2}[options.model]
    run = {"heldout": 1, "evaluate_every": NEVER, "compute_dtype": options.dtype, "engines": [options.engine_class]}
    learner: dict[str, Any] = {"learning_rate": 1e-5}
    if options.model == "smollm2":
        run |= {"limit": 32}
        learner = {"learning_rate": 1e-6, "compute_dtype": "bfloat16"}  # so that generating is most of the work
    return dataclasses.replace(
        preset, nodes=options.nodes, seconds=options.seconds, steps=NEVER, calibrate=False,
        run={**preset.run, **run}, learner={**preset.learner, **learner},
        adapter=AdapterOrder(RANK, 2.0 * RANK, base=options.base) if options.dtype == "blocks" else None,
    )  # fmt: skip


def ends(database: Path) -> list[Ended]:
    """Return how the groups of a run ended."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        rows = connection.execute(
            "SELECT verdict, code, sum(groups), sum(rollouts), sum(tokens) FROM sums WHERE node = x'' "
            "GROUP BY verdict, code ORDER BY verdict, code"
        )
        return [Ended(*row) for row in rows]


def report(options: Options, ended: Sequence[Ended], group_size: int, seconds: float) -> int:
    """Print the table and the closing line; return the exit status."""
    bench.table(("verdict", "code", "groups", "rollouts", "tokens"), ended)
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
    claim = bench.Claim(
        f"honest rollouts refused, {options.engine_class}", refused / rollouts, f"{rollouts:,} rollouts", 0.0,
        at_most=True,
    )  # fmt: skip
    print(claim.closing_line())
    return 0 if claim.ok else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=sorted(ROLLOUTS), default="tiny")
    parser.add_argument("--engine", default="transformers", help="a name of echo2.engines.registry")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--base", choices=("q8_0", "q4_0"), default="q8_0", help="the frozen base, with --dtype blocks")
    parser.add_argument("--rollouts", type=int, help="30,000 for tiny, 2,000 for smollm2")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=8_000, help="per machine of the calibration")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which the run ends with what it has")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} rollouts, 2,000 tokens per machine")
    given = parser.parse_args(arguments)
    rollouts = QUICK if given.quick else given.rollouts or ROLLOUTS[given.model]
    engine_class = f"{given.engine}/{given.dtype}/cpu"
    tokens = 2_000 if given.quick else given.tokens
    options = Options(
        given.model, engine_class, rollouts, given.nodes, tokens, 60 * given.minutes, given.base, given.quick
    )
    bench.header(f"honest: refusals of {engine_class}, model {given.model}", ["torch", "transformers"])
    settings = settings_of(options)
    with tempfile.TemporaryDirectory(prefix="echo2-honest-") as folder:
        ended, seconds = play(options, settings, real_programs(), Path(folder))
    print(f"load at the end {os.getloadavg()[0]:.1f}\n")
    return report(options, ended, settings.run["group_size"], seconds)


def play(options: Options, settings: DemoSettings, programs: Programs, folder: Path) -> tuple[list[Ended], float]:
    """Run the processes; return how the groups ended, and the seconds since the nodes joined. Raises `ProcessFault`."""
    logs, home = folder / "logs", folder / "run"
    logs.mkdir()
    (folder / "tmp").mkdir()
    programs.make(home, settings, 0)
    env = environment(os.environ, folder)
    crew = Crew(logs, env)
    names = [f"node-{number}" for number in range(1, options.nodes + 1)]
    try:
        crew.start("coordinator", programs.coordinator(home))
        state = _until(crew, home, lambda state: bool(state.invite and state.versions), 600.0)
        if not is_exact(options.engine_class):
            calibrate(options, home, env)
        began = time.monotonic()
        for name in names:
            crew.start(name, [*programs.node(state.invite, folder / name, name, "direct"), *_engine(options)])
        with suppress(TimeoutError):
            _until(crew, home, lambda state: _judged(state) >= options.rollouts, options.seconds)
        seconds = time.monotonic() - began
        for name in names:
            crew.tell(name, signal.SIGINT)
        if left := crew.wait(names, LAST_VERDICTS):
            print(f"{', '.join(left)} did not end within {LAST_VERDICTS:.0f} s: the verdicts so far count")
        _until(crew, home, lambda state: state.undecided == 0, LAST_VERDICTS, may_end=names)
        crew.end("coordinator", signal.SIGTERM, LAST_VERDICTS)
    finally:
        crew.stop()
    return ends(RunFolder(home).database), seconds


def calibrate(options: Options, home: Path, env: Any) -> None:
    """Calibrate the nodes' class by the operator's command, and print its answer."""
    words = ["calibrate", options.engine_class, "--home", str(home), "--tokens", str(options.tokens)]
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "echo2.coordinator.cli", *words], env=dict(env), check=True)
    print(f"calibrated in {time.monotonic() - began:.0f} s", flush=True)


def _engine(options: Options) -> Iterable[str]:
    return ("--engine", options.engine_class.split("/")[0])


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
