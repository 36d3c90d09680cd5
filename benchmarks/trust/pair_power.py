"""Evidence per token in a class that is not exact: the scorer's pass, and a second group by another node of the class.

`python -m benchmarks.trust.pair_power [--quick]`

Tokens are drawn, not generated: a share `SURE` of them has no rival; of the others the seeded choice leads the
runner-up by a gap of Exp(1) nats. An engine's rounding moves the runner-up by N(0, s) nats, so it takes it where that
exceeds the gap; s is set such that honest engines differ in `HONEST_RATE` of tokens from the scorer, int8 weights in
`INT8_RATE` (docs/adr/0013, docs/protocol/evidence.md). The bounds p(gap) are fitted by the product from honest tokens
(coordinator/verification/calibration.py), and bets, shares and thresholds are the product's, here in floating point
and of the one statistic that both ways have, whether a token differs. Per group of `SAMPLES` samples:

    pass        each token against the seeded choice, bound p(gap)
    pair        each token against that of another node of the class with the same seeds, up to the first difference of
                a sample; bound 2 p(gap): each of the two differs from the scorer by at most p. The gap is known from
                the scorer's pass
    pair alone  the same without that pass: bound twice the mean of p

Printed: the node's generated tokens until E is at doubt and at a refusal, in the median of `DRAWS` nodes, and of honest
nodes the share that ever comes that far within `MOST_GROUPS` groups, beside honest partners and beside int8 ones.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import bench
from echo2.coordinator.verification.calibration import fit
from echo2.coordinator.verification.evidence import BET_UNIT, BETS, DOUBT_EVIDENCE, REFUSAL_EVIDENCE
from echo2.coordinator.verification.token_evidence import GAP_EDGES, GAP_UNIT, ONE, TOKEN, TokenArray

SURE: Final = 0.5
HONEST_RATE: Final = 0.025
INT8_RATE: Final = 0.071
SAMPLES: Final = 8
LENGTHS: Final = (64, 1024)
DRAWS: Final = 60
MOST_GROUPS: Final = 400
CALIBRATED: Final = 9 * 8192
"""Honest tokens of the Calibration."""
THRESHOLDS: Final = (DOUBT_EVIDENCE, REFUSAL_EVIDENCE)
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Drawn(NamedTuple):
    """Tokens of one group, samples x tokens: bins of their gaps, and where node and partner take the runner-up."""

    bins: NDArray[np.int64]
    node: Bools
    partner: Bools


class Way(NamedTuple):
    """One way to compare. `values`: of a group, whether each token differs, and which tokens are compared. `bound`: of
    each gap bin."""

    name: str
    values: Callable[[Drawn], tuple[Bools, Bools]]
    bound: Floats


def rounding(rate: float) -> float:
    """Return the s of an engine that differs in `rate` of tokens: by bisection of (1 - SURE) E[P(N(0, s) > gap)]."""
    gaps = np.linspace(0.0, 12.0, 24_001)
    weight = np.exp(-gaps) * (gaps[1] - gaps[0])
    low, high = 1e-4, 8.0
    for _ in range(60):
        s = (low + high) / 2
        tail = np.array([math.erfc(gap / s / math.sqrt(2)) / 2 for gap in gaps])
        low, high = (s, high) if (1 - SURE) * float(tail @ weight) < rate else (low, s)
    return low


def drawn(random: np.random.Generator, shape: tuple[int, int], node: float, partner: float) -> Drawn:
    """Draw a group: `node`, `partner`: the s of both."""
    gaps = np.where(random.random(shape) < SURE, 16.0, random.exponential(1.0, shape))
    bins = np.searchsorted(GAP_EDGES, np.floor(gaps / GAP_UNIT), side="right").astype(np.int64)
    return Drawn(bins, random.normal(0, node, shape) > gaps, random.normal(0, partner, shape) > gaps)


def tables(random: np.random.Generator, honest: float) -> Floats:
    """Return p of each gap bin, fitted from honest tokens as the product fits them."""
    one = drawn(random, (1, CALIBRATED), honest, honest)
    tokens: TokenArray = np.zeros(CALIBRATED, TOKEN)
    tokens["gap"], tokens["flags"] = one.bins[0], one.node[0]
    return np.array(fit({"all machines": tokens})["differs"]) / ONE


def by_pass(group: Drawn) -> tuple[Bools, Bools]:
    """Compare with the seeded choice: every token."""
    return group.node, np.ones_like(group.node)


def by_pair(group: Drawn) -> tuple[Bools, Bools]:
    """Compare with the partner's token, up to the first difference of each sample."""
    differs = group.node != group.partner
    before = np.cumsum(differs, axis=1) - differs
    return differs, before == 0


def log_products(way: Way, group: Drawn) -> Floats:
    """Return the logarithm of each bet's product over a group."""
    values, compared = way.values(group)
    x, p = values[compared], way.bound[group.bins[compared]]
    lowered = np.minimum(np.array(BETS)[:, None] / BET_UNIT, 1 / (2 * p))
    return np.asarray(np.log1p(lowered * (x - p)).sum(axis=1))


class Course(NamedTuple):
    """E over the groups of one node. `at`: after how many groups it was at doubt and at a refusal, as far as it was."""

    at: list[int]


def played(
    random: np.random.Generator, way: Way, shape: tuple[int, int], node: float, partner: float, draws: int = DRAWS
) -> Iterator[Course]:
    """Bet on the groups of `draws` nodes, on each until it is refused or has brought `MOST_GROUPS`."""
    for _ in range(draws):
        stakes, at = np.zeros(len(BETS)), list[int]()
        for number in range(1, MOST_GROUPS + 1):
            group = drawn(random, shape, node, partner)
            stakes = (stakes + 1 / (number * (number + 1))) * np.exp(np.minimum(log_products(way, group), 80.0))
            stakes = np.minimum(stakes, 2.0**40)
            while len(at) < len(THRESHOLDS) and stakes.mean() >= THRESHOLDS[len(at)]:
                at.append(number)
            if len(at) == len(THRESHOLDS):
                break
        yield Course(at)


def compared_tokens(random: np.random.Generator, length: int, honest: float) -> float:
    """Return how many tokens of a sample two honest nodes can compare, in the mean."""
    _, compared = by_pair(drawn(random, (2_000, length), honest, honest))
    return float(compared.sum(axis=1).mean())


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three nodes instead of 60, short samples alone")
    quick = parser.parse_args().quick
    draws, lengths = (3, LENGTHS[:1]) if quick else (DRAWS, LENGTHS)
    random = np.random.default_rng(0)
    honest, int8 = rounding(HONEST_RATE), rounding(INT8_RATE)
    p = tables(random, honest)
    mean = float(p[drawn(random, (1, CALIBRATED), honest, honest).bins].mean())
    ways = [
        Way("pass", by_pass, p),
        Way("pair", by_pair, np.minimum(1.0, 2 * p)),
        Way("pair alone", by_pair, np.full(len(p), 2 * mean)),
    ]
    print(f"s of honest rounding {honest:.3f}, of int8 {int8:.3f} nats; mean bound p {mean:.4f}")
    named, honest_rows = list[list[object]](), list[list[object]]()
    for length in lengths:
        print(f"two honest nodes compare {compared_tokens(random, length, honest):.1f} of {length} tokens")
        shape = SAMPLES, length
        for way in ways:
            ends = [one.at for one in played(random, way, shape, int8, honest, draws)]
            waits = [np.median([one[k] if len(one) > k else math.inf for one in ends]) for k in range(2)]
            named.append([way.name, length, *(float(wait) * SAMPLES * length for wait in waits)])
            row: list[object] = [way.name, length]
            for partner in (honest, int8):
                reached = [len(one.at) for one in played(random, way, shape, honest, partner, draws)]
                row += [sum(number > k for number in reached) / draws for k in range(2)]
            honest_rows.append(row)
    bench.table(["int8 node", "tokens a sample", "generated until doubt", "until refused"], named)
    beside = ["in doubt, honest partner", "refused", "in doubt, int8 partner", "refused "]
    bench.table(["honest node", "tokens a sample", *beside], honest_rows)


if __name__ == "__main__":
    main()
