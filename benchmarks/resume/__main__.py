"""A learner that is killed goes on bit for bit, and its journal is cheap: `python -m benchmarks.resume [--quick]`.

batch, bits, durable   a coordinator with its learner process, killed with SIGKILL at 20 moments, against the same
                       run that was never killed (benchmarks/resume/kills.py)
answer                 time from the end of a step to the durable answer with a journal entry, against a full
                       checkpoint each time, on a model of SmolLM2-135M's shape (benchmarks/resume/timing.py)
"""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim

SEED = 7


def kill_claims(folder: Path, count: int) -> list[Claim]:
    """Kill a run `count` times; print each, and return the claims."""
    from benchmarks.resume.kills import MOST_STEPS, Killer, make_run, reference

    template = folder / "template"
    make_run(template, count * (MOST_STEPS + 2) + MOST_STEPS)
    steps = reference(Path(shutil.copytree(template, folder / "whole")), folder / "whole.json")
    killer = Killer(
        Path(shutil.copytree(template, folder / "killed")), folder / "killed.json", steps, random.Random(SEED)
    )
    try:
        kills = list(killer.kills(count))
    finally:
        killer.life.kill()
    print(f"{len(steps)} steps without a kill\n")
    columns = (
        "killed",
        "moment",
        "and in the replay",
        "steps in the journal",
        "next step",
        "same batch",
        "bit-equal",
        "durable",
    )
    bench.table(columns, kills)
    return [
        Claim(name, sum(getattr(kill, name) for kill in kills) / count, f"{count} kills", 1.0)
        for name in ("batch", "bits", "durable")
    ]


def answer_claim(folder: Path, layers: int, steps: int) -> Claim:
    """Time the answers of `steps` steps; print them, and return the claim."""
    from benchmarks.resume.timing import answers

    by_way, parameters = answers(folder, layers, steps)
    print(f"{parameters / 1e6:.0f} M parameters; {steps} steps each, seconds from the end of a step")
    totals = {name: sum(answer.seconds for answer in found) for name, found in by_way.items()}
    rows: list[list[object]] = [
        [
            name,
            totals[name] / steps,
            min(answer.seconds for answer in found),
            max(answer.seconds for answer in found),
            sum(answer.nbytes for answer in found) / steps / 2**20,
        ]
        for name, found in by_way.items()
    ]
    bench.table(("durable by", "mean", "least", "most", "MiB of diffs"), rows)
    return Claim("answer", totals["journal"] / totals["checkpoint"], "a checkpoint each time", 0.2, at_most=True)


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resume", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="4 kills; 4 layers of 30 and 4 steps of 16")
    parser.add_argument("--only", choices=("kills", "answer"))
    order = parser.parse_args()
    bench.header("a learner that is killed, and its journal", ["torch", "transformers"])
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory(prefix="echo2-resume-") as folder:
        if order.only != "answer":
            claims += kill_claims(Path(folder), 4 if order.quick else 20)
        if order.only != "kills":
            claims.append(answer_claim(Path(folder), *((4, 4) if order.quick else (30, 16))))
    return bench.close(claims)


if __name__ == "__main__":
    bench.one_thread()
    sys.exit(main())
