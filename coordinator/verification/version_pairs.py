"""Evidence that a node computes with the version before its lease's: a betting e-process in integers. Pure.

In a 16-bit format one step of learning changes an honest node's rates by less than rounding does, so rates do not show
a stale node. A second pass under the version before does. A token decides between the two versions where it is the
seeded choice under exactly one of them. Rounding that does not know the version before is as likely to lead towards it
as away from it. So an honest node agrees with the leased version at such a token with a chance of at least 1/2, and a
node that computes with the version before with a chance of at most 1/2.

Rules
1. One group in `ONE_IN` of a class that is not exact is passed a second time, drawn by the coordinator's own randomness
   after it was received. While a key is in doubt by this evidence, each of its groups is.
2. A bet multiplies its stake by 1 + bet / 2 per token that agrees with the version before alone, and by 1 - bet / 2 per
   token that agrees with the leased version alone. All other tokens count for nothing. A group's product is made as
   that of near-ties, so it follows from the two numbers of `VersionCount`.
3. The rest is as for classes that are not exact (evidence.py): shares of 1 / (g (g + 1)), days, lapsing, thresholds. A
   group passed twice is refused as `version-lie` while E is at a threshold after it.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from echo2.coordinator.verification.evidence import BET_UNIT, DOUBT_EVIDENCE, NO_STAKE, EProcess, NodeEvidence, Stake
from echo2.coordinator.verification.near_ties import power
from echo2.coordinator.verification.token_evidence import DIFFERS, ONE, Incomparable, TokenArray
from echo2.engines.engine import SampleScore

ONE_IN: Final = 100
VERSION_BETS: Final = (2, 4, 8, 16, 24)
"""In units of 1 / `BET_UNIT`: 1/8, 1/4, 1/2, 1 and 3/2."""
FIRST_PAIR_EVIDENCE: Final = NodeEvidence(0, *[EProcess(0, (NO_STAKE,) * len(VERSION_BETS))] * 2)
"""The evidence against a key without groups that were passed twice."""


class VersionCount(NamedTuple):
    """The deciding tokens of a group. `newer`: those that agree with the leased version alone; `older`: with the
    version before alone."""

    newer: int
    older: int


def count_versions(samples: Iterable[tuple[TokenArray, SampleScore]]) -> VersionCount:
    """Count the deciding tokens. `samples`: samples per sample, its tokens compared under the leased version, and its
    scores under the version before. Raises `Incomparable`."""
    newer = older = 0
    for tokens, before in samples:
        margins = np.asarray(before.margins, np.float32)
        if len(margins) != len(tokens) or not np.isfinite(margins).all():
            raise Incomparable("the scorer's values are not one finite number per sampled token")
        by_version, by_before = (tokens["flags"] & DIFFERS) == 0, margins <= 0
        newer += int((by_version & ~by_before).sum())
        older += int((by_before & ~by_version).sum())
    return VersionCount(newer, older)


def version_products(count: VersionCount) -> list[Stake]:
    """Return the factor of each bet's stake by a group (rule 2)."""
    return [_product(bet * ONE // (2 * BET_UNIT), count) for bet in VERSION_BETS]


def _product(half: int, count: VersionCount) -> Stake:
    """`half`: half of the bet, in units of 2^-32."""
    newer = power(Stake.of(ONE - half, -32), count.newer)
    return power(Stake.of(ONE + half, -32), count.older).times(newer)


def after_pass(before: NodeEvidence, count: VersionCount, now: int) -> NodeEvidence:
    """Return the evidence after a group that was passed twice, whose verdict falls at `now`, ms."""
    return before.after(version_products(count), now)


def is_doubted(evidence: NodeEvidence) -> bool:
    """Tell whether each further group of the key is passed twice (rule 1)."""
    return any(process.value().reaches(DOUBT_EVIDENCE) for process in (evidence.daily, evidence.lifelong))
