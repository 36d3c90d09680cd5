"""Measure the check of a canary that agrees against the scorer's pass over the same group.

The check is the coordinator's own (coordinator/leases/kinds/canaries.py), from the bytes in run.sqlite: the answer's
stored submission and log-probabilities are decoded, and both groups compared. The pass is one call of the scorer's
process. Both are the shortest of `TIMES` calls, in wall time.
"""

import time
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.trust.machines import Generated
from echo2.coordinator.leases.kinds.canaries import verdict_by_answer
from echo2.coordinator.leases.kinds.canary_answers import answer_of_group
from echo2.coordinator.verification.submitted_group import decode_stored_group
from echo2.engines.process.messages import float_bytes, pack_samples
from echo2.engines.process.process import EngineProcess
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Rollout, Segment, Submission

TIMES: Final = 5
GROUPS: Final = 6
BAR: Final = 0.02


async def canary_check(scorer: EngineProcess, groups: Sequence[Generated]) -> Claim:
    """Measure `GROUPS` of these groups; return the claim on the sum of their times."""
    passes, checks, tokens = 0.0, 0.0, 0
    for group in groups[:GROUPS]:
        best, scores = float("inf"), await scorer.score(group.job, pack_samples(group.samples))
        for _ in range(TIMES):
            began = time.perf_counter()
            await scorer.score(group.job, pack_samples(group.samples))
            best = min(best, time.perf_counter() - began)
        passes += best
        behaviour = msgspec.msgpack.encode([float_bytes(one.logprobs) for one in scores])
        checks += _checked(_submission(group), behaviour)
        tokens += sum(sum(one.turns[0::2]) for one in group.samples)
    number = len(groups[:GROUPS])
    row = [number, tokens, 1_000 * passes / number, 1_000 * checks / number, checks / passes]
    bench.table(["groups", "sampled tokens", "pass, ms", "canary check, ms", "ratio"], [row])
    return Claim("check of a canary", checks / passes, "the scorer's pass over the same group", BAR, at_most=True)


def _submission(group: Generated) -> bytes:
    rollouts = [
        Rollout(
            tokens=one.tokens, turns=one.turns, logprobs=np.asarray(one.logprobs, "<f4").tobytes(),
            segments=[Segment(version=0, root=bytes(32), first=0)],
        )
        for one in group.samples
    ]  # fmt: skip
    return encode(Submission(lease=bytes(16), era=1, version=0, root=bytes(32), rollouts=rollouts))


def _checked(submission: bytes, behaviour: bytes) -> float:
    """Return the seconds of the shortest check. Raises ValueError if the group does not agree with itself."""
    best, facts = float("inf"), msgspec.msgpack.encode({"near_ties": 0})
    for _ in range(TIMES):
        group = decode_stored_group(submission)
        began = time.perf_counter()
        verdict = verdict_by_answer(group.rollouts, answer_of_group(submission, behaviour, facts))
        best = min(best, time.perf_counter() - began)
        if verdict is None:
            raise ValueError("a group does not agree with itself")
    return best
