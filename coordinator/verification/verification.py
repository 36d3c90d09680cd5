"""Verify that a group was generated as its lease says. Pure: no store, no clock, no GPU.

Rules
1. T0, `check`: structure against the lease and the RunSpec, at receipt, well under 1 ms per rollout. The signature of
   the request was verified before (coordinator/submissions/request_handler.py).
2. T0, `rewards`: the reward comes from the task's own replay of the transcript, never from the node. A failure of the
   task's code, or a reward that is not finite, is the operator's fault. If the whole transcript was checked before it,
   the rollout has no reward: it is judged and paid, but not learned from. Otherwise the group is refused
   (`not-scorable`).
   A single task has no replay: its rollouts have one turn (`check_single_turn`), and are rewarded after T1 and T2.
3. T1 + T2, `judge`: the scorer's teacher-forced pass is compared with the node's claims, under the exact version. A
   group may be refused before all samples are scored, but never accepted.
4. A group was *not generated* (`not-generated`) if at least `NOT_GENERATED_SHARE` of at least `LEAST_JUDGED_TOKENS`
   scored tokens are wrong by more than the margin, and they are not the tokens of another version either
   (coordinator/verification/cross_version.py).
5. One bad sample refuses the group. The reason names the sample and, where there is one, the position.
"""

import math
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from echo2.coordinator.environments.played_group import MOST_GIVEN
from echo2.coordinator.verification.near_ties import NearTieCount
from echo2.coordinator.verification.submitted_group import ClaimedRollout, SubmittedGroup
from echo2.coordinator.verification.token_evidence import Incomparable, TokenArray, compare_tokens
from echo2.coordinator.verification.version_pairs import VersionCount
from echo2.engines.engine import SampleScore
from echo2.engines.process.messages import float_bytes, floats
from echo2.protocol.authority import RunSpec
from echo2.protocol.leases import Lease, Rollout, Submission
from echo2.protocol.refusals import sentence
from echo2.protocol.task_kinds import OPENED_KIND
from echo2.tasks.task import (
    InvalidTranscript,
    Score,
    Task,
    TaskFault,
    Tokenizer,
    Transcript,
    begin_episode,
    replay,
    sampled_mask,
)
from echo2.tasks.turn_ends import SHORT_TURN_TOKENS, Ends, end_mask, fault_of_turn

LEAST_JUDGED_TOKENS = 32
"""The least number of scored tokens by which a group is judged as not generated."""
NOT_GENERATED_SHARE = 0.9
"""The least share of wrong tokens in a group that was not generated."""
Values = NDArray[np.float64]
_LOWEST_FLOAT32 = -3.4028234663852886e38  # the lowest finite float32


class GroupFault(NamedTuple):
    """The reason of a refusal: a code of protocol/refusals.py, and its sentence. `sample`, `position`: where it stands,
    if at one place: the sampled token of the sample; None: of the sample as a whole."""

    code: str
    sentence: str
    sample: int | None = None
    position: int | None = None


class ExactThresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds of an engine class, in nats.

    The defaults are for fp32 checked in fp32. Honest figures (measured on SmolLM2-135M): decode against re-scoring
    differs by 4e-6 in the mean and 4e-5 at most; no mismatch in 4,608 tokens. The nearest dishonest policy, one
    step of RL away, drifts by 7e-3 to 4e-2; llama.cpp in fp32 by 8e-4 in the mean.

    `margin`: a token beaten by more is proof: 12.5 x the honest maximum. `drift_most`: drift most of any token, 25 x
    the honest maximum, a seventh of one RL step. `drift_median`: drift median of a sample, 25 x the honest mean.
    `close_rate`: honest mismatches within the margin, per token: 0.5 % of tokens have a second choice within 0.01 nats,
    so noise of 4e-5 flips about 2e-5 of them. `close_chance`: how often an honest group may be refused for it.
    """

    margin: float = 5e-4
    drift_most: float = 1e-3
    drift_median: float = 1e-4
    close_rate: float = 2e-5
    close_chance: float = 1e-7


EXACT_THRESHOLDS = ExactThresholds()


class Verdict(NamedTuple):
    """The result of verification. `behaviour`: the scorer's log-probability of each sampled token, float32
    little-endian, per sample; None for a refused group. `compared`: the tokens of each scored sample where the class is
    not exact: the evidence against the node then decides (coordinator/verdicts/verdicts.py, rule 6). `ties`: the
    near-ties of a good group whose class is exact. `versions`: versions of a group that was passed a second time, under
    the version before (coordinator/verification/version_pairs.py). `audited`: "canary" of a canary that agreed with its
    answer (coordinator/leases/kinds/canaries.py), "rerun" of a group that agreed with another node's (audits.py);
    empty: by the pass alone. `sample`, `position`: the same as in `GroupFault`."""

    code: str
    reason: str
    behaviour: list[bytes] | None
    compared: dict[int, TokenArray] | None = None
    ties: NearTieCount | None = None
    versions: VersionCount | None = None
    audited: str = ""
    sample: int | None = None
    position: int | None = None

    @property
    def accepted(self) -> bool:
        """Tell whether the group is accepted."""
        return self.behaviour is not None


def submission_limit(spec: RunSpec) -> int:
    """Return the size in bytes of the largest submission that is read: up to 5 bytes per token id, 4 per
    log-probability, and the turns."""
    return spec.group_size * ((spec.limit + MOST_GIVEN) * 5 + spec.limit * 4 + 1024 * 5 + 1024) + 1024


def check(submission: Submission | SubmittedGroup, lease: Lease, spec: RunSpec) -> GroupFault | None:
    """Check the form of a submission against its lease and the run (T0). Return its first fault, or None."""
    if (submission.era, submission.version, submission.root) != (lease.era, lease.version, lease.root):
        detail: str | None = f"the group names era {submission.era} version {submission.version}"
        if (submission.era, submission.version) == (lease.era, lease.version):
            detail = "the group names other weights"
        return _fault("version-lie", era=lease.era, version=lease.version, detail=detail)
    if len(submission.rollouts) != len(lease.seeds):
        return _fault("incomplete", wanted=len(lease.seeds), got=len(submission.rollouts))
    if lease.ranges_asked and submission.ranges is None:
        return _fault("other-weights", version=lease.version, detail="the submission shows none")
    rollouts: Sequence[Rollout | ClaimedRollout] = submission.rollouts
    for number, rollout in enumerate(rollouts):
        for code, rule in FORM_RULES.items():
            detail = rule(rollout, lease, spec)
            if detail:
                return _fault(code, sample=number, detail=detail)
    return None


def _turns(rollout: Rollout | ClaimedRollout, lease: Lease, spec: RunSpec) -> str | None:
    turns, tokens = rollout.turns, len(rollout.tokens)
    if spec.kind_of(lease.task, lease.task_version) == OPENED_KIND:
        if turns[:1] != [0]:
            return "the environment opens the episode, and its first turn has sampled tokens"
        turns = turns[1:]
        if not turns and not tokens:
            return None  # the environment ended it before (`StepTable.compare`)
    elif not tokens:
        return "there is no token"
    if sum(turns) != tokens or not all(turns):
        return "turn lengths do not add up to the tokens"
    turns = rollout.turns
    if len(turns) % 2 == 0:
        return "the last turn is not a sampled one"
    sampled = sampled_tokens(rollout)
    if sampled > lease.limit:
        return f"{sampled} sampled tokens, the most is {lease.limit}"
    given = sum(turns) - sampled
    return f"{given} given tokens, the most is {MOST_GIVEN}" if given > MOST_GIVEN else None


def _tokens(rollout: Rollout | ClaimedRollout, lease: Lease, spec: RunSpec) -> str | None:
    tokens = rollout.tokens
    highest = max(tokens, default=0) if len(tokens) <= SHORT_TURN_TOKENS else int(np.max(tokens))
    return f"there is no token {highest} in a vocabulary of {spec.vocabulary}" if highest >= spec.vocabulary else None


def _end(rollout: Rollout | ClaimedRollout, lease: Lease, spec: RunSpec) -> str | None:
    start = sampled = 0
    tokens, ends = rollout.tokens, spec.ends
    if len(tokens) > SHORT_TURN_TOKENS:
        tokens = np.asarray(tokens)
    for number, length in enumerate(rollout.turns):
        part = tokens[start : start + length]
        start += length
        if number % 2 or not length:
            continue
        sampled += length
        if fault := fault_of_turn(part, ends, at_limit=sampled == lease.limit and start == len(tokens)):
            return fault
        if sampled == lease.limit and start != len(tokens):
            return "a turn follows the token limit"
    return None


def _logprobs(rollout: Rollout | ClaimedRollout, lease: Lease, spec: RunSpec) -> str | None:
    wanted = sampled_tokens(rollout)
    if len(rollout.logprobs) != 4 * wanted:
        return f"{len(rollout.logprobs)} bytes of log-probabilities for {wanted} sampled tokens"
    if wanted <= SHORT_TURN_TOKENS:  # quicker than the arrays below
        for value in struct.unpack(f"<{wanted}f", rollout.logprobs):
            if not _LOWEST_FLOAT32 <= value <= 0.0:
                break
        else:
            return None
    values = floats(rollout.logprobs)
    position = _first(~((values >= _LOWEST_FLOAT32) & (values <= 0.0)))
    return None if position is None else f"log-probability {values[position].item()} of sampled token {position}"


def _segments(rollout: Rollout | ClaimedRollout, lease: Lease, spec: RunSpec) -> str | None:
    first = rollout.segments[0]
    if len(rollout.segments) > 1 or (first.version, first.root, first.first) != (lease.version, lease.root, 0):
        return "its segments are not the lease's one version from its first token on"
    return None


FormRule = Callable[[Rollout | ClaimedRollout, Lease, RunSpec], str | None]
"""Returns the fault in the form of one rollout, in words; None: there is none."""
FORM_RULES: dict[str, FormRule] = {
    "turns": _turns,
    "tokens": _tokens,
    "end": _end,
    "segments": _segments,
    "logprobs": _logprobs,
}
"""T0: refusal code -> its rule, in the order in which a rollout is checked. A rule relies on those before it."""


def rewards(
    submission: Submission | SubmittedGroup, lease: Lease, task: Task, text: Tokenizer
) -> list[Score | TaskFault] | GroupFault:
    """Score each rollout by the task's own replay; in place of a score, the task's own fault at a valid transcript.
    Return a fault for an impossible one."""
    scores: list[Score | TaskFault] = []
    rollouts: Sequence[Rollout | ClaimedRollout] = submission.rollouts
    for number, rollout in enumerate(rollouts):
        try:
            scores.append(_score(rollout, lease, task, text))
        except InvalidTranscript as error:
            return _fault("transcript", sample=number, detail=str(error))
        except TaskFault as fault:
            if not fault.verified:
                return _fault("not-scorable", detail=f"{task.name} failed at sample {number}: {fault}")
            scores.append(fault)
    return scores


def check_single_turn(submission: Submission | SubmittedGroup) -> GroupFault | None:
    """Check that each rollout of a single task has one turn. Return the first fault, or None."""
    rollouts: Sequence[Rollout | ClaimedRollout] = submission.rollouts
    for number, rollout in enumerate(rollouts):
        if len(rollout.turns) > 1:
            return _fault("transcript", sample=number, detail="the episode was over after its first turn")
    return None


def check_turn(
    tokens: Sequence[int], before: int, lease: Lease, spec: RunSpec, sample: int, *, opens: bool = False
) -> GroupFault | None:
    """Check the form of a sampled turn of a served episode (T0), before the environment sees it. `before`: tokens that
    were sampled in earlier turns. `opens`: with this turn the environment opens the episode. Return its first fault,
    or None."""
    sampled = before + len(tokens)
    code, detail = "", ""
    if opens and tokens:
        code, detail = "turns", "the environment opens the episode, and its first turn has sampled tokens"
    elif opens:
        return None
    elif not tokens:
        code, detail = "turns", "there is no token"
    elif max(tokens) >= spec.vocabulary:
        code, detail = "tokens", f"there is no token {max(tokens)} in a vocabulary of {spec.vocabulary}"
    elif sampled > lease.limit:
        code, detail = "turns", f"{sampled} sampled tokens, the most is {lease.limit}"
    elif fault := fault_of_turn(np.asarray(tokens), spec.ends, at_limit=sampled == lease.limit):
        code, detail = "end", fault
    return _fault(code, sample=sample, detail=detail) if code else None


def _score(rollout: Rollout | ClaimedRollout, lease: Lease, task: Task, text: Tokenizer) -> Score:
    episode = begin_episode(task, "train", lease.index, text)
    return replay(episode, Transcript(rollout.tokens, rollout.turns), ends=text.ends, limit=lease.limit)


def judge(
    rollouts: Sequence[Rollout | ClaimedRollout],
    scores: Sequence[SampleScore | None],
    calibration: ExactThresholds = EXACT_THRESHOLDS,
    *,
    other_version_possible: bool = True,
) -> Verdict:
    """Judge a group by the scorer's values (T1 + T2).

    Values that are not numbers, or not of these rollouts, refuse it by the operator's fault. `scores`: None for a
    sample that was not scored. `other_version_possible`: whether its tokens may be right under another version. Raises
    ValueError if no scored sample is wrong and not all of them were scored."""
    fault = find_fault(rollouts, scores, calibration, other_version_possible=other_version_possible)
    if fault is not None:
        return Verdict(fault.code, fault.sentence, None, sample=fault.sample, position=fault.position)
    known = [score for score in scores if score is not None]
    if len(known) < len(scores):
        raise ValueError(f"only {len(known)} of {len(scores)} samples were scored, which is too few to accept a group")
    margins = [_values(score.margins) for score in known]
    close = [(number, int(position)) for number, one in enumerate(margins) for position in np.flatnonzero(one > 0)]
    tokens = sum(map(len, margins))
    most = close_choices_allowed(tokens, calibration)
    if len(close) > most:
        facts = {"count": len(close), "tokens": tokens, "most": most, "sample": close[0][0], "position": close[0][1]}
        fault = _fault("close-choices", **facts)
        return Verdict(fault.code, fault.sentence, None, sample=fault.sample, position=fault.position)
    ties = NearTieCount(tokens, len(close))
    return Verdict("ok", "", [float_bytes(score.logprobs) for score in known], ties=ties)


def find_fault(
    rollouts: Sequence[Rollout | ClaimedRollout],
    scores: Sequence[SampleScore | None],
    calibration: ExactThresholds = EXACT_THRESHOLDS,
    *,
    other_version_possible: bool = True,
) -> GroupFault | None:
    """Return the first fault that a scored sample proves, if any. `other_version_possible`: as in `judge`."""
    if len(scores) != len(rollouts):
        detail = f"the scorer gave {len(scores)} scores for {len(rollouts)} rollouts"
        return _fault("not-scorable", detail=detail)
    for number, score in enumerate(scores):
        fault = None if score is None else _against(number, rollouts[number], score, calibration)
        if fault is None:
            continue
        wrong, tokens = wrong_tokens(scores, calibration)
        if fault.code != "not-scorable" and not other_version_possible and mostly_wrong(wrong, tokens):
            return _fault("not-generated", tokens=tokens, count=wrong)
        return fault
    return None


def _against(
    number: int, rollout: Rollout | ClaimedRollout, score: SampleScore, calibration: ExactThresholds
) -> GroupFault | None:
    """Return the fault that the scorer's values show in one sample, if any."""
    claimed, ours, margins = floats(rollout.logprobs), _values(score.logprobs), _values(score.margins)
    if not len(claimed) == len(ours) == len(margins) or np.isnan(ours).any() or np.isnan(margins).any():
        detail = f"the scorer's values of sample {number} are not a number for each sampled token"
        return _fault("not-scorable", detail=detail)
    if not len(ours):  # the environment failed before the policy's first turn
        return None
    evidence = Evidence(claimed, ours, margins, np.abs(claimed - ours))
    for code, rule in SCORE_RULES.items():
        facts = rule(evidence, calibration)
        if facts is not None:
            return _fault(code, sample=number, **facts)
    return None


def wrong_tokens(
    scores: Sequence[SampleScore | None], calibration: ExactThresholds = EXACT_THRESHOLDS
) -> tuple[int, int]:
    """Return the number of tokens that are wrong by more than the margin, and that of all scored tokens."""
    margins = [_values(score.margins) for score in scores if score is not None]
    return sum(int((one > calibration.margin).sum()) for one in margins), sum(map(len, margins))


def right_tokens(score: SampleScore) -> int:
    """Count the tokens of a sample that are right within the margin. A margin that is not a number counts as wrong."""
    return int((_values(score.margins) <= EXACT_THRESHOLDS.margin).sum())


def mostly_wrong(wrong: int, tokens: int) -> bool:
    """Tell whether `wrong` of `tokens` scored tokens are too many for a group generated under its version."""
    return tokens >= LEAST_JUDGED_TOKENS and wrong >= NOT_GENERATED_SHARE * tokens


class Evidence(NamedTuple):
    """The claimed and the scored values of one sample, one value per sampled token, in nats.

    `claimed`, `ours`: log-probabilities by the node and by the scorer. `margins`: margins by how much the seeded choice
    beats the submitted token. `off`: difference of `claimed` and `ours`.
    """

    claimed: NDArray[np.float32]
    ours: Values
    margins: Values
    off: Values


Facts = dict[str, object]
ScoreRule = Callable[[Evidence, ExactThresholds], Facts | None]
"""Returns the facts for the refusal's sentence if the sample is wrong; None: it is right."""


def _wrong_choice(evidence: Evidence, calibration: ExactThresholds) -> Facts | None:
    position = _first(evidence.margins > calibration.margin)
    if position is None:
        return None
    return {"position": position, "margin": evidence.margins[position].item()}


def _drift(evidence: Evidence, calibration: ExactThresholds) -> Facts | None:
    position = _first(~(evidence.off <= calibration.drift_most))
    if position is None:
        return None
    return {"position": position, "off": evidence.off[position].item(), "most": calibration.drift_most}


def _drift_median(evidence: Evidence, calibration: ExactThresholds) -> Facts | None:
    within = np.count_nonzero(evidence.off <= calibration.drift_median)
    if 2 * within >= len(evidence.off):  # else the median is not needed, and counting is quicker
        return None
    return {"off": _median(evidence.off), "most": calibration.drift_median}


SCORE_RULES: dict[str, ScoreRule] = {
    "seeded-choice": _wrong_choice,
    "drift": _drift,
    "drift-median": _drift_median,
}
"""T1 and T2: refusal code -> its rule, in the order in which a sample is checked."""


def _values(values: Sequence[float] | NDArray[np.float32]) -> Values:
    return np.asarray(values, np.float64)


def _first(wrong: NDArray[np.bool_]) -> int | None:
    """Return the position of the first True."""
    return int(wrong.argmax()) if wrong.any() else None


def _median(values: Values) -> float:
    """Return the smallest value that at least half of the values do not exceed, like `quantile` in
    runtime/quantiles.py."""
    middle = (len(values) + 1) // 2 - 1
    return float(np.partition(values, middle)[middle])


def close_choices_allowed(tokens: int, calibration: ExactThresholds = EXACT_THRESHOLDS) -> int:
    """Return the least k for which an honest group has more than k close choices with a chance below `close_chance`, by
    the Poisson distribution."""
    rate = tokens * calibration.close_rate
    term = left = math.exp(-rate)
    k = 0
    while 1.0 - left > calibration.close_chance:
        k += 1
        term *= rate / k
        left += term
    return k


def compare_rollout(rollout: Rollout | ClaimedRollout, score: SampleScore, ends: Ends) -> TokenArray:
    """Compare the sampled tokens of a rollout with the scorer's values, for a class that is not exact. Raises
    `Incomparable`."""
    chosen = np.asarray(rollout.tokens, np.int32)[np.asarray(sampled_mask(rollout.turns), np.bool_)]
    values = [np.asarray(one, np.float32) for one in (score.logprobs, score.margins, score.gaps)]
    if any(len(one) != len(chosen) or not np.isfinite(one).all() for one in values):
        raise Incomparable("the scorer's values are not one finite number per sampled token")
    return compare_tokens(floats(rollout.logprobs), *values, ends=end_mask(chosen, ends), raising=False)


def sampled_tokens(rollout: Rollout | ClaimedRollout) -> int:
    """Count the tokens of a rollout that the policy sampled."""
    return sum(rollout.turns[0::2])


def _fault(code: str, **facts: object) -> GroupFault:
    places = (fact if isinstance(fact, int) else None for fact in (facts.get("sample"), facts.get("position")))
    return GroupFault(code, sentence(code, **facts), *places)
