"""Play an hour of a wide fleet of known keys that return nothing: `python -m benchmarks.flood.known_fleet`.

The run is ten times slower than those of benchmarks/flood/catalogue.py, so that an hour of the fake clock takes
seconds. Prints JSON: into how many spans the hour is divided (`spans`), the least share of a calm run's steps in one of
them (`share`), and what the fleet tells of itself (`said`).
"""

import itertools
import json
import sys
from typing import Final

from benchmarks.harness import bench

bench.one_thread()

from benchmarks.attacks.floods import FormerWorkers  # noqa: E402
from benchmarks.flood.world import Setting, went  # noqa: E402

SLOW: Final = Setting(nodes=(40.0, 60.0, 80.0), step=20.0, scoring=1.0, before=1200.0, seconds=3600.0, batch_groups=2)
FLEET: Final = FormerWorkers(40, 40, 20, rate=0.8, seconds=40.0)
SPANS: Final = 2


def main() -> int:
    calm, attacked = went(SLOW), went(SLOW, FLEET)
    spans = itertools.pairwise(SLOW.seconds * number / SPANS for number in range(SPANS + 1))
    share = min(attacked.steps_within(*span) / calm.steps_within(*span) for span in spans)
    print(json.dumps({"spans": SPANS, "share": share, "said": attacked.said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
