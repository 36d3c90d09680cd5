"""The replayer of tests/replayer, which shares no code with the product, on an export."""

import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT


def replayed_apart(export: Path) -> bytes:
    """Return the state that it finds. Raises `CalledProcessError` where it refuses the export."""
    replayer = ROOT / "tests" / "replayer" / "replay.py"
    return subprocess.run([sys.executable, replayer, export], capture_output=True, check=True).stdout
