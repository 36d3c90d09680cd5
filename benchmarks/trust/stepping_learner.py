"""The learner of a run in simulated time, beside a real coordinator's tables."""

import random
from collections.abc import Callable

from benchmarks.plays.simulated_clock import SimulatedClock
from tests.support.group_world import T0, World


class SteppingLearner:
    """It draws a batch as soon as there is one, and has a new version a step later. `step`: its steps so far."""

    def __init__(
        self,
        world: World,
        clock: SimulatedClock,
        chance: random.Random,
        seconds: float,
        published: Callable[[int], None],
    ) -> None:
        """`seconds`: of a step, in the mean. `published`: called with the number of each new version."""
        self._world, self._clock, self._chance = world, clock, chance
        self._seconds, self._published = seconds, published
        self._trains = False
        self.step = 0

    def tell(self) -> None:
        """Set the time of the coordinator to that of the simulation."""
        self._world.now = T0 + int(1000 * self._clock.now)

    def draw(self) -> None:
        """Begin a step, unless one is under way or there are too few groups."""
        if self._trains or self._world.group_service.draw(self._world.now) is None:
            return
        self._trains = True
        self._clock.after(self._seconds * self._chance.uniform(0.95, 1.05), self._stepped)

    def _stepped(self) -> None:
        self.tell()
        self._trains, self.step = False, self.step + 1
        self._world.group_service.leases.end_step(self._world.now)
        self._world.learner_at(self.step)
        self._published(self.step)
        self.draw()
