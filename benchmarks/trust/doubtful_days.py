"""Days of a key that cheats where it costs nothing: how many of its false groups are trained on and paid, under the
product's rule about doubt (coordinator/verification/evidence.py, rules 8 and 9) and under others."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.trust.streams import INT8, Groups, beyond_bound
from echo2.coordinator.accounts.strikes import STRIKE_WINDOW_GROUPS
from echo2.coordinator.verification.evidence import MOST_PEAK, NodeEvidence, Stake, Tables, products
from echo2.runtime.units import DAY

DAYS: Final = 6
GROUPS: Final = 400
"""Groups per day."""
HONEST_END: Final = 0.15
"""Share of a day at its end in which a key in doubt is honest."""
NEVER: Final = 99
"""A peak that no day reaches."""
CHEATS: Final = (INT8, "T = 0.95")
"""The swaps taken. The second has no bar: a Calibration by few tokens hardly shows it."""
MOST_TRAINED: Final = 0.2
MOST_PAID: Final = 0.35
"""The greatest shares of the groups that may be false and trained on, and false and paid, of `INT8`. `--quick`, whose
Calibration has wide bands, needs as much."""
Bets = list[list[Stake]]


class DoubtRule(NamedTuple):
    """A rule about doubt. `lasting`: whether doubt lasts until the day ends. `most_peak`: a day on which E reached this
    power of ten is not paid."""

    lasting: bool
    most_peak: int


class Strategy(NamedTuple):
    """The key cheats on a share `share` of its groups until E is at `stop`, and again once E is below `resume`.
    `in_doubt`: whether it does so on days in doubt too."""

    stop: int
    resume: int
    share: float
    in_doubt: bool


RULES: Final = {
    "doubt ends with E": DoubtRule(lasting=False, most_peak=NEVER),
    "with the day": DoubtRule(lasting=True, most_peak=NEVER),
    "and 10^6 unpaid": DoubtRule(lasting=True, most_peak=6),
    "and 10^4 unpaid": DoubtRule(lasting=True, most_peak=MOST_PEAK),
    "and 10^3 unpaid": DoubtRule(lasting=True, most_peak=3),
}
OURS: Final = "and 10^4 unpaid"
STRATEGIES: Final = (
    Strategy(3, 1, 1.0, in_doubt=True),
    Strategy(30, 5, 1.0, in_doubt=True),
    Strategy(900, 1, 0.1, in_doubt=True),
    Strategy(3, 1, 0.3, in_doubt=False),
)
"""The best ones for some rule among 112 that were tried."""


class JudgedGroup(NamedTuple):
    """A decided group. `power`: of ten that E reached after it; 0 below 10."""

    false: bool
    power: int
    refused: bool


class Gain(NamedTuple):
    """Shares of all groups that were false and trained on, and false and paid."""

    trained: float
    paid: float


def live(
    strategy: Strategy, honest: Bets, false: Bets, seed: int, beyond: Sequence[bool] = (), share: float = 1.0
) -> list[list[JudgedGroup]]:
    """Let a key hand in groups by a strategy; return them by day. It knows E, and what doubt is from it. `beyond`:
    whether each false group has a token beyond the bound. `share`: share of the groups that are compared, drawn after
    each is handed in; those in doubt, and `STRIKE_WINDOW_GROUPS` after a refusal, are compared all."""
    random, evidence, since = np.random.default_rng(seed), NodeEvidence(), STRIKE_WINDOW_GROUPS
    days = []
    for day in range(DAYS):
        groups, rising = list[JudgedGroup](), True
        for number in range(GROUPS):
            value = evidence.daily.value()
            rising = not value.reaches(strategy.stop) and (rising or not value.reaches(strategy.resume))
            doubted = any(group.power >= 3 for group in groups)
            may = not doubted or (strategy.in_doubt and number < GROUPS * (1 - HONEST_END))
            cheats = rising and may and random.random() < strategy.share
            bets = false if cheats else honest
            number = int(random.integers(len(bets)))
            whole = share == 1 or doubted or since < STRIKE_WINDOW_GROUPS
            refused, since = False, since + 1
            if whole or random.random() < share:
                evidence = evidence.after(bets[number], day * DAY)
                refused = evidence.conclusion() == "refusal" or (cheats and any(beyond[number : number + 1]))
                since = 0 if refused else since
            groups.append(JudgedGroup(cheats, evidence.power_on(day), refused))
        days.append(groups)
    return days


def gain(days: Sequence[Sequence[JudgedGroup]], rule: DoubtRule) -> Gain:
    """Return the gain of a key by its groups of these days under a rule."""
    trained = paid = 0
    for groups in days:
        peaks = np.maximum.accumulate([group.power for group in groups])
        kept = peaks >= 3 if rule.lasting else np.array([group.power >= 3 for group in groups])
        false = np.array([group.false and not group.refused for group in groups])
        well = groups[-1].power < 3 and peaks[-1] < rule.most_peak
        trained += int((false & ~kept).sum())
        paid += int((false & (~kept | well)).sum())
    total = sum(map(len, days))
    return Gain(trained / total, paid / total)


def doubted(dtype: str, tables: Tables, honest: Groups, swaps: Mapping[str, Groups]) -> list[Claim]:
    """Print the best gain of each swap under each rule; return the claims for the product's own."""
    honest_bets, rows, claims = [products(group, tables) for group in honest], [], []
    for name in CHEATS:
        false, beyond = [products(group, tables) for group in swaps[name]], beyond_bound(swaps[name], tables)
        lives = [live(strategy, honest_bets, false, seed, beyond) for seed, strategy in enumerate(STRATEGIES)]
        best = {
            rule: Gain(*map(max, zip(*(gain(days, law) for days in lives), strict=True))) for rule, law in RULES.items()
        }
        rows += [[name, rule, *shares] for rule, shares in best.items()]
        if name == INT8:
            trained, paid = best[OURS]
            claims.append(Claim(f"false and trained on in {dtype}", trained, "all groups", MOST_TRAINED, at_most=True))
            claims.append(Claim(f"false and paid in {dtype}", paid, "all groups", MOST_PAID, at_most=True))
    bench.table([f"{dtype} node cheats", "doubt ends", "trained on", "paid"], rows)
    days = live(Strategy(0, 0, 0.0, in_doubt=False), honest_bets, honest_bets, 0)
    in_doubt = sum(any(group.power >= 3 for group in groups) for groups in days)
    claims.append(Claim(f"honest days in doubt in {dtype}", float(in_doubt), f"0 of {DAYS}", 0, at_most=True))
    return claims
