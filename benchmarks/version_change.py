"""Compute the cost of a change of version, with one copy of the weights and with two:
`python -m benchmarks.version_change [--quick]`.

With one copy the rows that run are finished first, in ever smaller steps, and none begins. With two copies rows of the
new version take the places that become free; each step then passes through both copies. Both lose time against steps
in which all rows are of one version (`change_cost`, from an engine's rates):

    one copy      seconds(n) - n / rows * seconds(rows)               in a step that n old rows are left in
    two copies    seconds(n) + seconds(rows - n) - seconds(rows)      for the same step

The second exceeds the first wherever a row costs more among fewer rows: seconds(m) / m >= seconds(rows) / rows. That is
why groups are generated together at all, on any device.

That is the cost of one change. Where a version comes before the groups under the last one have ended, one copy also
changes more often than two do. So the command simulates a node: groups of 16 rollouts, of log-normal lengths with a
mean of 2,500 tokens and at most 8,192, without their prompts; 48 rows that make 50 tokens per second each when all are
in use; S = 4, and a version with each step of the learner. A device is bound by its memory: the next token of every row
takes

    seconds = versions in use x weights + tokens of context x keys and values of one token

The part of the weights follows from the bytes of a model; "fixed rate" has no other part, so a row makes 50 tokens per
second whatever runs beside it. A group's age is that at which it can be drawn at the earliest: the steps from its
version to that in which it ends, and one more. *Drawn* are tokens of groups that are at most S old. With one copy a
change takes 5 s once all rows have ended; into a second copy weights are loaded beside the rows. The rules:

    at once         for each version; one that comes meanwhile is passed over
    every second    once two versions, or more, have come; every fifth: once five have
    by age          by the product's rule (engines/process/change_time.py), for a node all of whose groups are wanted

The memory of a second copy could hold rows instead: "its memory for rows" is one copy with as many more.
"""

import argparse
import heapq
import math
import random
import statistics
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from echo2.engines.process.change_time import ChangeLoss, WorkFacts, is_due

GROUP: Final = 16
MEAN, LIMIT, SIGMA = 2_500, 8_192, 0.8
ROWS: Final = 48
FULL_SECONDS: Final = 1 / 50
"""Seconds of a token of every row, with all rows in use under one version."""
STALENESS: Final = 4
CHANGE_SECONDS: Final = 5.0
STEPS: Final = (60.0, 180.0, 600.0)
"""Seconds of a step of the learner."""
USED, DRAWN = 0.55, 1.1
"""Bars of the product's rule with Qwen3-4B and the shortest steps: rows in use, and drawn tokens by those at once."""
OLDER: Final = 0.1
"""A bar of the same rule with the longest steps: by how much it may make groups older."""
GAIN: Final = 1.1
"""The bar: drawn tokens with two copies by those with one in the same memory. Below it a second copy is not built."""


class ModelBytes(NamedTuple):
    """Bytes of a model's weights, and of keys and values of one token."""

    weights: float
    token: float


MODELS: Final[Mapping[str, ModelBytes | None]] = {
    "fixed rate": None,
    "Qwen3-4B": ModelBytes(8.04e9, 147_456),
    "Qwen3-0.6B": ModelBytes(1.19e9, 114_688),
}


class ChangeCost(NamedTuple):
    """Tokens that a change of version costs with one copy of the weights and with two."""

    one_copy: float
    two_copies: float


def rows_left(lengths: Sequence[int], rows: int) -> list[float]:
    """Return how many of `rows` rows are left after each step of a change. `lengths`: of completions, drawn evenly; a
    row is met in the middle of a completion, of a long one more often than of a short one."""
    return [rows * sum(max(0, length - step) for length in lengths) / sum(lengths) for step in range(max(lengths))]


def change_cost(left: Sequence[float], rates: Mapping[int, float], rows: int) -> ChangeCost:
    """Return the cost of a change. `left`: old rows in each of its steps. `rates`: tokens per second by number of rows,
    with `rows` among them."""
    numbers = sorted(rates)
    seconds = [number / rates[number] for number in numbers]

    def step(count: float) -> float:
        return float(np.interp(count, [0, *numbers], [0.0, *seconds]))

    full = step(rows)
    one = sum(step(count) - count / rows * full for count in left)
    two = sum(step(count) + step(rows - count) - full for count in left)
    return ChangeCost(one * rates[rows], two * rates[rows])


# --- a node among versions that come often


class Device(NamedTuple):
    """A device that is bound by its memory. `weights`: seconds to read the weights. `token`: seconds to read keys and
    values of one token."""

    rows: int
    weights: float
    token: float

    def seconds(self, tokens: int, rows: int, context: int, versions: int) -> float:
        """Return the time of so many tokens of each of `rows` rows, which have `context` tokens together before."""
        read = tokens * context + rows * tokens * (tokens - 1) // 2
        return tokens * versions * self.weights + read * self.token


class Progress(NamedTuple):
    """The facts that a rule sees. `lag`: versions from the loaded one to the newest. `since`: steps of the learner for
    which that has been the newest. `takes`: steps that a group takes, in the median; None: none has ended yet.
    `cost`: steps that a change costs; None: none was measured. `row`: steps that a rollout takes."""

    lag: int
    since: float
    takes: float | None
    cost: float | None
    row: float = 0.0


Rule = Callable[[Progress], bool]
"""Tells whether a node that is behind takes the newest version."""


def at_once(progress: Progress) -> bool:
    return progress.lag >= 1


def every_second(progress: Progress) -> bool:
    return progress.lag >= 2


def every_fifth(progress: Progress) -> bool:
    return progress.lag >= 5


def by_age(progress: Progress) -> bool:
    """Change as the product does where each lease that is requested is given."""
    work = WorkFacts(is_working=True, is_wanted=True, group=progress.takes, row=progress.row, change=progress.cost)
    return progress.lag >= 1 and is_due(progress.lag + progress.since, 1.0, STALENESS, work)


class OpenGroup:
    """A group under way. `left`: rollouts that have not ended. `tokens`, `longest`: tokens of those that have, of all
    together and of the longest."""

    def __init__(self, version: int, began: float) -> None:
        self.version, self.began = version, began
        self.left, self.tokens, self.longest = GROUP, 0, 0


class Result(NamedTuple):
    """`used`: share of rows in use. `rate`: tokens per second of whole groups, `drawn`: of those at most S old. `age`:
    mean age of a group. `old`: share of the groups that are older than S."""

    used: float
    rate: float
    drawn: float
    age: float
    old: float


def length(chance: random.Random) -> int:
    """Return the tokens of a rollout."""
    return min(LIMIT, max(16, int(chance.lognormvariate(math.log(MEAN) - SIGMA * SIGMA / 2, SIGMA))))


@cache
def mean_context() -> float:
    """Return the mean tokens of a row that is met: half of a rollout, of a long one more often than of a short one."""
    chance = random.Random(0)
    lengths = [length(chance) for _ in range(100_000)]
    return sum(one * one for one in lengths) / (2 * sum(lengths))


class VersionedNode:
    """A node with one copy of the weights or with two. `now`: seconds. `version`: under which groups begin."""

    def __init__(self, device: Device, rule: Rule, copies: int, step: float, seed: int = 0) -> None:
        """`step`: seconds of a step of the learner."""
        self._device, self._rule, self._copies, self._step = device, rule, copies, step
        self._chance = random.Random(seed)
        self.now, self.version = 0.0, 0
        self._busy, self._made, self._context, self._number = 0.0, 0, 0, 0
        self._running: list[tuple[int, int, int, OpenGroup]] = []
        """Rows by the number of tokens, of any row since the start, with which they end; a number of their own, their
        length, their group."""
        self._rows_under: Counter[int] = Counter()
        self._changes = False
        """Whether no group begins before the change."""
        self._waiting: list[int] = []
        """Lengths of the rollouts of `_group` that have no row yet."""
        self._group = OpenGroup(0, 0.0)
        self._took: deque[float] = deque(maxlen=32)
        self._cost = ChangeLoss()
        self._row_took: deque[float] = deque(maxlen=32)
        """Seconds of a rollout, by the tokens of a group and those of its longest, as a node knows it."""
        self._ages: list[tuple[int, int]] = []
        """Age and tokens of each group that has ended."""

    def run(self, hours: float) -> Result:
        """Work for so many hours."""
        while self.now < hours * 3600:
            if self._copies == 1 and not self._running and self._newest > self.version:
                self.now += CHANGE_SECONDS
                self.version, self._changes = self._newest, False
                self._cost.end(self.now)
            self._fill()
            self._advance()
        drawn = sum(tokens for age, tokens in self._ages if age <= STALENESS)
        return Result(
            self._busy / (self._device.rows * self.now),
            sum(tokens for _, tokens in self._ages) / self.now,
            drawn / self.now,
            statistics.fmean(age for age, _ in self._ages),
            sum(age > STALENESS for age, _ in self._ages) / len(self._ages),
        )

    @property
    def _newest(self) -> int:
        return int(self.now // self._step)

    def _is_due(self) -> bool:
        takes = statistics.median(self._took) / self._step if self._took else None
        row = statistics.median(self._row_took) / self._step if self._row_took else 0.0
        since = self.now / self._step - self._newest
        cost = self._cost.seconds()
        cost = None if cost is None else cost / self._step
        return self._rule(Progress(self._newest - self.version, since, takes, cost, row))

    def _fill(self) -> None:
        """Begin rollouts in all free rows, unless a change waits for those that run."""
        while len(self._running) < self._device.rows:
            if not self._waiting:
                self._changes = self._changes or self._is_due()
                if self._changes:
                    if self._copies == 1:
                        self._cost.begin(len(self._running), self.now)
                        return
                    if not self._rows_under.keys() - {self.version}:  # a copy is free
                        self.version, self._changes = self._newest, False
                self._group = OpenGroup(self.version, self.now)
                self._waiting = [length(self._chance) for _ in range(GROUP)]
            tokens = self._waiting.pop()
            self._number += 1
            heapq.heappush(self._running, (self._made + tokens, self._number, tokens, self._group))
            self._rows_under[self._group.version] += 1

    def _advance(self) -> None:
        """Generate until a row ends."""
        end, _, tokens, group = heapq.heappop(self._running)
        rows, count = len(self._running) + 1, end - self._made
        seconds = self._device.seconds(count, rows, self._context, len(self._rows_under))
        self.now += seconds
        self._busy += rows * seconds
        self._made = end
        self._context += rows * count - tokens
        self._rows_under[group.version] -= 1
        self._rows_under += Counter()  # drops a version without rows
        self._cost.on_rows(rows - 1, self.now)
        group.left -= 1
        group.tokens += tokens
        group.longest = max(group.longest, tokens)
        if not group.left:
            self._took.append(self.now - group.began)
            self._row_took.append((self.now - group.began) * group.tokens / (GROUP * group.longest))
            self._ages.append((self._newest + 1 - group.version, group.tokens))


class Case(NamedTuple):
    """A node that is simulated. `spare`: whether its rows have the memory of a second copy too."""

    name: str
    copies: int
    rule: Rule
    spare: bool = False


ONCE: Final = Case("one copy, at once", 1, at_once)
BY_AGE: Final = Case("one copy, by age", 1, by_age)
ROWS_INSTEAD: Final = Case("its memory for rows, at once", 1, at_once, spare=True)
TWO: Final = (Case("two copies, at once", 2, at_once), Case("two copies, every second", 2, every_second))
CASES: Final = (
    ONCE,
    BY_AGE,
    Case("one copy, every second", 1, every_second),
    Case("one copy, every fifth", 1, every_fifth),
    *TWO,
    ROWS_INSTEAD,
    Case("its memory for rows, by age", 1, by_age, spare=True),
)


def device_of(model: ModelBytes | None, *, spare: bool = False) -> Device | None:
    """Return the device of a model; None: memory for a second copy has no number of rows. `spare`: see `Case`."""
    context = mean_context()
    share = 1.0 if model is None else model.weights / (model.weights + ROWS * context * model.token)
    if spare and model is None:
        return None
    rows = round(ROWS / (1 - share)) if spare else ROWS
    return Device(rows, share * FULL_SECONDS, (1 - share) * FULL_SECONDS / (ROWS * context))


def simulate(model: ModelBytes | None, case: Case, step: float, hours: float) -> Result | None:
    """Let a node work; None: see `device_of`."""
    device = device_of(model, spare=case.spare)
    return None if device is None else VersionedNode(device, case.rule, case.copies, step).run(hours)


def report(name: str, model: ModelBytes | None, hours: float) -> list[Claim]:
    """Print the table of a model; return the claims."""
    results = {(case, step): simulate(model, case, step, hours) for step in STEPS for case in CASES}
    device = device_of(model)
    assert device is not None
    print(f"{name}: the weights take {device.weights / FULL_SECONDS:.0%} of a step of all {ROWS} rows")
    bench.table(
        ["step, s", "node", "rows in use", "tokens/s", "drawn tokens/s", "mean age", "older than S"],
        [(step, case.name, *result) for (case, step), result in results.items() if result is not None],
    )
    claims = by_age_claims(results) if name == "Qwen3-4B" else []
    for step in STEPS:
        anchor, two = results[ROWS_INSTEAD, step], [results[case, step] for case in TWO]
        if anchor is not None:
            best = max(one.drawn for one in two if one is not None)
            ratio = best / anchor.drawn
            claims.append(Claim(f"two copies of {name}, {step:g} s", ratio, "rows instead", GAIN, at_most=True))
    return claims


def by_age_claims(results: Mapping[tuple[Case, float], Result | None]) -> list[Claim]:
    """Return the claims of the product's rule."""
    short, long = STEPS[0], STEPS[-1]
    once, aged, long_once, long_aged = (results[case, step] for step in (short, long) for case in (ONCE, BY_AGE))
    assert once is not None
    assert aged is not None
    assert long_once is not None
    assert long_aged is not None
    return [
        Claim(f"rows in use by age, {short:g} s", aged.used, "all rows", USED),
        Claim(f"drawn by age, {short:g} s", aged.drawn / once.drawn, "at once", DRAWN),
        Claim(f"older by age, {long:g} s", long_aged.age - long_once.age, "at once", OLDER, at_most=True),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10 hours of simulated time in place of 100")
    hours = 10.0 if parser.parse_args(arguments).quick else 100.0
    bench.header("version_change: rows in use and tokens per second, with one copy of the weights and with two")
    return bench.close([claim for name, model in MODELS.items() for claim in report(name, model, hours)])


if __name__ == "__main__":
    sys.exit(main())
