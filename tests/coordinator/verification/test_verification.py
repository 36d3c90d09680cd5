"""T0 by a table of false groups; T1 and T2 by the scorer's values for honest and dishonest nodes."""

import struct
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from echo2.coordinator.verification import verification
from echo2.coordinator.verification.verification import (
    EXACT_THRESHOLDS,
    GroupFault,
    check,
    check_turn,
    close_choices_allowed,
    judge,
)
from echo2.engines.engine import SampleScore
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import TaskReference
from echo2.protocol.leases import Lease, Rollout, Segment, Submission
from echo2.protocol.refusals import REASONS
from tests.support.group_world import ALICE, RUN, SPEC, T0, TASKS, TEXT, World, group, honest_scores, rollout, root_of

LEASE = Lease(
    id=b"L" * 16,
    node=b"N" * 32,
    nonce=b"n" * 16,
    task="reverse",
    task_version=1,
    index=5,
    prompt=TEXT.encode("1234>"),
    seeds=[b"a" * 16, b"b" * 16],
    limit=8,
    era=1,
    version=3,
    root=root_of(1, 3),
    sent=T0,
    expires=T0 + 1000,
)
GOOD = group(LEASE)


def with_second(**changes: Any) -> Submission:
    return group(LEASE, rollouts=[GOOD.rollouts[0], rollout(LEASE, "111", **changes)])


def logprobs(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def segment(**changes: Any) -> Segment:
    fields: dict[str, Any] = {"version": 3, "root": root_of(1, 3), "first": 0}
    return Segment(**(fields | changes))


LIES: dict[str, tuple[Submission, str, str]] = {
    "an era that is not the lease's": (group(LEASE, era=2), "version-lie", "era 2"),
    "a version that is not the lease's": (group(LEASE, version=4), "version-lie", "version 4"),
    "weights that are not the lease's": (group(LEASE, root=bytes(32)), "version-lie", "other weights"),
    "a sample too few": (group(LEASE, ["1"]), "incomplete", "1 came"),
    "a sample too many": (group(LEASE, ["1", "2", "3"]), "incomplete", "3 came"),
    "no samples": (group(LEASE, rollouts=[]), "incomplete", "0 came"),
    "no tokens": (with_second(tokens=[], turns=[]), "turns", "Sample 1: there is no token"),
    "turns that do not add up": (with_second(turns=[3]), "turns", "do not add up"),
    "an empty turn": (with_second(turns=[4, 0, 0]), "turns", "do not add up"),
    "a given turn at the end": (with_second(turns=[3, 1]), "turns", "not a sampled one"),
    "more sampled tokens than the limit": (with_second(tokens=[5] * 9, turns=[9]), "turns", "9 sampled tokens"),
    "an endless environment": (
        with_second(tokens=[5, *[6] * 16385, 1], turns=[1, 16385, 1]),
        "turns",
        "16385 given tokens",
    ),
    "a token outside the vocabulary": (with_second(tokens=[64, 1], turns=[2]), "tokens", "no token 64"),
    "tokens after the end": (with_second(tokens=[5, 1, 5, 1], turns=[4]), "end", "follow the end"),
    "no end before the limit": (with_second(tokens=[5, 5], turns=[2]), "end", "without end-of-sequence"),
    "a first turn without end": (with_second(tokens=[5, 6, 1], turns=[1, 1, 1]), "end", "without end-of-sequence"),
    "a turn after the limit": (
        with_second(tokens=[5] * 7 + [1, 6, 1], turns=[8, 1, 1]),
        "turns",
        "9 sampled tokens",
    ),
    "two segments": (with_second(segments=[segment(), segment(first=2)]), "segments", "one version"),
    "a segment of another version": (with_second(segments=[segment(version=2)]), "segments", "one version"),
    "a segment of other weights": (with_second(segments=[segment(root=bytes(32))]), "segments", "one version"),
    "a segment that starts late": (with_second(segments=[segment(first=1)]), "segments", "one version"),
    "log-probabilities too few": (with_second(logprobs=logprobs(-1.0)), "logprobs", "4 bytes"),
    "log-probabilities for given tokens too": (
        with_second(tokens=[5, 1, 6, 5, 1], turns=[2, 1, 2], logprobs=logprobs(*[-1.0] * 5)),
        "logprobs",
        "20 bytes",
    ),
    "half a float": (with_second(logprobs=b"\x00" * 15), "logprobs", "15 bytes"),
    "a positive log-probability": (with_second(logprobs=logprobs(-1, -1, 0.1, -1)), "logprobs", "sampled token 2"),
    "not a number": (with_second(logprobs=logprobs(-1, float("nan"), -1, -1)), "logprobs", "sampled token 1"),
    "minus infinity": (with_second(logprobs=logprobs(float("-inf"), -1, -1, -1)), "logprobs", "-inf"),
}


def test_an_honest_group_passes() -> None:
    assert verification.check(GOOD, LEASE, SPEC) is None
    cut = with_second(tokens=[5] * 8, turns=[8], logprobs=logprobs(*[-1.0] * 8))
    assert verification.check(cut, LEASE, SPEC) is None


@pytest.mark.parametrize(("submission", "code", "said"), LIES.values(), ids=LIES.keys())
def test_a_lie_is_refused_by_name(submission: Submission, code: str, said: str) -> None:
    fault = verification.check(submission, LEASE, SPEC)
    assert fault.code == code
    assert said in fault.sentence


@pytest.mark.parametrize(("submission", "code", "said"), LIES.values(), ids=LIES.keys())
def test_a_lie_about_a_lease_ends_it_with_a_receipt(world: World, submission: Submission, code: str, said: str) -> None:
    world.group_service.accounts.remark(ALICE, "node.vouched", "a new key's ends: test_coordinator_ends.py", world.now)
    lease = world.lease()

    def mine(value: Any) -> Any:
        """Return the false group of a row of the table, for this lease."""
        if isinstance(value, Segment) and value.version == 3:
            return Segment(version=0, root=lease.root if value.root == LEASE.root else value.root, first=value.first)
        return value

    rollouts = [msgspec.structs.replace(r, segments=[mine(s) for s in r.segments]) for r in submission.rollouts]
    told = msgspec.structs.replace(
        submission,
        lease=lease.id,
        rollouts=rollouts,
        version=0 if submission.version == 3 else submission.version,
        root=lease.root if submission.root == LEASE.root else submission.root,
    )
    receipt = world.refused(told)
    assert (receipt.code, receipt.weight, receipt.trainable) == (code, 0, False)
    assert receipt.reason
    (entry,) = (one for one in world.group_service.ledger.entries() if one.key == f"lease:{lease.id.hex()}")
    assert (entry.seq, entry.hash, entry.postings, entry.kind) == (
        receipt.entry,
        receipt.entry_hash,
        (),
        "lease.refused",
    )
    assert world.submit(told) == b""


def test_each_of_several_ends_ends_a_turn_and_none_stands_inside_one() -> None:
    several = msgspec.structs.replace(SPEC, tasks=[msgspec.structs.replace(SPEC.tasks[0], other_ends=[6])])
    ended = with_second(tokens=[5, 6], turns=[2], logprobs=logprobs(-1, -1))
    inside = with_second(tokens=[5, 6, 1], turns=[3], logprobs=logprobs(-1, -1, -1))
    assert check(ended, LEASE, several) is None
    assert check_turn([5, 6], 0, LEASE, several, 1) is None
    fault = check(inside, LEASE, several)
    assert (fault.code, "follow the end" in fault.sentence) == ("end", True)
    assert check_turn([5, 6, 1], 0, LEASE, several, 1) == fault
    assert check(inside, LEASE, SPEC) is None, "a run with one end samples on"
    assert check(ended, LEASE, SPEC) is not None


def dealt(tokens: list[int], turns: list[int]) -> GroupFault | None:
    """Check a group of an opened task whose second rollout is this."""
    spec = msgspec.structs.replace(SPEC, tasks=[TaskReference(name="reverse", version=1, kind="opened")])
    sampled = sum(turns[0::2])
    first = rollout(LEASE, "111", tokens=[9, 8, 5, 1], turns=[0, 2, 2], logprobs=logprobs(-1.0, -1.0))
    second = rollout(LEASE, "111", tokens=tokens, turns=turns, logprobs=logprobs(*[-1.0] * sampled))
    return check(group(LEASE, rollouts=[first, second]), LEASE, spec)


@pytest.mark.parametrize(
    ("tokens", "turns", "said"),
    {
        "opened, then sampled": ([9, 5, 1], [0, 1, 2], ""),
        "three turns": ([9, 5, 1, 8, 5, 1], [0, 1, 2, 1, 2], ""),
        "not opened, as the environment failed": ([], [0], ""),
        "sampled tokens first": ([5, 1], [2], "its first turn has sampled tokens"),
        "no turns": ([], [], "its first turn has sampled tokens"),
        "opened with nothing": ([5, 1], [0, 0, 2], "do not add up"),
        "opened, and nothing sampled": ([9], [0, 1], "not a sampled one"),
        "a second empty turn": ([9, 8], [0, 1, 0, 1, 0], "do not add up"),
        "tokens that no turn has": ([9], [0], "do not add up"),
        "given tokens that the model lacks": ([99, 5, 1], [0, 1, 2], "no token 99"),
        "an end inside a sampled turn": ([9, 1, 5, 1], [0, 1, 3], "follow the end"),
        "more than the limit": ([9, *[5] * 9], [0, 1, 9], "9 sampled tokens"),
    }.values(),
)
def test_an_opened_rollout_begins_with_a_turn_of_no_sampled_tokens(
    tokens: list[int], turns: list[int], said: str
) -> None:
    fault = dealt(tokens, turns)
    assert said in fault.sentence if fault is not None and said else (fault is None and not said)


def test_a_rollout_without_a_sampled_token_proves_nothing() -> None:
    empty = rollout(LEASE, "1", tokens=[], turns=[0], logprobs=b"")
    scores = [honest_scores(GOOD)[0], SampleScore(logprobs=[], margins=[])]
    verdict = judge([GOOD.rollouts[0], empty], scores)
    assert verdict.accepted
    assert verdict.behaviour[1] == b""


def test_a_transcript_that_cannot_be_is_refused() -> None:
    lease = msgspec.structs.replace(LEASE, task="guess", index=0, limit=8)
    game = TASKS["guess", 1].episode("train", 0, TEXT)
    wrong = [*TEXT.encode("zz"), 1]
    assert game.reply(wrong) is None
    given = TEXT.encode("lower>")
    tokens = [*wrong, *given, *wrong]
    lie = rollout(lease, "", tokens=tokens, turns=[3, len(given), 3], logprobs=logprobs(*[-1.0] * 6))
    submission = group(lease, rollouts=[rollout(lease, "zz"), lie])
    assert verification.check(submission, lease, SPEC) is None
    fault = verification.rewards(submission, lease, TASKS["guess", 1], TEXT)
    assert fault.code == "transcript"
    assert fault.sentence.startswith("Sample 1: ")


def test_t0_takes_under_a_millisecond_a_rollout() -> None:
    lease = msgspec.structs.replace(LEASE, limit=1024, seeds=[bytes(16)] * 8)
    long = rollout(lease, "", tokens=[5] * 1023 + [1], turns=[1024], logprobs=logprobs(*[-1.0] * 1024))
    submission = group(lease, rollouts=[long] * 8)
    took = []
    for _ in range(5):
        start = time.process_time()
        assert verification.check(submission, lease, SPEC) is None
        took.append(time.process_time() - start)
    assert min(took) / 8 < 1e-3


def bent(change: Callable[[list[SampleScore]], None], rollouts: list[Rollout]) -> list[SampleScore]:
    scores = honest_scores(group(LEASE, rollouts=rollouts))
    change(scores)
    return scores


def test_an_honest_group_is_accepted_with_the_scorers_own_values() -> None:
    scores = honest_scores(GOOD)
    scores[1].logprobs[2] -= 4e-5
    scores[1].margins[2] = 4e-5
    verdict = judge(GOOD.rollouts, scores)
    assert verdict.accepted
    assert verdict.behaviour == [struct.pack(f"<{len(s.logprobs)}f", *s.logprobs) for s in scores]


def a_better_token(scores: list[SampleScore]) -> None:
    scores[1].margins[3] = 6e-4


def a_drifting_token(scores: list[SampleScore]) -> None:
    scores[0].logprobs[2] = -0.5011


def a_token_that_cannot_be(scores: list[SampleScore]) -> None:
    scores[0].logprobs[2] = float("-inf")


def a_drifting_sample(scores: list[SampleScore]) -> None:
    scores[1].logprobs[:] = [-0.5002] * 4


def chosen_by_a_hair(scores: list[SampleScore]) -> None:
    for score in scores:
        score.margins[:] = [4e-4] * 4


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (a_better_token, "seeded-choice", "Sample 1, sampled token 3: the seeded choice is another token"),
        (a_drifting_token, "drift", "Sample 0, sampled token 2"),
        (a_token_that_cannot_be, "drift", "off by inf"),
        (a_drifting_sample, "drift-median", "Sample 1"),
        (chosen_by_a_hair, "close-choices", "Of 8 sampled tokens 8"),
    ],
)
def test_a_form_that_no_honest_node_submits_is_refused(
    change: Callable[[list[SampleScore]], None], code: str, said: str
) -> None:
    verdict = judge(GOOD.rollouts, bent(change, list(GOOD.rollouts)))
    assert not verdict.accepted
    assert verdict.code == code
    assert said in verdict.reason


def test_one_close_choice_more_than_an_honest_group_may_have_refuses_a_group() -> None:
    most = close_choices_allowed(8)
    for count, code in ((most, "ok"), (most + 1, "close-choices")):
        scores = honest_scores(GOOD)
        for place in range(count):
            scores[place % 2].margins[place // 2] = 4e-4
        assert judge(GOOD.rollouts, scores).code == code


def test_the_scorers_own_fault_is_not_the_nodes() -> None:
    few, short = honest_scores(GOOD)[:1], [SampleScore(logprobs=[-0.5], margins=[0.0])] * 2
    blind, deaf = honest_scores(GOOD), honest_scores(GOOD)
    blind[0].margins[0] = deaf[0].logprobs[0] = float("nan")
    for scores in (few, short, blind, deaf):
        verdict = judge(GOOD.rollouts, scores)
        assert (verdict.code, verdict.behaviour) == ("not-scorable", None)
        assert REASONS[verdict.code].fault == "operator"
        assert "the scorer" in verdict.reason


def test_close_choices_allowed_leave_an_honest_group_alone() -> None:
    assert close_choices_allowed(0) == 0
    assert close_choices_allowed(64) == 2
    assert close_choices_allowed(8 * 64) == 3
    assert close_choices_allowed(16 * 1024) == 6
    assert close_choices_allowed(1000, msgspec.structs.replace(EXACT_THRESHOLDS, close_rate=0.0)) == 0


def test_a_submission_of_the_most_tokens_fits_the_limit() -> None:
    spec = msgspec.structs.replace(SPEC, run=RUN, tasks=[TaskReference(name="reverse", version=1)])
    most = spec.limit + verification.MOST_GIVEN
    full = Rollout(
        tokens=[(1 << 31) - 1] * most,
        turns=[1] * 1024,
        logprobs=bytes(4 * spec.limit),
        segments=[Segment(version=(1 << 53) - 1, root=bytes(32), first=0)] * 2,
    )
    assert len(encode(group(LEASE, rollouts=[full] * spec.group_size))) <= verification.submission_limit(spec)
