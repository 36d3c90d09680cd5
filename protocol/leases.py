"""Wire types of work: lease, rollouts, submission, receipt, verdicts."""

from typing import Annotated

from msgspec import Meta

from echo2.p2p.wire_types import Count, Hash, Id, Key, Milliseconds, Name, Sentence, Tokens, Wire


class VerdictsRequest(Wire, frozen=True):
    """node -> coordinator, beside any request: asks for the receipts of `leases`, and confirms the receipts that the
    node has stored durably."""

    leases: Annotated[list[Id], Meta(max_length=256)]
    confirmed: Annotated[list[Id], Meta(max_length=256)] = []


class VerdictsResponse(Wire, frozen=True):
    """coordinator -> node. `receipts`: sealed, in the order requested, None while undecided. `unknown`: leases for
    which the coordinator received no submission."""

    receipts: Annotated[list[bytes | None], Meta(max_length=256)]
    unknown: Annotated[list[Id], Meta(max_length=256)] = []


class LeaseReport(Wire, frozen=True):
    """node -> coordinator, beside a request. `waiting`: its open leases whose groups it has not begun. `returned`:
    leases that it gives back."""

    waiting: Annotated[list[Id], Meta(max_length=1024)] = []
    returned: Annotated[list[Id], Meta(max_length=1024)] = []


class LeaseRequest(Wire, frozen=True):
    """node -> coordinator, method "lease". Names the version that the node's engine has loaded. `at_once`: groups that
    the node can use at a time, this one and those with open leases counted. `takes`: milliseconds from the lease to a
    group whose rollouts all have `RunSpec.limit` tokens, as the node measured its engine; None: it did not."""

    nonce: Id
    era: Count
    version: Count
    root: Hash
    engine: Name
    at_once: Annotated[int, Meta(ge=1, le=1024)] = 1
    takes: Milliseconds | None = None


class Lease(Wire, frozen=True):
    """coordinator (channel) -> node: one group under one version. `seeds`: one per sample; their number is the group's
    size. `limit`: most sampled tokens per rollout. `calibration`: hash of the sealed Calibration; None: exact (fp32).
    `ranges_asked`: whether the submission must show bytes of the version (weights/shown_ranges.py). `at_once`: leases
    that the node may have open now; None: not said."""

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
    ranges_asked: bool = False
    at_once: Count | None = None


class Segment(Wire, frozen=True):
    """A part of a rollout: from token `first` on, it was sampled under this version."""

    version: Count
    root: Hash
    first: Count


class Rollout(Wire, frozen=True):
    """One sampled episode. `tokens`, `turns`: tokens and turns as tasks.task.Transcript. `logprobs`: float32
    little-endian, one per sampled token."""

    tokens: Tokens
    turns: Annotated[list[Count], Meta(max_length=1024)]
    logprobs: bytes
    segments: Annotated[list[Segment], Meta(min_length=1, max_length=16)]


class Submission(Wire, frozen=True):
    """node -> coordinator, method "submit": one group for one lease. `ranges`: hash of the bytes that the lease asks
    for; None: not shown. `waited`, `took`: milliseconds from the lease's arrival at the node until the group had its
    first place in the engine, and until it was complete; for the operator's eyes, None: not told."""

    lease: Id
    era: Count
    version: Count
    root: Hash
    rollouts: Annotated[list[Rollout], Meta(max_length=1024)]
    ranges: Hash | None = None
    waited: Milliseconds | None = None
    took: Milliseconds | None = None


class Received(Wire, frozen=True):
    """coordinator (ledger) -> node: the submission is stored durably and passed the format checks (T0); its verdict
    follows."""

    lease: Id
    submission_hash: Hash
    at: Milliseconds


class Receipt(Wire, frozen=True):
    """coordinator (ledger) -> node: the final verdict. `verdict`: "accepted" or "refused". `weight`: milli-RE.
    `entry`, `entry_hash`: its ledger entry; entry 0: in an entry with others (docs/protocol/ledger.md). `epoch`,
    `price`: price of pay; None: points, or still pending."""

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
