"""The profit of cheating: what an owner gains who hands in groups that cost him less, in 30 days of one machine.

Rules
1. Time is that of one machine, which makes `A_DAY` honest groups of the reference length a day. A false group takes the
   less time, by its saving; so a cheater that nobody sees makes more groups. Work costs, a suspended machine does not.
2. Pay, vesting, holdback and forfeits are those of coordinator/market/holdback.py, suspensions those of
   coordinator/accounts/strikes.py, thresholds of evidence those of coordinator/verification/evidence.py.
3. In exact classes each false group is refused, and is a strike: that was measured of every swap (docs/log/, "each
   named at the first group"). A group that was not generated is proof: its key is suspended for good, all that can be
   taken is forfeited, and the owner begins anew with another key, whose first group is a canary.
4. In bfloat16 a bet is made on every token: whether it differs from the scorer's choice. Shares that differ are the
   measured ones. One statistic alone is bet on here, so detection is slower than the product's, which bets on four.
5. The long con: a lie that the audits alone would see. It is found with their share per group, and is proof.
6. The gain is the profit less that of honest work on the same machine, per cent of the honest work's cost.
"""

import math
import random
from collections.abc import Iterator
from typing import Final, NamedTuple

from echo2.coordinator.accounts.strikes import STRIKE_WINDOW_GROUPS, SUSPENDING_STRIKES, suspended_until
from echo2.coordinator.accounts.vesting import VESTED_AFTER
from echo2.coordinator.calibration.cost_fit import REFERENCE, SAMPLES
from echo2.coordinator.market.holdback import (
    Tranches,
    earned_tranche,
    forfeit_amount,
    release_tranches,
    vest_tranches,
)
from echo2.coordinator.verification.evidence import (
    BET_UNIT,
    BETS,
    DOUBT_EVIDENCE,
    LIFELONG_REFUSAL,
    MOST_PEAK,
    REFUSAL_EVIDENCE,
)
from echo2.ledger.ledger_facts import KeyAccount
from echo2.ledger.standing import FOREVER_MS
from echo2.runtime.units import DAY

DAYS: Final = 30
A_DAY: Final = 400
QUARTER: Final = DAY // 96
TOKENS: Final = SAMPLES * REFERENCE.completion
"""Sampled tokens of a group."""
MILLI_RE: Final = 1000 * SAMPLES
COST: Final = 1_000_000
"""Nano units per RE, of honest work."""
PRICE: Final = 1_610_000
"""Pay per RE: what `pivot` pays beyond the costs of the cheapest nodes in the seeded markets, in the mean."""
NULL: Final = 0.0245
"""Bound of the Calibration on the share of tokens that differ. With it the model names T = 0.95 and int8 later than was
measured: after 4,608 and 3,072 tokens in the median, instead of 1,696 and 192."""
HONEST: Final = 0.017
RATES: Final = (0.01, 0.05, 0.2, 1.0)


class Lie(NamedTuple):
    """A way to cheat. `saving`: share of a group's cost. `seen`: chance per false group, and `code` under which it is
    refused; None: by evidence, from tokens of which the share `differ` differs."""

    place: str
    name: str
    saving: float
    seen: float | None
    code: str = "seeded-choice"
    differ: float = HONEST
    barred: tuple[float, ...] = ()
    """Rates at which the gain has to be below zero."""


LIES: Final = (
    Lie("exact", "int8", 0.5, 1.0, barred=RATES),
    Lie("exact", "int4", 0.75, 1.0, barred=RATES),
    Lie("exact", "half the layers", 0.5, 1.0, barred=RATES),
    Lie("exact", "not generated", 1.0, 1.0, "not-generated", barred=RATES),
    Lie("bfloat16", "int4", 0.75, None, differ=0.49, barred=(0.2, 1.0)),
    Lie("bfloat16", "half the layers", 0.5, None, differ=0.49, barred=(0.2, 1.0)),
    Lie("bfloat16", "T = 0.95", 0.0, None, differ=0.039, barred=(0.2, 1.0)),
    Lie("bfloat16", "int8", 0.5, None, differ=0.042),
    Lie("long con, audits of 1 % alone", "half the layers", 0.5, 0.01, "not-generated"),
    Lie("long con, audits of 5 % alone", "half the layers", 0.5, 0.05, "not-generated"),
)
"""Savings are upper bounds: a machine whose time is that of reading weights reads half of them, or a quarter. T = 0.95
saves nothing. Audits alone would see what neither T1 nor T2 does; no such lie is known in exact classes."""


class CheatFigures(NamedTuple):
    """`gain`: rule 6. `undetected`: share of all groups that were false and paid. `suspended`: share of the time."""

    gain: float
    undetected: float
    suspended: float
    keys: int


class _Evidence:
    """Bets on one statistic, by the rules of evidence.py, in floats: logarithms of the stakes."""

    def __init__(self) -> None:
        self._daily, self._lifelong = [-math.inf] * len(BETS), [-math.inf] * len(BETS)
        self._groups = [0, 0]
        self.peak = 0.0
        self.value = 0.0
        self.lifelong = 0.0

    def new_day(self) -> None:
        """Begin a day: the daily evidence begins anew unless the last day ended in doubt."""
        if self.value < DOUBT_EVIDENCE:
            self._daily, self._groups[0] = [-math.inf] * len(BETS), 0
        self.peak = 0.0

    def take(self, differing: int) -> None:
        """Bet on a group of which so many tokens differ."""
        factors = [
            differing * math.log1p(bet * (1 - NULL)) + (TOKENS - differing) * math.log1p(-bet * NULL)
            for bet in (min(one / BET_UNIT, 1 / (2 * NULL)) for one in BETS)
        ]
        self._daily = self._staked(self._daily, 0, factors)
        self._lifelong = self._staked(self._lifelong, 1, factors)
        self.value, self.lifelong = _mean(self._daily), _mean(self._lifelong)
        self.peak = max(self.peak, self.value)

    def _staked(self, stakes: list[float], which: int, factors: list[float]) -> list[float]:
        self._groups[which] += 1
        gained = 1 / (self._groups[which] * (self._groups[which] + 1))
        return [
            min(40 * math.log(2), _log(math.exp(stake) + gained) + factor)
            for stake, factor in zip(stakes, factors, strict=True)
        ]

    @property
    def refuses(self) -> bool:
        """True where the last group is refused."""
        return self.value >= REFUSAL_EVIDENCE or self.lifelong >= LIFELONG_REFUSAL


def _mean(stakes: list[float]) -> float:
    return sum(math.exp(one) for one in stakes) / len(stakes)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


class _Purse:
    """The pay of an owner, by the product's vesting, holdback and forfeits."""

    def __init__(self) -> None:
        self._tranches: Tranches = ()
        self._groups, self.paid = 0, 0
        self.accepted = 0

    def group(self) -> None:
        """Take a paid group."""
        self._groups, self.accepted = self._groups + 1, self.accepted + 1

    def close(self, now: int) -> None:
        """Close an epoch."""
        if self._groups:
            work = MILLI_RE * self._groups
            self._tranches = (*self._tranches, earned_tranche(now, work, PRICE * work // 1000))
        self._groups = 0
        self._tranches, _ = vest_tranches(self._tranches, now)
        self._tranches, amount = release_tranches(self._tranches, now, proven=self.accepted >= VESTED_AFTER)
        self.paid += amount

    def forfeit(self, now: int) -> None:
        """Forfeit all that can be taken; the rest is the owner's, and its key's work ends."""
        self.close(now)
        every = sum(one.amount for one in self._tranches)
        self._tranches = forfeit_amount(self._tranches, now, self.accepted >= VESTED_AFTER, every).tranches
        self.end()

    def end(self) -> None:
        """Let what is left become payable."""
        self.paid += sum(one.amount for one in self._tranches)
        self._tranches, self.accepted = (), 0


class _Life:
    """30 days of a machine whose owner cheats on a share of his groups."""

    def __init__(self, lie: Lie, rate: float, seed: int) -> None:
        self._lie, self._rate, self._chance = lie, rate, random.Random(seed)
        self._purse, self._evidence = _Purse(), _Evidence()
        self._account, self._strikes, self._groups = KeyAccount(), list[int](), 0
        self._quarantined, self._false_quarantined = 0, 0
        self.now, self.worked, self.suspended, self.keys = 0, 0.0, 0, 1
        self.groups, self.false_paid = 0, 0
        self._canary = False

    def lived(self) -> CheatFigures:
        """Live, and return the figures."""
        while self.now < DAYS * DAY:
            before = self.now
            self._group()
            for at in range(before // QUARTER + 1, self.now // QUARTER + 1):
                self._purse.close(at * QUARTER)
            if self.now // DAY > before // DAY:
                self._day_ends()
        self._day_ends()
        self._purse.end()
        profit = self._purse.paid - self.worked * COST * SAMPLES
        honest = DAYS * A_DAY * SAMPLES * (PRICE - COST)
        gain = 100 * (profit - honest) / (DAYS * A_DAY * SAMPLES * COST)
        return CheatFigures(gain, self.false_paid / self.groups, self.suspended / (DAYS * DAY), self.keys)

    def _group(self) -> None:
        false = not self._canary and self._chance.random() < self._rate
        spent = 1 - self._lie.saving if false else 1.0
        self.now, self.worked = self.now + max(1, int(spent * DAY / A_DAY)), self.worked + spent
        self.groups, self._groups, self._canary = self.groups + 1, self._groups + 1, False
        if self._lie.seen is None:
            self._judged_by_evidence(false)
        elif false and self._chance.random() < self._lie.seen:
            self._refused(self._lie.code)
        else:
            self._accepted(false)

    def _judged_by_evidence(self, false: bool) -> None:
        differ = self._lie.differ if false else HONEST
        self._evidence.take(_binomial(self._chance, TOKENS, differ))
        if self._evidence.refuses:
            self._refused("evidence")
        elif self._evidence.peak >= DOUBT_EVIDENCE:
            self._quarantined, self._false_quarantined = self._quarantined + 1, self._false_quarantined + false
        else:
            self._accepted(false)

    def _accepted(self, false: bool) -> None:
        self._purse.group()
        self.false_paid += false

    def _day_ends(self) -> None:
        if self._evidence.value < DOUBT_EVIDENCE and self._evidence.peak < 10**MOST_PEAK:
            for _ in range(self._quarantined):
                self._purse.group()
            self.false_paid += self._false_quarantined
        self._quarantined = self._false_quarantined = 0
        self._evidence.new_day()

    def _refused(self, code: str) -> None:
        self._strikes = [one for one in self._strikes if one > self._groups - STRIKE_WINDOW_GROUPS] + [self._groups]
        end = suspended_until(self._account, self.now, code)
        if end >= FOREVER_MS:
            self._purse.forfeit(self.now)
            self._new_key()
        elif len(self._strikes) >= SUSPENDING_STRIKES:
            self._account = self._account._replace(since=self.now, until=end)
            self._strikes = []
            self.suspended += min(end, DAYS * DAY) - self.now
            self.now = end

    def _new_key(self) -> None:
        self.keys, self._canary = self.keys + 1, True
        self._account, self._strikes, self._groups = KeyAccount(), [], 0


def _binomial(chance: random.Random, count: int, share: float) -> int:
    """Return a count by the normal approximation, from 0 to `count`."""
    spread = math.sqrt(count * share * (1 - share))
    return min(count, max(0, round(chance.gauss(count * share, spread))))


def figures(lie: Lie, rate: float, seeds: int) -> CheatFigures:
    """Return the means of seeds."""
    lives = [_Life(lie, rate, seed).lived() for seed in range(seeds)]
    means = [sum(column) / seeds for column in zip(*lives, strict=True)]
    return CheatFigures(means[0], means[1], means[2], round(means[3]))


def named_after(differ: float, seeds: int = 200) -> int:
    """Return the median of tokens after which a node whose tokens differ so often is refused, by this model."""
    counts = []
    for seed in range(seeds):
        chance, evidence, groups = random.Random(seed), _Evidence(), 0
        while not evidence.refuses and groups < 1000:
            evidence.take(_binomial(chance, TOKENS, differ))
            groups += 1
        counts.append(groups * TOKENS)
    return sorted(counts)[seeds // 2]


def every(seeds: int) -> Iterator[tuple[Lie, float, CheatFigures]]:
    """Yield each lie at each rate."""
    for lie in LIES:
        for rate in RATES:
            yield lie, rate, figures(lie, rate, seeds)
