"""Evidence that a node chooses among near-ties, for classes that are exact: a betting e-process in integers. Pure.

A near-tie is a sampled token that is not the seeded choice, and misses it by no more than the margin. Rounding makes a
few. A node that chooses its tokens among near-ties stays within the bounds on one group, so groups are added up here.

Rules
1. Of an honest node's sampled tokens at most `NEAR_TIE_RATE` are near-ties. None was seen among 4,608 tokens.
2. A bet multiplies its stake by 1 + bet (1 - p) per near-tie and by 1 - bet p per other token. A group's product is a
   power of each, by squaring, and every product is rounded down. So it follows from the two numbers of `NearTieCount`.
3. The rest is as for classes that are not exact (evidence.py): stakes, shares of 1 / (g (g + 1)), days, and lapsing.
4. Two such E run: of the key and of its party (p2p/limits/origin.py), so that many keys of one owner count as one.
5. A group with a near-tie is refused if it would raise the E of the day to `REFUSAL`, or the lifelong E to
   `LIFELONG_REFUSAL`. A group without a near-tie is never refused by this module: none of its tokens was chosen so.
6. The party's E refuses a group only if the key's own groups speak against it as well: its lifelong E, after this
   group, has risen to the shares that its stakes gained (`EProcess.has_risen`). So no neighbour can spend the
   near-ties of a key with clean groups. A new key has no clean groups, so a swarm of new keys has none to spend.
7. Only accepted groups count. So the E of a key stays below the thresholds, and a node that stops choosing is accepted
   at once.
"""

from functools import lru_cache
from typing import Final, Literal, NamedTuple

from echo2.coordinator.verification.evidence import BET_UNIT, BETS, NO_STAKE, EProcess, NodeEvidence, Stake
from echo2.coordinator.verification.token_evidence import ONE

NEAR_TIE_RATE: Final = -(-ONE // 50_000)
"""p, in units of 2^-32, rounded up."""
FIRST_TIE_EVIDENCE: Final = NodeEvidence(0, *[EProcess(0, (NO_STAKE,) * len(BETS))] * 2)
"""The evidence against a key or party without groups."""
Blamed = Literal["", "near-ties", "party-near-ties"]
"""The refusal code of a group that is refused by the near-ties of its key or of its party. Empty: not refused."""


class NearTieCount(NamedTuple):
    """The near-ties of a group, and its sampled tokens."""

    sampled: int
    near_ties: int


@lru_cache(maxsize=1 << 12)
def near_tie_products(count: NearTieCount) -> tuple[Stake, ...]:
    """Return the factor of each bet's stake by a group (rule 2)."""
    return tuple([_product(bet, count) for bet in BETS])


def _product(bet: int, count: NearTieCount) -> Stake:
    won, lost = ONE + bet * (ONE - NEAR_TIE_RATE) // BET_UNIT, ONE - -(-bet * NEAR_TIE_RATE // BET_UNIT)
    others = power(Stake.of(lost, -32), count.sampled - count.near_ties)
    return power(Stake.of(won, -32), count.near_ties).times(others)


@lru_cache(maxsize=1 << 14)
def power(base: Stake, exponent: int) -> Stake:
    """Return a stake to the power of `exponent`, by squaring from the lowest bit on, each product rounded down."""
    result = Stake.of(1)
    while exponent:
        if exponent & 1:
            result = result.times(base)
        base, exponent = base.times(base), exponent >> 1
    return result


class JudgedTies(NamedTuple):
    """The judgement on a group: its code, and the evidence against its key and its party after it. Where it is refused,
    the evidence stays as it was. `party`: None of a group without one."""

    code: Blamed
    key: NodeEvidence
    party: NodeEvidence | None


def judge_ties(
    key: NodeEvidence, party: NodeEvidence | None, count: NearTieCount, now: int, *, sparing: bool = True
) -> JudgedTies:
    """Judge a group whose verdict falls at `now`, ms, by the evidence against its key and its party before it.
    `sparing`: whether rule 6 holds; verdicts under the ledger's first rules were given without it."""
    products = near_tie_products(count)
    key_after = key.after(products, now)
    party_after = None if party is None else party.after(products, now)
    if count.near_ties and key_after.conclusion() == "refusal":
        return JudgedTies("near-ties", key, party)
    by_party = party_after is not None and party_after.conclusion() == "refusal"
    if count.near_ties and by_party and (key_after.lifelong.has_risen() or not sparing):
        return JudgedTies("party-near-ties", key, party)
    return JudgedTies("", key_after, party_after)
