"""Run every fuzzer of tests/, each in a process of its own: `python -m tests.fuzz [--runs 10000000 | --seconds 60]`.

A fuzzer is a script `fuzz_*.py` that takes libFuzzer's options. Each gets its share of the executions, or of the time,
and the executions that it made are printed. The exit status is 1 if one of them found an input that crashes, and the
input lies in the folder that is named. Without atheris, which has wheels for Linux on x86_64 alone, nothing runs and
the command says so.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT

SHARES: Final = {
    "tests/p2p/fuzz_messages.py": (0.60, 0.25),
    "tests/weights/fuzz_files.py": (0.30, 0.25),
    "tests/weights/fuzz_decode.py": (0.08, 0.25),
    "tests/p2p/fuzz_mux.py": (0.02, 0.25),
}
"""Script -> its share of the executions, and of the time. The last ones check far more per execution."""


def fuzz(script: str, bound: str, folder: Path) -> tuple[int, int]:
    """Run one fuzzer up to `bound`; return its executions and its exit status. `folder`: for inputs that fail."""
    command = [sys.executable, script, bound, f"-artifact_prefix={folder}/", "-verbosity=1", "-print_final_stats=1"]
    # libFuzzer ends the process at once: what a fuzzer has made it cannot remove.
    with tempfile.TemporaryDirectory(prefix="echo2-fuzz-") as scratch:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            env={**os.environ, "TMPDIR": scratch},
        )  # fmt: skip
    output = done.stdout.decode(errors="replace")
    counted = re.findall(r"number_of_executed_units: (\d+)|^Done (\d+) runs", output, re.MULTILINE)
    if done.returncode:
        print(output[-4000:])
    return max((int(one or other) for one, other in counted), default=0), done.returncode


def main() -> int:
    """Run all of them one after the other; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, help="executions in all")
    parser.add_argument("--seconds", type=float, default=60.0, help="time in all, without --runs")
    order = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("not fuzzed: atheris is not installed (make fuzz installs it where it has a wheel)")
        return 0
    folder, total, failed = Path(tempfile.mkdtemp(prefix="echo2-fuzz-")), 0, False
    for script, (executions, seconds) in SHARES.items():
        bound = (
            f"-runs={round(order.runs * executions)}"
            if order.runs
            else f"-max_total_time={order.seconds * seconds:.0f}"
        )
        began = time.monotonic()
        count, status = fuzz(script, bound, folder)
        total, failed = total + count, failed or status != 0
        print(f"{script}: {count:,} executions in {time.monotonic() - began:.0f} s, exit status {status}", flush=True)
    if not any(folder.iterdir()):
        folder.rmdir()
    print(f"{total:,} executions" + (f"; an input that fails is in {folder}" if failed else ", none failed"))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
