"""Canaries: leases whose answer is known before they are given, so that their groups are checked by comparing tokens.

Rules
1. The first group of a new key is a canary. So is later about one lease of every node in 1 / `share`, drawn at random;
   a draw for which no answer is at hand is kept for a later lease, at most `MOST_OWED` of them.
   A new key whose first group is a canary gets no further lease until that is decided: it takes no room before it has
   paid. A connection of new keys has one lease in most cases anyway (room_shares.py, rule 3).
2. A canary is given only in place of a lease that the node would get now. Without an answer for the version that the
   node holds the node gets that lease, and its group is scored whole. So no lease comes later than without canaries.
3. The answer is one that the scorer generated in idle time, else the accepted group of a proven node of another party,
   drawn at random. Each answer is used once: a set of twins has one lease of the kind "canary" (twin_sets.py).
4. Only exact classes have canaries, and no served task. In other classes each token is bet on in the scorer's pass
   already, and two honest nodes differ in one token of 40, after which nothing can be compared.
5. A canary counts neither in the room, nor in the window, nor in the share of new keys, and its group is never
   in the buffer. A trigger holds the last.
6. A group *agrees* if its tokens and turns are those of the answer, and its log-probabilities hold against the scorer's
   for the answer. It is accepted without a forward pass. Its near-ties are those of the answer, looked up in the
   answer's ledger entry. Any other group is scored like one of a normal lease, and judged by its own content alone.
7. An accepted canary is paid under the code `canary`, into the node's unvested account, until `VESTED_AFTER` further
   groups of the key are accepted (coordinator/accounts/vesting.py).
8. The Lease does not tell a canary from any other lease. A node that guesses right gains nothing: in both cases each
   token must be the right one.
9. An owner who has the answer already, by another of his keys, may copy it. The chance of that is his share of the
   answers at hand, which the status states for the party with most.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from echo2.coordinator.verification.near_ties import NearTieCount
from echo2.coordinator.verification.submitted_group import ClaimedRollout
from echo2.coordinator.verification.verification import Verdict, judge
from echo2.engines.engine import SampleScore
from echo2.protocol.leases import Rollout

MOST_OWED: Final = 8
_RANDOM_RANGE: Final = 1 << 32


class KnownRollout(NamedTuple):
    """One rollout of an answer: token ids, lengths of the turns, and the scorer's log-probability of each sampled
    token."""

    tokens: list[int] | NDArray[np.int32]
    turns: list[int]
    logprobs: NDArray[np.float32]


class KnownAnswer(NamedTuple):
    """The answer of a canary. `near_ties`: near ties of the group that it is."""

    rollouts: list[KnownRollout]
    near_ties: int


def verdict_by_answer(
    rollouts: Sequence[Rollout | ClaimedRollout],
    answer: KnownAnswer,
    *,
    audited: str = "canary",
) -> Verdict | None:
    """Return the verdict on a group that agrees with the answer (rule 6); None: it must be scored. `audited`: what its
    entry states."""
    known = answer.rollouts
    if len(rollouts) != len(known) or not all(map(_same_tokens, rollouts, known)):
        return None
    scores = [SampleScore(logprobs=one.logprobs, margins=np.zeros(len(one.logprobs), np.float32)) for one in known]
    verdict = judge(rollouts, scores)
    if not verdict.accepted or verdict.ties is None:
        return None
    return verdict._replace(ties=NearTieCount(verdict.ties.sampled, answer.near_ties), audited=audited)


def _same_tokens(rollout: Rollout | ClaimedRollout, known: KnownRollout) -> bool:
    return rollout.turns == known.turns and np.array_equal(rollout.tokens, known.tokens)


class CanaryShare:
    """The draws by which every node gets canaries (rule 1); in memory alone."""

    def __init__(self, share: float) -> None:
        """`share`: share of all leases; 0: there is no canary, for new keys neither."""
        self.share = share
        self._owed = 0

    def draw(self, entropy: bytes) -> bool:
        """Tell whether a lease of a node that is not new should be a canary. `entropy`: 4 random bytes."""
        if int.from_bytes(entropy) < self.share * _RANDOM_RANGE:
            self._owed = min(self._owed + 1, MOST_OWED)
        return self._owed > 0

    def on_grant(self) -> None:
        """Note that a canary was given after a draw."""
        self._owed = max(0, self._owed - 1)
