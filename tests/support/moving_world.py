"""A run whose nodes report their tokens so far: a `TwinWorld` with `leases.move`."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echo2.coordinator.leases.kinds.moving import REPORT_EVERY, least_between
from echo2.coordinator.metrics import run_metrics
from echo2.coordinator.metrics.run_metrics import GroupCounts
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.coordinator.verification.verification import Verdict, judge
from echo2.engines.engine import SampleScore
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease, Submission
from echo2.protocol.partial_groups import PartialRequest, PartialResponse, PartialSample
from echo2.protocol.requests import Refusal
from tests.support.group_world import SPEC, group, honest_scores
from tests.support.twin_world import HOMES, TwinWorld

LEAST_BETWEEN = least_between(REPORT_EVERY)
KNOWN = 12
"""Groups that make a key known, and more than lifetimes are measured by."""


def part(tokens: Sequence[int], first: int = 0) -> PartialSample:
    """Return the next tokens of a sample, with the log-probabilities of `honest_scores`."""
    logprobs = struct.pack(f"<{len(tokens)}f", *[-0.5] * len(tokens))
    return PartialSample(first=first, tokens=list(tokens), logprobs=logprobs)


class MovingWorld(TwinWorld):
    """Every request says that its engine can tell tokens so far, unless a test changes it."""

    def __init__(self, folder: Path, **terms: Any) -> None:
        spec = terms.pop("spec", SPEC)
        given = {"spec": spec, "move": True, "least_ms": 180_000, "first_ms": 180_000}
        super().__init__(folder, **(given | terms))

    def ask(self, version: int = 0, *, era: int = 1, **changes: Any) -> Any:
        return super().ask(version, era=era, **({"begun": True} | changes))

    def report(
        self, lease: Lease, *tokens: Sequence[int], firsts: Sequence[int] = (), node: bytes | None = None
    ) -> PartialResponse | Refusal:
        """Report tokens of each sample of a lease."""
        firsts = firsts or [0] * len(tokens)
        samples = [part(one, first) for one, first in zip(tokens, firsts, strict=True)]
        data = encode(PartialRequest(lease=lease.id, samples=samples))
        return self.group_service.reports.report(node or lease.node, data, self.now)

    def reported(self, node: bytes, *tokens: Sequence[int], **changes: Any) -> Lease:
        """Give a node a lease, and report these tokens of its samples."""
        lease = self.given(node, **changes)
        self.now += LEAST_BETWEEN
        answer = self.report(lease, *tokens)
        assert isinstance(answer, PartialResponse), answer
        return lease

    def lost(self, node: bytes, *tokens: Sequence[int]) -> Lease:
        """Let a node report these tokens, and its lease expire."""
        lease = self.reported(node, *tokens)
        self.expire(lease)
        return lease

    def expire(self, lease: Lease) -> None:
        """Let a lease's time pass, and end it."""
        self.now = max(self.now, lease.expires + 1)
        self.group_service.tick(self.now)

    def verify(self, scores: Sequence[SampleScore] | None = None) -> Undecided:
        """Let the scorer decide the tokens of the one lease that waits."""
        (waiting,) = self.group_service.undecided(10)
        given = list(scores) if scores is not None else honest_scores_of(waiting)
        self.group_service.decide(waiting, judge(waiting.submission.rollouts, given), self.now)
        return waiting

    def finish(self, lease: Lease, texts: Sequence[str] = ("333", "444")) -> Submission:
        """Return the whole group of a lease: what it gives, and these texts behind."""
        whole = group(lease, texts)
        rollouts = []
        for begun, one in zip(lease.begun, whole.rollouts, strict=True):
            tokens = [*begun, *one.tokens][: lease.limit]
            logprobs = struct.pack(f"<{len(tokens)}f", *[0.0] * len(begun), *[-0.5] * (len(tokens) - len(begun)))
            rollouts.append(type(one)(tokens=tokens, turns=[len(tokens)], logprobs=logprobs, segments=one.segments))
        return Submission(lease=lease.id, era=lease.era, version=lease.version, root=lease.root, rollouts=rollouts)

    def counts(self) -> GroupCounts:
        """Return the counts of the page."""
        return run_metrics.counts(self.group_service.database, self.now)

    def home(self, node: bytes) -> Origin:
        """Return where a node's requests come from."""
        return HOMES.get(node) or Origin(node.hex()[:8], "10.9.9.0/24")

    def verdict_of(self, waiting: Undecided) -> Verdict:
        """Return the verdict on honest tokens."""
        return judge(waiting.submission.rollouts, honest_scores_of(waiting), begun=waiting.lease.begun)

    def decide_whole(self) -> Any:
        """Decide the one group that waits as the scorer does, with what its lease gives left out of the judgement."""
        (waiting,) = self.group_service.undecided(10)
        return self.group_service.decide(waiting, self.verdict_of(waiting), self.now)


def honest_scores_of(waiting: Undecided) -> list[SampleScore]:
    """Return the scores of an honest scorer for honest tokens."""
    return honest_scores(waiting.submission)  # type: ignore[arg-type]
