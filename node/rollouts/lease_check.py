"""The check of a lease before this node works for it, and its conversion to a job and a submission. Pure.

This node works for a lease only if
1. the run's channel key signed it, for this node's key, in answer to this request (nonce);
2. it binds the version that the engine has loaded, by era, number and content root;
3. a. its task and task version are the RunSpec's, of a kind for which this build works;
   b. its group has the RunSpec's size and no seed twice;
   c. its limit is within the RunSpec's;
   d. its prompt is not empty and consists of the model's tokens;
   e. prompt and limit together are within the model's context, so a lease can demand neither endless work nor more
      memory than the model was built for;
4. it has not expired, by the coordinator's clock as the lease itself states it (`check_open`).
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from echo2.engines.engine import Job, Sample
from echo2.engines.process.versioned import LoadedVersion
from echo2.node.trust.trusted_set import Mismatch
from echo2.p2p.envelope import Verified
from echo2.p2p.errors import PeerFault, Stale
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import RunSpec
from echo2.protocol.group_weights import GroupLengths
from echo2.protocol.leases import Lease, LeaseRequest, Rollout, Segment, Submission
from echo2.protocol.task_kinds import ANSWERED_KINDS, OPENED_KIND, PLAYED_KINDS, PURE_KIND, SINGLE_KIND

MOST_GIVEN: Final = 1 << 14
"""Most tokens that an environment may give in one rollout."""


class BadLease(PeerFault):
    """A lease whose work is not within the RunSpec or the model (rule 3)."""


def check_lease(
    verified: Verified[Lease],
    *,
    ask: LeaseRequest,
    node: bytes,
    current: LoadedVersion,
    runspec: RunSpec,
    context: int | None = None,
) -> Lease:
    """Return the Lease if it passes rules 1 to 3; the caller has verified the signature. `context`: most tokens per
    sequence of the model; None: the model states no bound. Raises `Mismatch`, `BadLease`."""
    lease = verified.value
    if lease.node != node or lease.nonce != ask.nonce:
        raise Mismatch("the lease is for another node, or answers another request")
    if (lease.era, lease.version, lease.root) != (current.era, current.version, current.root):
        raise Mismatch(
            f"the lease is for version {lease.version}{' of another era' if lease.era != current.era else ''}, while "
            f"{current.version} is loaded and was requested"
        )
    if (kind := _kind_of(lease, runspec)) not in (PURE_KIND, *PLAYED_KINDS):
        raise BadLease(f"the lease is for task {lease.task!r} of kind {kind!r}, for which this build does not work")
    if len(lease.seeds) != runspec.group_size or len(set(lease.seeds)) != len(lease.seeds):
        raise BadLease(
            f"the lease has {len(lease.seeds)} seeds; the run's groups have {runspec.group_size} distinct ones"
        )
    if not 1 <= lease.limit <= runspec.limit:
        raise BadLease(f"the lease is for {lease.limit} tokens per rollout; the run's limit is {runspec.limit}")
    if not lease.prompt or max(lease.prompt) >= runspec.vocabulary:
        raise BadLease("the lease's prompt is empty, or has tokens that the model lacks")
    if context is not None and len(lease.prompt) + lease.limit > context:
        raise BadLease(
            f"the lease has {len(lease.prompt)} prompt tokens and allows {lease.limit} more; the model's context is "
            f"{context}"
        )
    return lease


def check_open(lease: Lease, now: int) -> None:
    """Check rule 4. `now`: ms on the coordinator's clock, corrected by `Lease.sent`. Raises `Stale`."""
    if now >= lease.expires:
        raise Stale("the lease has already expired")


def job_of(lease: Lease, runspec: RunSpec) -> Job:
    """Return the engine's job for a lease."""
    return Job(
        prompt=lease.prompt,
        seeds=lease.seeds,
        limit=lease.limit,
        eos=runspec.eos,
        other_ends=runspec.other_ends,
        temperature=runspec.temperature,
        task=lease.task,
        task_version=lease.task_version,
        split="train",
        index=lease.index,
        single_turn=_kind_of(lease, runspec) == SINGLE_KIND,
        served=lease.id if is_served(lease, runspec) else b"",
        opened=_kind_of(lease, runspec) == OPENED_KIND,
    )


def is_served(lease: Lease, runspec: RunSpec) -> bool:
    """Tell whether the coordinator's environment answers the turns of a lease. Raises `BadLease`."""
    return _kind_of(lease, runspec) in ANSWERED_KINDS


def check_given(given: Sequence[int], before: int, lease: Lease, runspec: RunSpec, context: int | None) -> None:
    """Check the environment's answer to a turn of a lease. `before`: tokens that it gave this rollout earlier.
    `context`: most tokens per sequence of the model; None: the model states no bound. Raises `Stale`: the group cannot
    go on."""
    total = before + len(given)
    if not given or max(given) >= runspec.vocabulary:
        raise Stale("the environment's answer is empty, or has tokens that the model lacks")
    if total > MOST_GIVEN or (context is not None and len(lease.prompt) + lease.limit + total > context):
        raise Stale(f"the environment gives {total} tokens, for which the model's context has no room")


def _kind_of(lease: Lease, runspec: RunSpec) -> str:
    """Return the kind of the lease's task. Raises `BadLease`."""
    kind = runspec.kind_of(lease.task, lease.task_version)
    if kind is None:
        raise BadLease(f"the lease is for task {lease.task!r} version {lease.task_version}, which is not the run's")
    return kind


def lengths_of(lease: Lease, samples: Sequence[Sample]) -> GroupLengths:
    """Return the lengths of a group, from which its weight follows."""
    return GroupLengths(len(lease.prompt), [one.turns for one in samples])


class GroupDelays(NamedTuple):
    """Milliseconds since the lease arrived here. `waited`: time until the group had its first place in the engine.
    `took`: until it was complete. None: not known."""

    waited: int | None = None
    took: int | None = None


UNKNOWN_DELAYS: Final = GroupDelays()


def submission_of(
    lease: Lease, samples: Sequence[Sample], ranges: bytes | None = None, delays: GroupDelays = UNKNOWN_DELAYS
) -> bytes:
    """Return the encoded Submission: the whole group, each rollout tagged with version and content root. `ranges`:
    the answer to `Lease.ranges_asked`."""
    segments = [Segment(version=lease.version, root=lease.root, first=0)]
    rollouts = [
        Rollout(
            tokens=sample.tokens,
            turns=sample.turns,
            logprobs=struct.pack(f"<{len(sample.logprobs)}f", *sample.logprobs),
            segments=segments,
        )
        for sample in samples
    ]
    submission = Submission(
        lease=lease.id, era=lease.era, version=lease.version, root=lease.root, rollouts=rollouts, ranges=ranges,
        waited=delays.waited, took=delays.took,
    )  # fmt: skip
    return encode(submission)
