"""The coordinator under test: `python -m benchmarks.attacks.target_host FOLDER`.

It is what `echo2-coord run` starts, except that it treats loopback addresses as public ones.
"""

import sys
from pathlib import Path

from benchmarks.attacks.foreign_loopback import with_foreign_loopback
from echo2.coordinator.main import serve_until_stopped
from echo2.coordinator.run.setup import load_run
from echo2.runtime.units import unix_milliseconds


def main() -> None:
    with_foreign_loopback()
    serve_until_stopped(load_run(Path(sys.argv[1]), now=unix_milliseconds()))


if __name__ == "__main__":
    main()
