"""What a lease must be before this node works for it, and what it makes of one. Pure.

A lease is worked for only if
1. the run's channel key signed it, to this node's key, in answer to this very question (nonce);
2. it binds the version that the engine holds, by era, number and content root;
3. its task and version are the RunSpec's, its group has the RunSpec's size and no seed twice, its limit is within the
   RunSpec's, its prompt is there and of the model's tokens, and prompt and limit together are within the model's
   context: neither endless work can be asked for, nor more memory than the model was made for;
4. there is time left until it expires.
"""

import struct
from collections.abc import Sequence

from engines.engine import Job, Sample
from engines.versioned import LoadedVersion
from node.trust.trusted_set import Mismatch
from p2p.envelope import Verified
from p2p.errors import PeerFault, Stale
from p2p.wire_types import encode
from protocol.authority import RunSpec
from protocol.leases import Lease, LeaseRequest, Rollout, Segment, Submission


class BadLease(PeerFault):
    """A lease that this node does not work for."""


def check_lease(
    verified: Verified[Lease],
    *,
    ask: LeaseRequest,
    node: bytes,
    current: LoadedVersion,
    runspec: RunSpec,
    now: int,
    context: int | None = None,
) -> Lease:
    """Return the Lease that this node will work for. `context`: most tokens of a sequence of the model; None: it states
    no bound. Raises `Mismatch`, `BadLease`, `Stale`."""
    lease = verified.value
    if lease.node != node or lease.nonce != ask.nonce:
        raise Mismatch("a lease for another node, or for another question")
    if (lease.era, lease.version, lease.root) != (current.era, current.version, current.root):
        raise Mismatch(f"a lease for version {lease.version}, while {current.version} is held and was named")
    if (lease.task, lease.task_version) not in {(task.name, task.version) for task in runspec.tasks}:
        raise BadLease(f"a lease for task {lease.task!r} version {lease.task_version}, which is not the run's")
    if len(lease.seeds) != runspec.group_size or len(set(lease.seeds)) != len(lease.seeds):
        raise BadLease(f"a lease of {len(lease.seeds)} seeds; the run's groups have {runspec.group_size}, none twice")
    if not 1 <= lease.limit <= runspec.limit:
        raise BadLease(f"a lease of {lease.limit} tokens a rollout; the run's limit is {runspec.limit}")
    if not lease.prompt or max(lease.prompt) >= runspec.vocabulary:
        raise BadLease("a lease whose prompt is empty or not of the model's tokens")
    if context is not None and len(lease.prompt) + lease.limit > context:
        raise BadLease(
            f"a lease of {len(lease.prompt)} prompt tokens and {lease.limit} more; the model's context is {context}"
        )
    if now >= lease.expires:
        raise Stale("a lease that has expired already")
    return lease


def job_of(lease: Lease, runspec: RunSpec) -> Job:
    """The engine's view of a lease. Volunteers roll out training prompts only."""
    return Job(
        prompt=lease.prompt,
        seeds=lease.seeds,
        limit=lease.limit,
        eos=runspec.eos,
        task=lease.task,
        task_version=lease.task_version,
        split="train",
        index=lease.index,
    )


def submission_of(lease: Lease, samples: Sequence[Sample]) -> bytes:
    """The encoded Submission: the whole group, each rollout tagged with version and content root."""
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
    submission = Submission(lease=lease.id, era=lease.era, version=lease.version, root=lease.root, rollouts=rollouts)
    return encode(submission)
