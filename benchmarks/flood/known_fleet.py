"""Play an hour of a wide fleet of known keys that return nothing: `python -m benchmarks.flood.known_fleet`.

The run is four times slower than those of benchmarks/flood/catalogue.py, and its keys ask when they are told to, at
most `MOST_ASKS` times a minute, so that an hour of the fake clock takes little CPU. Prints JSON: the share of a calm
run's steps (`share`), and what the fleet tells of itself (`said`).
"""

import json
import sys
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

SHORTER: Final = 6
"""How much shorter the calm run is: its speed is constant."""
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


def main() -> int:
    calm = went(replace(SLOW, seconds=SLOW.seconds / SHORTER))
    attacked = went(SLOW, PatientHoarders(40, 40, 20, seconds=16.0))
    print(json.dumps({"share": attacked.steps / (SHORTER * calm.steps), "said": attacked.said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
