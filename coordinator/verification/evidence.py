"""Evidence against the claim that a node computes in its class: betting e-processes in exact integers. Pure.

For each statistic (token_evidence.py) a Calibration states a bound p(gap) on its mean for an honest node of the class.
A bet multiplies its stake by 1 + bet (x - p) per token. For an honest node no stake grows in the mean, whatever the
dependence between tokens, so a stake of 1 ever reaches n with a chance of at most 1 / n (Ville's inequality).

Rules
1. E is the mean over `STATISTICS` x `BETS` of the stakes; the mean of e-processes is one.
2. p is a multiple of 2^-32, at least `LEAST_P` and at most 1. A token of a bin whose p is 1 counts for nothing: where
   rounding chooses freely, a node that rounds nothing would gain by each such token, and could spend that elsewhere.
   Of a statistic without a table of its own p is that of `differs`. A bet is lowered to 1 / (2 p) where it is above, so
   that no factor is below 1/2. Each factor is a multiple of 2^-32, rounded down; no factor is above 16, so one outlier
   multiplies E by 16 at most.
3. Products and sums are 64-bit mantissas with an exponent, rounded down after every operation. Rounding down keeps the
   bound, and a second calculation gives the same bits.
4. The tokens of a group are multiplied in their order, from 1 on, and the product then goes to the node's stakes.
   Groups count in the order of the ledger.
5. Before its g-th group each stake gains 1 / (g (g + 1)): all of these together are at most 1, so E stays an e-process.
   A node that turns bad after g groups is thereby seen as if it had begun there, at the price of g (g + 1) in E.
6. After each group a stake above 2^`MOST_POWER` becomes that, and one below 2^`LEAST_POWER` becomes 0. Both round down.
   So the state has one size, and a node that was mended comes back by honest groups.
7. `daily` begins anew with each day (UTC) of a verdict, but not after a day that ended at `DOUBT_EVIDENCE` or above:
   then it goes on. `lifelong` begins anew after `IDLE_DAYS` days without a group, unless it is at `DOUBT_EVIDENCE` or
   above: four times per year at most, so the bound on its false refusals stays below 10^-8 per year.
8. A group is refused while `daily` is at `REFUSAL_EVIDENCE` or above, or `lifelong` at `LIFELONG_REFUSAL`. It is in
   doubt while `daily` is at `DOUBT_EVIDENCE` or above, and from then on until the day (UTC) ends. Otherwise a key could
   cheat until it is in doubt, and work honestly until it is not: of its groups outside doubt nearly all would be false.
9. A day with groups in doubt ends well if `daily` ends below `DOUBT_EVIDENCE`, and did not reach 10^`MOST_PEAK` on it.
   Of honest days at most 10^-`MOST_PEAK` reach that. A key that cheats in doubt, and ends its days honestly, does.
10. The scorer may stop after some samples of a group where these suffice for a refusal (`suffices`). They are judged on
   the day of the key's previous group, and without `raising`, since the scorer does not know the rewards.
11. A token whose margin is above the class's bound is proof by itself (`exceeding`): its group is refused whatever E
   is. Otherwise a node that rounds nothing could spend what E grants to honest rounding on tokens of its own choice.
"""

import functools
import itertools
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from echo2.coordinator.verification.token_evidence import ONE, RAISING, STATISTICS, TokenArray
from echo2.runtime.units import DAY

BET_UNIT: Final = 16
BETS: Final = (8, 16, 40, 96, 240)
"""The published grid, in units of 1 / `BET_UNIT`: 0.5, 1, 2.5, 6 and 15."""
LEAST_P: Final = ONE >> 12
DOUBT_EVIDENCE: Final = 10**3
REFUSAL_EVIDENCE: Final = 10**6
AUDITED_EVIDENCE: Final = 10
"""A group after which E is below counts as audited work of its node."""
LIFELONG_REFUSAL: Final = 10**9
MOST_PEAK: Final = 4
IDLE_DAYS: Final = 90
"""Days."""
STAKES: Final = len(STATISTICS) * len(BETS)
MOST_POWER: Final = 40
LEAST_POWER: Final = -1024

BOUND: Final = "bound"
Conclusion = Literal["honest", "doubt", "refusal"]
Tables = Mapping[str, Sequence[int]]
"""Statistic -> p of each gap bin, in units of 2^-32; and `BOUND` -> the bound alone, in units of 2^-14 nats."""
_HEAD: Final = struct.Struct("<QQQ")
_STAKE: Final = struct.Struct("<Qi")
_new: Final = tuple.__new__


@functools.cache
def _stakes(number: int) -> struct.Struct:
    """Return the format of so many stakes."""
    return struct.Struct("<" + "Qi" * number)


class Stake(NamedTuple):
    """A number that is not negative: mantissa x 2^exponent, rounded down. `mantissa`: 0, or from 2^63 to 2^64 - 1."""

    mantissa: int
    exponent: int

    @classmethod
    def of(cls, value: int, exponent: int = 0) -> Self:
        """Return value x 2^exponent, rounded down."""
        shift = value.bit_length() - 64
        if value == 0:
            return cls(0, 0)
        return cls(value >> shift if shift >= 0 else value << -shift, exponent + shift)

    def plus(self, other: "Stake") -> "Stake":
        """Return the sum, each cut to the exponent of the larger one, as `total` does. `other`: above 0."""
        if not self.mantissa:
            return other
        top = max(self.exponent, other.exponent)
        cut = (self.mantissa >> min(top - self.exponent, 64)) + (other.mantissa >> min(top - other.exponent, 64))
        return Stake.of(cut, top)

    def times(self, other: "Stake") -> "Stake":
        return Stake.of(self.mantissa * other.mantissa, self.exponent + other.exponent)

    def reaches(self, least: int) -> bool:
        """Tell whether the stake is `least` or more."""
        return self.mantissa << max(self.exponent, 0) >= least << max(-self.exponent, 0)

    def within_bounds(self) -> "Stake":
        """Return the stake cut to the bounds of rule 6."""
        power = self.exponent + 64
        if power > MOST_POWER:
            return Stake(1 << 63, MOST_POWER - 63)
        return self if power >= LEAST_POWER else NO_STAKE


@functools.lru_cache(maxsize=1 << 12)
def _share(number: int) -> Stake:
    """Return the share that each stake gains before group `number` (rule 5)."""
    return Stake.of((1 << 128) // (number * (number + 1)), -128)


NO_STAKE: Final = Stake(0, 0)
WHOLE_STAKE: Final = Stake.of(1)


def total(stakes: Iterable[Stake]) -> Stake:
    """Return the sum, each stake cut to the exponent of the largest one."""
    positive = [stake for stake in stakes if stake.mantissa]
    if not positive:
        return NO_STAKE
    top = max(stake.exponent for stake in positive)
    return Stake.of(sum(stake.mantissa >> min(top - stake.exponent, 64) for stake in positive), top)


def mean(stakes: Sequence[Stake]) -> Stake:
    """Return the sum divided by the number of stakes."""
    whole = total(stakes)
    return Stake.of((whole.mantissa << 64) // len(stakes), whole.exponent - 64)


def products(tokens: TokenArray, tables: Tables) -> list[Stake]:
    """Return the factor of each stake by the tokens of one group (rule 4): statistics in their order, and the bets of
    each."""
    result = []
    for name, statistic in STATISTICS.items():
        values, counts = statistic(tokens)
        p = np.asarray(tables.get(name, tables["differs"]), np.int64)[tokens["gap"]]
        counts &= p < ONE
        values, p = values[counts], p[counts]
        result += [_product(factors(values, p, bet).tolist()) for bet in BETS]
    return result


def factors(values: NDArray[np.int64], p: NDArray[np.int64], bet: int) -> NDArray[np.int64]:
    """Return 1 + bet (x - p) of each token in units of 2^-32 (rule 2). `bet`: bet in units of 1 / `BET_UNIT`."""
    p = np.clip(p, LEAST_P, ONE)
    lowered = np.minimum(bet, (BET_UNIT * ONE // 2) // p)
    won: NDArray[np.int64] = ONE + (lowered * (values - p)) // BET_UNIT
    return won


def _product(ones: Sequence[int]) -> Stake:
    """Multiply factors in units of 2^-32, each at least 1/2."""
    mantissa, exponent = WHOLE_STAKE
    for factor in ones:
        mantissa *= factor
        shift = mantissa.bit_length() - 64
        mantissa >>= shift
        exponent += shift - 32
    return Stake(mantissa, exponent)


def stake_group(stakes: Sequence[Stake], share: Stake, group: Sequence[Stake]) -> tuple[Stake, ...]:
    """Return `stake.plus(share).times(product).bounded()` of each stake and product of `group`, in a fifth of the time:
    every verdict takes it per bet."""
    added, top = share
    result = []
    for (mantissa, exponent), (factor, power) in zip(stakes, group, strict=True):
        if mantissa:
            behind = exponent - top
            if behind >= 0:
                mantissa += added >> behind if behind < 64 else 0
            else:
                mantissa, exponent = added + (mantissa >> -behind if behind > -64 else 0), top
            if mantissa >> 64:
                mantissa, exponent = mantissa >> 1, exponent + 1
        else:
            mantissa, exponent = share
        mantissa *= factor
        shift = mantissa.bit_length() - 64
        exponent += power + shift
        if mantissa and LEAST_POWER - 64 <= exponent <= MOST_POWER - 64:
            result.append(_new(Stake, (mantissa >> shift, exponent)))
        else:
            result.append(Stake.of(mantissa, exponent - shift).within_bounds())
    return tuple(result)


class EProcess(NamedTuple):
    """An e-process after some groups: the stakes, one per statistic and bet."""

    groups: int = 0
    stakes: tuple[Stake, ...] = (NO_STAKE,) * STAKES

    def after(self, group: Sequence[Stake]) -> "EProcess":
        """Return the e-process after a further group, given by its `products` (rules 4 and 5)."""
        number = self.groups + 1
        return EProcess(number, stake_group(self.stakes, _share(number), group))

    def anew(self) -> "EProcess":
        """Return an e-process with as many stakes, before its first group."""
        return EProcess(0, (NO_STAKE,) * len(self.stakes))

    def value(self) -> Stake:
        """Return E (rule 1)."""
        return mean(self.stakes)

    def text(self) -> str:
        """Return E as a power of ten: "10^2.3"."""
        value = self.value()
        return f"10^{math.log10(value.mantissa) + value.exponent * math.log10(2):.1f}" if value.mantissa else "0"

    def power(self) -> int:
        """Return the power of ten that E reaches; 0 below 10."""
        value, power = self.value(), 0
        while value.reaches(10 ** (power + 1)):
            power += 1
        return power

    def has_risen(self) -> bool:
        """Tell whether E is at the sum of the shares that each stake gained, or above: g / (g + 1) after g groups. If
        not, the groups taken together do not speak against the node. The product E (g + 1) is rounded down."""
        return self.value().times(Stake.of(self.groups + 1)).reaches(self.groups)


class NodeEvidence(NamedTuple):
    """The evidence against one key. `day`: days since the Unix epoch of its last group."""

    day: int = 0
    daily: EProcess = EProcess()
    lifelong: EProcess = EProcess()

    def after(self, group: Sequence[Stake], now: int) -> "NodeEvidence":
        """Return the evidence after a further group whose verdict falls at `now`, ms. `group`: its `products`."""
        today = now // DAY
        daily = self.daily if today == self.day or self.daily.value().reaches(DOUBT_EVIDENCE) else self.daily.anew()
        lifelong = self.lifelong.anew() if self.has_lapsed(today) else self.lifelong
        return NodeEvidence(today, daily.after(group), lifelong.after(group))

    def has_lapsed(self, today: int) -> bool:
        """Tell whether this evidence no longer counts for a group of `today` (rule 7), so that it may be forgotten."""
        idle = today - self.day >= IDLE_DAYS
        return idle and not any(process.value().reaches(DOUBT_EVIDENCE) for process in (self.daily, self.lifelong))

    def conclusion(self, *, doubted: bool = False) -> Conclusion:
        """Return what follows for the last group (rule 8). `doubted`: whether a group before it was in doubt that
        day."""
        today = self.daily.value()
        if today.reaches(REFUSAL_EVIDENCE) or self.lifelong.value().reaches(LIFELONG_REFUSAL):
            return "refusal"
        return "doubt" if doubted or today.reaches(DOUBT_EVIDENCE) else "honest"

    def is_low(self) -> bool:
        """Tell whether both processes are below `AUDITED_EVIDENCE`."""
        return not any(process.value().reaches(AUDITED_EVIDENCE) for process in (self.daily, self.lifelong))

    def power_on(self, day: int) -> int:
        """Return the power of ten that E reached after the last group, if that was on this day; else 0."""
        return self.daily.power() if day == self.day else 0

    def encode(self) -> bytes:
        """Return the evidence as bytes, of one length for any number of groups."""
        stakes = self.daily.stakes + self.lifelong.stakes
        head = _HEAD.pack(self.day, self.daily.groups, self.lifelong.groups)
        return head + _stakes(len(stakes)).pack(*itertools.chain.from_iterable(stakes))

    @classmethod
    def decode(cls, data: bytes) -> "NodeEvidence":
        """Read `encode`'s bytes."""
        day, today, ever = _HEAD.unpack_from(data)
        stakes = tuple(map(Stake._make, _STAKE.iter_unpack(data[_HEAD.size :])))
        half = len(stakes) // 2
        return cls(day, EProcess(today, stakes[:half]), EProcess(ever, stakes[half:]))


def exceeding(tokens: TokenArray, tables: Tables) -> NDArray[np.bool_]:
    """Tell of each token whether its margin is above the bound (rule 11)."""
    beyond: NDArray[np.bool_] = tokens["margin"] > tables[BOUND][0]
    return beyond


def suffices(before: NodeEvidence, tokens: TokenArray, tables: Tables) -> bool:
    """Tell whether some tokens of a group are enough for a refusal (rule 10). `before`: the evidence before them."""
    plain = tokens.copy()
    plain["flags"] &= ~np.uint8(RAISING)
    return before.after(products(plain, tables), before.day * DAY).conclusion() == "refusal"
