"""Verify a group with the scorer: all samples at once, or one sample first.

Rules
1. A group of a known or proven key without strikes is scored whole, in one pass.
2. Of a group whose key is new, has a strike or is suspended, one sample is scored first. The sample is drawn
   (`GroupService.draw_first_sample`) when the scorer comes to the group, so that a forger cannot know it. A proof
   against it ends the check. Otherwise the other samples are scored together: only the prompt is computed twice.
3. A group that was received before its key was suspended is judged by its own content alone, as
   coordinator/verdicts/verdicts.py says. Groups that come later are not received
   (coordinator/submissions/request_handler.py).
4. A group whose lease names a Calibration is not judged here: its tokens are compared with the scorer's, and the
   verdict's transaction bets on them. If the first sample alone suffices for a refusal, the others are not scored.
   A token beyond the bound refuses the group (coordinator/verification/evidence.py, rule 11).
   The bytes of the version that the lease asks for are compared first: a node without them was not at work.
5. A good group of such a class may be passed again with the version before loaded (`pass_before`): its tokens then
   decide between the two versions (coordinator/verification/version_pairs.py).
6. Where a group is mostly wrong, `CrossVersionCheck` tells whether its tokens may be of another version. That
   takes at most one further pass per version.
7. A rollout that the environment failed to open has no sampled token: nothing of it is scored.
8. A group of a 16-bit class may be scored in TF32, unless the settings say float32; an exact one never.

The caller loads the group's version into the scorer and keeps it there until `verify` returns, and the version before
for `pass_before`. The scorer's errors
(coordinator/verification/scorer.py) are raised unchanged.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.coordinator.verification.cross_version import CrossVersionCheck, VerifiedSample
from echo2.coordinator.verification.evidence import NodeEvidence, Tables, exceeding, suffices
from echo2.coordinator.verification.open_classes import OpenClasses
from echo2.coordinator.verification.scorer import Scorer
from echo2.coordinator.verification.token_evidence import Incomparable, TokenArray
from echo2.coordinator.verification.verification import (
    LEAST_JUDGED_TOKENS,
    Verdict,
    compare_rollout,
    find_fault,
    judge,
    mostly_wrong,
    right_tokens,
    sampled_tokens,
    wrong_tokens,
)
from echo2.coordinator.verification.version_pairs import count_versions
from echo2.engines.engine import Job, SampleScore
from echo2.engines.process.messages import PackedSample, float_bytes
from echo2.engines.registry import in_16_bits
from echo2.protocol.authority import PLAIN_TEMPERATURE
from echo2.protocol.leases import Lease
from echo2.protocol.refusals import sentence
from echo2.runtime.child import ChildDied, ChildError
from echo2.tasks.turn_ends import Ends
from echo2.weights.errors import BadSnapshot


class EvidenceSource(NamedTuple):
    """The values that the check of a class that is not exact needs: `classes`, and `against`, the evidence against a
    key. `shown`: returns the hash by which the bytes are shown that a lease asks for (weights/shown_ranges.py), of the
    version that the scorer has loaded. May raise `OSError`, `BadSnapshot`."""

    classes: OpenClasses
    against: Callable[[bytes], NodeEvidence]
    shown: Callable[[bytes], Awaitable[bytes]]


class GroupVerifier:
    """The verification of groups by a scorer.

    `ends`: the tokens that end a turn. `staleness`: S. `published`: returns the versions of an era that nodes may
    have."""

    def __init__(
        self,
        scorer: Scorer,
        *,
        ends: Ends,
        staleness: int,
        published: Callable[[int], Iterable[int]],
        evidence: EvidenceSource | None = None,
        temperature: int = PLAIN_TEMPERATURE,
        tf32: bool = False,
    ) -> None:
        """`evidence`: evidence of the classes that are not exact; None: their groups cannot be scored. `temperature`:
        the run's, in thousandths. `tf32`: whether rule 8 allows TF32."""
        self._scorer = scorer
        self.ends = ends
        self._temperature = temperature
        self._published = published
        self._cross_version = CrossVersionCheck(staleness)
        self._measuring = asyncio.Lock()
        self._evidence = evidence
        self._tf32 = tf32

    async def verify(self, group: Undecided, first: int | None) -> Verdict:
        """Score a group, and judge it. `first`: the sample to score alone first; None: all at once (rules 1 and 2)."""
        rollouts = group.submission.rollouts
        scores: list[SampleScore | None] = [None] * len(rollouts)
        if group.lease.calibration is not None:
            return await self._compare(group, group.lease.calibration, first)
        if first is not None:
            await self._fill(group, scores, [first])
        if first is None or find_fault(rollouts, scores) is None:
            await self._fill(group, scores, [number for number, score in enumerate(scores) if score is None])
        verdict = judge(rollouts, scores)
        if verdict.accepted:
            self._remember(group)
        elif mostly_wrong(*wrong_tokens(scores)) and not await self._possible_elsewhere(group):
            return judge(rollouts, scores, other_version_possible=False)
        return verdict

    async def _compare(self, group: Undecided, calibration: bytes, first: int | None) -> Verdict:
        """Compare a group's tokens with the scorer's pass (rule 4)."""
        tables = None if self._evidence is None else self._evidence.classes.tables(calibration)
        if tables is None:
            return _unscorable("its Calibration is not in the run folder")
        fault = await self._other_weights(group)
        if fault is not None:
            return fault
        rollouts, compared = group.submission.rollouts, dict[int, TokenArray]()
        scores: list[SampleScore | None] = [None] * len(rollouts)
        parts = [[first]] if first is not None else []
        for numbers in [*parts, [number for number in range(len(rollouts)) if number != first]]:
            await self._fill(group, scores, numbers)
            try:
                known = {number: score for number in numbers if (score := scores[number]) is not None}
                compared |= {number: compare_rollout(rollouts[number], known[number], self.ends) for number in known}
            except Incomparable as error:
                return _unscorable(str(error))
            for number in known:
                for position in np.flatnonzero(exceeding(compared[number], tables)).tolist():
                    return _beyond(compared, number, position, float(known[number].margins[position]))
            if len(compared) < len(rollouts) and self._suffices(group, compared, tables):
                return Verdict("evidence", sentence("evidence"), None, compared)
        behaviour = [float_bytes(score.logprobs) for score in scores if score is not None]
        return Verdict("ok", "", behaviour, compared)

    async def pass_before(self, group: Undecided, verdict: Verdict) -> Verdict:
        """Score a good group under the version before (rule 5); return its verdict with the tokens that decide."""
        compared, numbers = verdict.compared or {}, range(len(group.submission.rollouts))
        before = await self._scores_of(group, numbers)
        try:
            versions = count_versions(zip((compared[number] for number in numbers), before, strict=True))
        except Incomparable:
            return verdict
        return verdict._replace(versions=versions)

    async def _other_weights(self, group: Undecided) -> Verdict | None:
        """Return the refusal of a group that shows other bytes than those of its version."""
        if not group.lease.ranges_asked or self._evidence is None:
            return None
        try:
            right = await self._evidence.shown(group.lease.id)
        except (OSError, BadSnapshot) as error:
            return _unscorable(f"the bytes that its lease asks for cannot be read ({error})")
        if group.submission.ranges == right:
            return None
        detail = "those that the submission shows are others"
        return Verdict("other-weights", sentence("other-weights", version=group.lease.version, detail=detail), None)

    def _suffices(self, group: Undecided, compared: dict[int, TokenArray], tables: Tables) -> bool:
        """Tell whether these samples are enough for a refusal, with the node's groups decided so far."""
        assert self._evidence is not None
        tokens = np.concatenate([compared[number] for number in sorted(compared)])
        return suffices(self._evidence.against(group.lease.node), tokens, tables)

    async def _fill(self, group: Undecided, scores: list[SampleScore | None], numbers: Sequence[int]) -> None:
        """Score these samples of a group, and store the results in `scores`."""
        for number, score in zip(numbers, await self._scores_of(group, numbers), strict=True):
            scores[number] = score

    async def _scores_of(self, group: Undecided, numbers: Sequence[int]) -> list[SampleScore]:
        """Return the scores of these samples. One without a sampled token (rule 7) has none to compute."""
        filled = [number for number in numbers if sampled_tokens(group.submission.rollouts[number])]
        samples = [_sample(group, number) for number in filled]
        scores = (
            dict(zip(filled, await self._score_samples(self._job(group, filled), samples), strict=True))
            if filled
            else {}
        )
        return [scores.get(number, SampleScore(logprobs=[], margins=[])) for number in numbers]

    async def _score_samples(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]:
        """Return a score per sample. Raises `ChildDied` also if the scorer died since the last pass: its successor has
        no weights loaded."""
        if self._scorer.loaded is None:
            raise ChildDied("scorer", 0, "it ended while a group was being scored")
        scores = await self._scorer.score(job, samples)
        if len(scores) != len(samples):
            raise ChildError("EngineError", f"it gave {len(scores)} scores for {len(samples)} samples")
        return scores

    async def _possible_elsewhere(self, group: Undecided) -> bool:
        """Tell whether tokens that are mostly wrong may be of another version (rule 6)."""
        era, version = group.lease.era, group.lease.version
        async with self._measuring:
            known = self._cross_version.sample_to_probe(era, version)
            if known is not None:
                (score,) = await self._score_samples(known.job, [known.sample])
                self._cross_version.record(version, known, known.tokens - right_tokens(score))
        return self._cross_version.possible(version, self._published(era))

    def _remember(self, group: Undecided) -> None:
        """Remember the shortest sample of an accepted group that is long enough."""
        lengths = [(sampled_tokens(one), number) for number, one in enumerate(group.submission.rollouts)]
        tokens, number = min((one for one in lengths if one[0] >= LEAST_JUDGED_TOKENS), default=(0, 0))
        if self._cross_version.wants_sample(group.lease.version, tokens):
            job, sample = self._job(group, [number]), _sample(group, number)
            # A copy: a view would keep the whole submission in memory.
            sample = msgspec.structs.replace(sample, packed=sample.packed.copy())
            self._cross_version.remember(VerifiedSample(group.lease.era, group.lease.version, tokens, job, sample))

    def _job(self, group: Undecided, numbers: Sequence[int]) -> Job:
        lease = group.lease
        return Job(
            prompt=lease.prompt,
            seeds=[lease.seeds[number] for number in numbers],
            limit=lease.limit,
            temperature=self._temperature,
            eos=self.ends[0],
            other_ends=self.ends[1:],
            task=lease.task,
            task_version=lease.task_version,
            split="train",
            index=lease.index,
            tf32=self._tf32 and in_16_bits(self._rounding_of(lease)),
        )

    def _rounding_of(self, lease: Lease) -> str:
        """Return the rounding of a lease's Calibration; empty: its class is exact."""
        if lease.calibration is None or self._evidence is None:
            return ""
        return self._evidence.classes.rounding(lease.calibration) or ""


def _beyond(compared: dict[int, TokenArray], sample: int, position: int, margin: float) -> Verdict:
    reason = sentence("seeded-choice", sample=sample, position=position, margin=margin)
    return Verdict("seeded-choice", reason, None, compared, sample=sample, position=position)


def _unscorable(detail: str) -> Verdict:
    return Verdict("not-scorable", sentence("not-scorable", detail=detail), None)


def _sample(group: Undecided, number: int) -> PackedSample:
    rollout = group.submission.rollouts[number]
    return PackedSample(packed=rollout.packed, turns=rollout.turns, logprobs=rollout.logprobs)
