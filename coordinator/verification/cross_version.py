"""Tell whether tokens that are wrong under one version may be the right tokens of another version. Pure.

A node that loaded another version by mistake is no forger. To score a group under each of S other versions would cost S
passes and S changes of the scorer's weights, also for every fabricated group. One pass per version is enough.

Rules
1. Per version, one sample is remembered whose tokens were all right under it: of the samples of accepted groups that
   have at least `ENOUGH` sampled tokens, the shortest.
2. The first time that a group under a version is mostly wrong, the scorer scores one remembered sample under that
   version: that of the farthest other version, at most S steps away. The result holds for all groups under the version.
3. A token that is right under one version and wrong under another has changed at a step between them. So D steps
   change at most D / d times the share of tokens that d steps of the same size change.
4. Let D be the distance to the farthest published version, at most S steps. Where the share by rule 3 is at most
   `HALF_OF_POSITIONS`, tokens of another version would be right at half of the positions or more. A group that is wrong
   at 9 of 10 positions is then of no version. It is also of no version where no other version was published. While no
   share is known, because no sample could be scored, the group may be of another version.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from echo2.coordinator.verification.verification import LEAST_JUDGED_TOKENS
from echo2.engines.engine import Job
from echo2.engines.process.messages import PackedSample

HALF_OF_POSITIONS: Final = 0.5


class VerifiedSample(NamedTuple):
    """A sample whose tokens were all right under a version. `tokens`: the number of sampled tokens."""

    era: int
    version: int
    tokens: int
    job: Job
    sample: PackedSample


class CrossVersionCheck:
    """The verified sample of each version, and the share of tokens that changes per step. `staleness`: S."""

    def __init__(self, staleness: int) -> None:
        self._staleness = staleness
        self._known: dict[int, VerifiedSample] = {}
        """By version. The number alone identifies a version: numbers also rise across eras."""
        self._changed: dict[int, float] = {}
        """By version: the share of tokens that changes per step, starting there."""

    def wants_sample(self, version: int, tokens: int) -> bool:
        """Tell whether a sample with `tokens` sampled tokens should be remembered (rule 1)."""
        before = self._known.get(version)
        return tokens >= LEAST_JUDGED_TOKENS and (before is None or tokens < before.tokens)

    def remember(self, known: VerifiedSample) -> None:
        """Remember a verified sample, and forget versions that are out of reach."""
        self._known[known.version] = known
        oldest = max(self._known) - 2 * self._staleness
        self._known = {at: one for at, one in self._known.items() if at >= oldest}
        self._changed = {at: share for at, share in self._changed.items() if at >= oldest}

    def sample_to_probe(self, era: int, version: int) -> VerifiedSample | None:
        """Return the sample to score under a version (rule 2); None if there is none, or if one was already scored."""
        if version in self._changed:
            return None
        others = [one for one in self._known.values() if one.era == era and self._steps(one.version, version)]
        return max(others, key=lambda one: abs(one.version - version), default=None)

    def record(self, version: int, known: VerifiedSample, wrong: int) -> None:
        """Record that `wrong` tokens of the sample `known` are wrong under `version`."""
        self._changed[version] = wrong / known.tokens / abs(known.version - version)

    def possible(self, version: int, published: Iterable[int]) -> bool:
        """Tell whether tokens of another version may be mostly wrong under this one (rule 4). `published`: versions of
        its era."""
        steps = max((self._steps(other, version) for other in published), default=0)
        return steps > 0 and self._changed.get(version, 1.0) * steps > HALF_OF_POSITIONS

    def _steps(self, one: int, other: int) -> int:
        """Return the number of steps between two versions; 0 if there are more than S."""
        steps = abs(one - other)
        return steps if steps <= self._staleness else 0
