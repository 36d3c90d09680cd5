"""Whether tokens that are wrong under one version may be the right ones of another version. Pure.

A node that held another version by mistake is no forger. To score its group under each of the S others would cost S
passes, and S changes of the scorer's weights, for every made-up group. One pass for each version tells enough.

Rules
1. Of each version one sample is remembered whose tokens were all right under it: the shortest one of the accepted
   groups with at least `ENOUGH` sampled tokens.
2. At the first group under a version that is mostly wrong, the scorer looks at one such sample under that version: the
   one of the farthest other version, at most S steps away. Its result holds for all groups under that version.
3. A token that is right under one version and wrong under another has changed at a step between them. So D steps
   change at most D / d times the share of tokens that d steps of like size change.
4. Take D for the farthest version published, at most S steps away. Where that share is at most `HALF`, tokens of
   another version would be right at half of the positions: a group that is wrong at 9 of 10 is of no version. It is
   also of no version where no other one was published. Where no sample is remembered it may be of another version.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from coordinator.rollouts.verification import ENOUGH
from engines.engine import Job
from engines.messages import PackedSample

HALF: Final = 0.5


class VerifiedSample(NamedTuple):
    """A sample whose tokens were all right under a version. `tokens`: sampled ones."""

    era: int
    version: int
    tokens: int
    job: Job
    sample: PackedSample


class CrossVersionCheck:
    """Samples of the last versions. `staleness`: S."""

    def __init__(self, staleness: int) -> None:
        self._staleness = staleness
        self._known: dict[int, VerifiedSample] = {}
        """By version: its number alone names it, numbers rise over eras too."""
        self._changed: dict[int, float] = {}
        """By version, the share of tokens that changes in one step from there."""

    def wants_sample(self, version: int, tokens: int) -> bool:
        """Say whether a sample of so many sampled tokens is to be remembered (rule 1)."""
        before = self._known.get(version)
        return tokens >= ENOUGH and (before is None or tokens < before.tokens)

    def remember(self, known: VerifiedSample) -> None:
        """Remember a sample that was right, and forget versions that are out of reach."""
        self._known[known.version] = known
        oldest = max(self._known) - 2 * self._staleness
        self._known = {at: one for at, one in self._known.items() if at >= oldest}
        self._changed = {at: share for at, share in self._changed.items() if at >= oldest}

    def sample_to_probe(self, era: int, version: int) -> VerifiedSample | None:
        """Return the sample to look at under a version (rule 2), None where there is none or one was looked at."""
        if version in self._changed:
            return None
        others = [one for one in self._known.values() if one.era == era and self._steps(one.version, version)]
        return max(others, key=lambda one: abs(one.version - version), default=None)

    def record(self, version: int, known: VerifiedSample, wrong: int) -> None:
        """Note how many tokens of a sample are wrong under a version."""
        self._changed[version] = wrong / known.tokens / abs(known.version - version)

    def possible(self, version: int, published: Iterable[int]) -> bool:
        """Say whether tokens of another version may be mostly wrong under this one (rule 4). `published`: versions of
        its era."""
        steps = max((self._steps(other, version) for other in published), default=0)
        return steps > 0 and self._changed.get(version, 1.0) * steps > HALF

    def _steps(self, one: int, other: int) -> int:
        """Return how many steps lie between two versions, 0 where it is more than S."""
        steps = abs(one - other)
        return steps if steps <= self._staleness else 0
