"""Wire types of work: lease, rollouts, submission, receipt, verdicts."""

from typing import Annotated

from msgspec import Meta

from p2p.wire_types import Count, Hash, Id, Key, Milliseconds, Name, Sentence, Tokens, Wire


class VerdictsRequest(Wire, frozen=True):
    """node -> coordinator, method "verdicts", or beside any other request: receipts of these leases, and which receipts
    are safely stored."""

    leases: Annotated[list[Id], Meta(max_length=256)]
    confirmed: Annotated[list[Id], Meta(max_length=256)] = []


class VerdictsResponse(Wire, frozen=True):
    """Sealed Receipts in the order asked, None while undecided; and leases that the coordinator never received."""

    receipts: Annotated[list[bytes | None], Meta(max_length=256)]
    unknown: Annotated[list[Id], Meta(max_length=256)] = []


class LeaseRequest(Wire, frozen=True):
    """node -> coordinator, method "lease". Names the version that the node holds, loaded and ready."""

    nonce: Id
    era: Count
    version: Count
    root: Hash
    engine: Name


class Lease(Wire, frozen=True):
    """coordinator (channel) -> node: one group under one version. `seeds`: one a sample; their number is the group's
    size. `limit`: most sampled tokens a rollout. `calibration`: hash of the sealed Calibration; None: exact (fp32)."""

    id: Id
    node: Key
    nonce: Id
    task: Name
    task_version: Count
    index: Count
    prompt: Tokens
    seeds: Annotated[list[Id], Meta(min_length=1, max_length=1024)]
    limit: Count
    era: Count
    version: Count
    root: Hash
    sent: Milliseconds
    expires: Milliseconds
    calibration: Hash | None = None


class Segment(Wire, frozen=True):
    """From token `first` on, the rollout was sampled under this version."""

    version: Count
    root: Hash
    first: Count


class Rollout(Wire, frozen=True):
    """`tokens`, `turns`: as tasks.task.Transcript. `logprobs`: float32 little-endian, one for each sampled token."""

    tokens: Tokens
    turns: Annotated[list[Count], Meta(max_length=1024)]
    logprobs: bytes
    segments: Annotated[list[Segment], Meta(min_length=1, max_length=16)]


class Submission(Wire, frozen=True):
    """node -> coordinator, method "submit": one group for one lease."""

    lease: Id
    era: Count
    version: Count
    root: Hash
    rollouts: Annotated[list[Rollout], Meta(max_length=1024)]


class Received(Wire, frozen=True):
    """coordinator (ledger) -> node: durable, checked by T0, verdict to come."""

    lease: Id
    submission_hash: Hash
    at: Milliseconds


class Receipt(Wire, frozen=True):
    """coordinator (ledger) -> node: the final answer. `verdict`: "accepted" or "refused". `weight`: milli-RE.
    `entry`, `entry_hash`: where it stands in the ledger; entry 0: among others (docs/protocol/ledger.md). `epoch`,
    `price`: of pay; None: points, or still pending."""

    run: Hash
    node: Key
    lease: Id
    era: Count
    version: Count
    submission_hash: Hash
    verdict: Name
    code: Name
    reason: Sentence
    trainable: bool
    weight: Count
    entry: Count
    entry_hash: Hash
    at: Milliseconds
    epoch: Count | None = None
    price: Count | None = None


class SubmitResponse(Wire, frozen=True):
    """coordinator -> node, to "submit": the sealed Received, and the sealed Receipt once there is one."""

    received: bytes | None
    receipt: bytes | None
