"""A stand-in for a node: `node_stand_in.py HOME STORY`. It creates HOME, then ends on SIGINT like a drained node."""

import signal
import subprocess
import sys
import time
from pathlib import Path


def node(home: str, story: str) -> None:
    """Run a node whose child leads a session of its own, as an engine does, and outlives its parent, unless that ends
    with the run."""
    if story == "crash" and home.endswith("lucky-newt"):
        sys.exit("echo2-node: the device caught fire")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", home], start_new_session=True)

    def drain(*_: object) -> None:
        if story != "deaf":
            sys.exit(130)

    signal.signal(signal.SIGINT, drain)
    Path(home).mkdir()
    while story != "leaving" or not (Path(home).parent / "finished").exists():
        time.sleep(0.02)  # a signal that comes as a sleep begins is seen when it ends
    child.kill()
    child.wait()


if __name__ == "__main__":
    node(sys.argv[1], sys.argv[2])
