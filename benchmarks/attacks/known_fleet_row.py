"""A wide fleet of known keys that return nothing: a row that is computed on a fake clock, in a process of
its own (benchmarks/flood/known_fleet.py)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.attacks.attack import AttackFinding
from echo2.runtime.errors import LocalFault

KNOWN_FLEET: Final = "40 keys of 20 subnets with three paid groups each return nothing, on a fake clock"
LEAST_SHARE: Final = 0.85
"""Of a calm run's steps."""
_CHECKOUT: Final = Path(__file__).absolute().parents[2]
_MODULE: Final = "benchmarks.flood.known_fleet"


def known_fleet(quick: bool) -> AttackFinding:
    """Play the fleet's hour, or with `quick` the first part of it alone. Raises `LocalFault`."""
    command = [sys.executable, "-m", _MODULE, *["--quick"] * quick]
    played = subprocess.run(command, cwd=_CHECKOUT, capture_output=True, text=True)
    if played.returncode:
        raise LocalFault(f"{_MODULE} ended: {played.stderr.strip().rpartition(chr(10))[2]}")
    told = json.loads(played.stdout.splitlines()[-1])
    share, leases = told["share"], int(told["said"]["leases"])
    return AttackFinding(
        tried=leases, prevented=share >= LEAST_SHARE,
        note=f"{share:.2f} of calm in {told['minutes']:.0f} minutes, bound {LEAST_SHARE}; {leases} leases got",
    )  # fmt: skip
