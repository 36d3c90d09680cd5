"""Simulate how full a node's rows are where versions come often: `python -m benchmarks.change_by_age [--quick]`.

A node of 48 rows generates groups of 16 rollouts, whose lengths are log-normal with a mean of 2,500 tokens and at most
8,192, at 50 tokens per second and row. A version comes with each step of the learner, S = 4. To change, the node ends
the groups under way and begins none (one copy of the weights), and the change itself takes 5 s. The node asks the
product's own rule (echo2.node.versions.change_time) whenever it could begin a group; beside it stand a change at once
for each version, as it was before, and one for every second version. A group's age is that at which it could be drawn
at the earliest: the steps from its version to that in which it ends, and one more. Claims, by the product's rule:

    rows      with a step of 60 s, the share of rows in use
    drawn     the same for rows whose groups are at most S old, beside a change at once; and beside every second version
    age       with a step of 180 s and more, the mean age, of S
"""

import argparse
import heapq
import math
import random
import statistics
import sys
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from echo2.node.versions.change_time import is_due

GROUP: Final = 16
MEAN, LIMIT, SIGMA = 2_500, 8_192, 0.8
STALENESS: Final = 4
CHANGE_SECONDS: Final = 5.0
NODES: Final = ((48, 50.0), (24, 60.0), (7, 35.0))
"""Rows, and tokens per second and row."""
STEPS: Final = (60.0, 180.0, 600.0)
ROWS, DRAWN, DRAWN_OF_SECOND, AGE = 0.55, 1.1, 1.0, 0.75
"""The bars."""
COLUMNS: Final = ("rows", "age", "old")

Rule = Callable[[int, float, int, float | None], bool]
RULES: Final[dict[str, Rule]] = {
    "at once": lambda lag, since, staleness, steps: True,
    "by age": is_due,
    "every second": lambda lag, since, staleness, steps: lag >= 2,
}


class Result(NamedTuple):
    """`used`: share of rows in use. `age`: mean age. `old`: share of groups that are older than S."""

    used: float
    age: float
    old: float

    @property
    def drawn(self) -> float:
        """The share of rows in use whose groups are at most S old."""
        return self.used * (1 - self.old)


class OpenGroup:
    """A group under way. `left`: rollouts that have not ended."""

    def __init__(self, version: int, began: float) -> None:
        self.version, self.began, self.left = version, began, GROUP


def length(dice: random.Random) -> float:
    """Return the tokens of a rollout."""
    return min(LIMIT, max(16.0, dice.lognormvariate(math.log(MEAN) - SIGMA * SIGMA / 2, SIGMA)))


def simulate(rule: Rule, rows: int, speed: float, step: float, hours: float, seed: int = 0) -> Result:
    """Let a node work for so many hours. `step`: seconds of a step of the learner, each of which makes a version."""
    dice, now, version, busy = random.Random(seed), 0.0, 0, 0.0
    queue: list[tuple[float, OpenGroup]] = []
    running: list[tuple[float, int, OpenGroup]] = []
    ages, took, number = list[int](), deque[float](maxlen=32), 0
    while now < hours * 3600:
        newest = int(now // step)
        takes = statistics.median(took) / step if took else None
        due = newest > version and rule(newest - version, now / step - newest, STALENESS, takes)
        if not running and newest > version:
            now += CHANGE_SECONDS
            version = int(now // step)
            continue
        while len(running) < rows:
            if not queue:
                if due:
                    break
                group = OpenGroup(version, now)
                queue = [(length(dice), group) for _ in range(GROUP)]
            tokens, group = queue.pop()
            number += 1
            heapq.heappush(running, (now + tokens / speed, number, group))
            busy += tokens / speed
        now, _, group = heapq.heappop(running)
        group.left -= 1
        if not group.left:
            took.append(now - group.began)
            ages.append(int(now // step) + 1 - group.version)
    return Result(busy / (rows * now), statistics.mean(ages), sum(age > STALENESS for age in ages) / len(ages))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="10 hours of simulated time in place of 100")
    hours = 10.0 if parser.parse_args().quick else 100.0
    bench.header("change_by_age: rows in use where a node changes its version by age", [])
    results = {
        (name, rows, speed, step): simulate(rule, rows, speed, step, hours)
        for name, rule in RULES.items() for rows, speed in NODES for step in STEPS
    }  # fmt: skip
    bench.table(
        ["rows", "tokens/s", "step, s", *(f"{name}: {what}" for name in RULES for what in COLUMNS)],
        [
            (rows, speed, step, *(value for name in RULES for value in results[name, rows, speed, step]))
            for rows, speed in NODES for step in STEPS
        ],
    )  # fmt: skip
    often = (*NODES[0], STEPS[0])
    by_age, at_once, second = (results[name, *often] for name in ("by age", "at once", "every second"))
    oldest = max(results["by age", *NODES[0], step].age for step in STEPS[1:])
    return bench.close([
        Claim("rows", by_age.used, "all rows", ROWS),
        Claim("drawn", by_age.drawn / at_once.drawn, "a change at once", DRAWN),
        Claim("drawn", by_age.drawn / second.drawn, "every second version", DRAWN_OF_SECOND),
        Claim("age", oldest / STALENESS, "S", AGE, at_most=True),
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
