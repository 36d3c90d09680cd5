"""Play a wide fleet of known keys that return nothing: `python -m benchmarks.flood.known_fleet [--quick] [--wide]`.

It lasts an hour of the fake clock, `QUICK_SECONDS` with `--quick`: later the fleet gets next to nothing. The run is
four times slower than those of benchmarks/flood/catalogue.py, and its keys ask when they are told to, at most
`MOST_ASKS` times a minute, so that it takes little CPU. Prints JSON: the share of a calm run's steps (`share`), and
what the fleet tells of itself (`said`).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import anyio

from benchmarks.harness import bench

bench.one_thread()

from benchmarks.attacks.flood_keys import Key  # noqa: E402
from benchmarks.attacks.floods import FormerWorkers  # noqa: E402
from benchmarks.attacks.place import AttackPlace  # noqa: E402
from benchmarks.flood.world import Setting, went  # noqa: E402
from echo2.protocol.requests import Refusal  # noqa: E402

SLOW: Final = Setting(
    nodes=(16.0, 24.0, 32.0), step=8.0, scoring=0.8, before=240.0, seconds=3600.0, batch_groups=2, tick=5.0, look=2.0
)

QUICK_SECONDS: Final = 1200.0
CALM_SECONDS: Final = 600.0
"""Length of the calm run: its speed is constant."""
MOST_ASKS: Final = 3


@dataclass
class PatientHoarders(FormerWorkers):
    """Attackers that ask for a lease when they are told to, and return nothing."""

    async def run(self, world: AttackPlace) -> None:
        """Take leases until cancelled."""
        for key in await self._keys_once(world):
            world.tasks.start_soon(self._hoard, world, key)

    async def _hoard(self, world: AttackPlace, key: Key) -> None:
        while True:
            answer = await key.lease(world.terms())
            if isinstance(answer, Refusal):
                await anyio.sleep(max(60 / MOST_ASKS, (answer.retry_after or 60_000) / 1000))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the first twenty minutes alone")
    parser.add_argument("--wide", action="store_true", help="120 keys of 30 subnets, instead of 40 of 20")
    options = parser.parse_args(arguments)
    seconds = QUICK_SECONDS if options.quick else SLOW.seconds
    keys, subnets = (120, 30) if options.wide else (40, 20)
    calm = went(replace(SLOW, seconds=CALM_SECONDS))
    attacked = went(replace(SLOW, seconds=seconds), PatientHoarders(keys, keys, subnets, seconds=16.0))
    share = attacked.steps * CALM_SECONDS / (calm.steps * seconds)
    print(json.dumps({"share": share, "minutes": seconds / 60, "said": attacked.said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
