"""The scorer as a queue: how long a group waits for its verdict, and how many scorers keep up. Pure.

R: rollouts per step. T: seconds per step. c: scorers. s: seconds in which one scorer verifies a group.

Rules
1. The load is the share of their time for which c scorers are at work: R / group x s / (c T). At 1 or more they do not
   keep up: a step then takes R / group x s / c, and the learner is idle for the rest.
2. Groups come at random, and each takes s, so a group waits for Sakasegawa's time of a queue M/D/c (Queueing Systems,
   1977): half of s / c x load ^ (sqrt(2 (c + 1)) - 1) / (1 - load).
3. It waits no longer than a step's groups take: leases are given for about what the next draws need
   (coordinator/leases/lease_window.py), so no more are on their way.
4. A verdict takes the wait and s.
"""

import math

import msgspec


class ScorerTerms(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens_per_second`: that one scorer verifies. `number`: c."""

    tokens_per_second: float
    number: int = 1


class ScorerQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The queue of a run. `step_seconds`: T. `groups`: R / group. `group_seconds`: s."""

    scorer: ScorerTerms
    step_seconds: float
    groups: float
    group_seconds: float

    @property
    def busy_seconds(self) -> float:
        """The seconds in which the scorers verify a step's groups."""
        return self.groups * self.group_seconds / self.scorer.number

    @property
    def load(self) -> float:
        """The load (rule 1)."""
        return self.busy_seconds / self.step_seconds

    @property
    def wait(self) -> float:
        """The wait of a group, seconds (rules 2 and 3)."""
        if self.load >= 1.0:
            return self.busy_seconds
        number = self.scorer.number
        crowding = self.load ** (math.sqrt(2 * (number + 1)) - 1) / (1 - self.load)
        return min(self.busy_seconds, self.group_seconds / number * float(crowding) / 2)

    @property
    def verdict_seconds(self) -> float:
        """The seconds from a group's receipt to its verdict (rule 4)."""
        return self.wait + self.group_seconds

    def enough(self, gamma: float) -> int:
        """Return how many scorers keep up with a reserve of `gamma`."""
        return max(1, math.ceil(gamma * self.groups * self.group_seconds / self.step_seconds))
