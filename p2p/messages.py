"""Every wire type of the control plane, in one file: who makes it, who reads it, what absence means.

Rules
1. Types only gain optional fields within a protocol version; an unknown field is ignored.
2. Times are integers: milliseconds since the Unix epoch, on the coordinator's clock unless said otherwise.
3. Ids and nonces are 16 bytes, hashes, roots and public keys 32 bytes; `decode` enforces it.
4. Every list and string has a bound; a decode never allocates more than a small multiple of its input.
5. Version, Edge and EdgeIndex are the policy's own documents: weights/documents.py.

Documents travel sealed (p2p.envelope); requests of a node that have an effect are sealed `Request`s.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from p2p.errors import Malformed
from p2p.network import Manifest

Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Key = Hash
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Sentence = Annotated[str, Meta(max_length=2000)]
Address = Annotated[str, Meta(max_length=400)]
SealedRecord = Annotated[bytes, Meta(max_length=4096)]
PeerId = Annotated[str, Meta(min_length=1, max_length=128)]
Milliseconds = Annotated[int, Meta(ge=0, lt=1 << 53)]
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
Token = Annotated[int, Meta(ge=0, lt=1 << 31)]
Tokens = Annotated[list[Token], Meta(max_length=1 << 20)]
MOST_ROOTS = 64
"""Roots of a run in all."""


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all wire types."""


def head_topic(run: bytes) -> str:
    """The gossip topic of a run's Heads. `run`: its id."""
    return f"echo2/{run.hex()}/head"


# --- authority -------------------------------------------------------------------------------------------------------


class RoleKeys(Wire, frozen=True):
    keys: Annotated[list[Key], Meta(min_length=1, max_length=32)]
    threshold: Annotated[int, Meta(ge=1, le=32)]


class Root(Wire, frozen=True):
    """operator, offline -> everyone. Keys and thresholds of root, policy, channel and ledger. `issued`: when it was
    written; None: by a program that did not say. `revoked`: key -> the time of the run from which on its signatures
    count no more, in any role."""

    run: Hash
    serial: Count
    roles: Annotated[dict[Name, RoleKeys], Meta(max_length=16)]
    expires: Milliseconds
    issued: Milliseconds | None = None
    revoked: Annotated[dict[Key, Milliseconds], Meta(max_length=256)] = {}


class Asset(Wire, frozen=True):
    """A file that belongs to the model and never changes: config.json, tokenizer.json."""

    name: Name
    manifest: Manifest


class TaskReference(Wire, frozen=True):
    name: Name
    version: Count


class RunSpec(Wire, frozen=True):
    """operator (root) -> everyone. What the run is. `model` names its base for people; weights come by edges.

    `limit`: most sampled tokens a rollout. `vocabulary`: number of token ids. `engines`: engine classes admitted,
    each a prefix of "<engine>/<dtype>/<device>". `protocols`: lowest and highest protocol version spoken."""

    run: Hash
    name: Name
    model: Name
    assets: Annotated[list[Asset], Meta(max_length=16)]
    eos: Token
    vocabulary: Count
    tasks: Annotated[list[TaskReference], Meta(min_length=1, max_length=64)]
    staleness: Count
    group_size: Annotated[int, Meta(ge=1, le=1024)]
    limit: Annotated[int, Meta(ge=1, le=1 << 20)]
    compute_dtype: Name
    engines: Annotated[list[Name], Meta(min_length=1, max_length=16)]
    sampling: Name
    price_mode: Name
    protocols: tuple[int, int] = (1, 1)


class Head(Wire, frozen=True):
    """coordinator (channel) -> everyone, by gossip and on request. Ordered by (era, version, sequence)."""

    era: Count
    version: Count
    version_hash: Hash
    index_hash: Hash
    step: Count
    sequence: Count
    addresses: Annotated[list[Address], Meta(max_length=16)]
    root_serial: Count
    issued: Milliseconds
    expires: Milliseconds
    finished: bool = False


# --- requests and answers ---------------------------------------------------------------------------------------------


class VerdictsAsk(Wire, frozen=True):
    """node -> coordinator, method "verdicts", or beside any other request: receipts of these leases, and which receipts
    are safely stored."""

    leases: Annotated[list[Id], Meta(max_length=256)]
    confirmed: Annotated[list[Id], Meta(max_length=256)] = []


class Verdicts(Wire, frozen=True):
    """Sealed Receipts in the order asked, None while undecided; and leases that the coordinator never received."""

    receipts: Annotated[list[bytes | None], Meta(max_length=256)]
    unknown: Annotated[list[Id], Meta(max_length=256)] = []


class Request(Wire, frozen=True):
    """node -> coordinator, sealed by the node's key. The same id within its life gets the same answer again.
    `recipient`: the run's channel key, so that a request cannot be replayed to another run or coordinator. `verdicts`:
    beside what the method asks; the Answer's `verdicts` then answers it."""

    recipient: Key
    id: Id
    method: Name
    expires: Milliseconds
    body: bytes
    verdicts: VerdictsAsk | None = None


class Refusal(Wire, frozen=True):
    """coordinator -> node. Data, not an exception: `code` is one of protocol/refusals.py, `sentence` is for people.
    `retry_after`: milliseconds after which asking again makes sense; None: this very request never will. `roots`: of
    the code `wrong-recipient`, where the recipient is a former channel key of the run: every sealed Root, in order."""

    code: Name
    sentence: Sentence
    retry_after: Milliseconds | None = None
    roots: Annotated[list[bytes], Meta(max_length=MOST_ROOTS)] = []


class Answer(Wire, frozen=True):
    """coordinator -> node. Exactly one of `body` and `refusal` is there. `verdicts`: to those of the Request; None:
    there were none, or the coordinator is older than this field."""

    body: bytes | None = None
    refusal: Refusal | None = None
    verdicts: Verdicts | None = None


class PeerRecord(Wire, frozen=True):
    """node -> everyone, sealed by its own key, which is the peer: where it can be dialled
    (p2p/discovery/peer_records.py). `issued`: orders a peer's records."""

    addresses: Annotated[list[Address], Meta(max_length=8)]
    issued: Milliseconds


class Hello(Wire, frozen=True):
    """node -> coordinator, method "hello". First message of every connection. `record`: its sealed PeerRecord."""

    protocols: tuple[int, int]
    software: Name
    name: Annotated[str, Meta(max_length=40)]
    engine: Name
    device: Name
    tasks: Annotated[list[TaskReference], Meta(max_length=64)]
    record: SealedRecord


class Welcome(Wire, frozen=True):
    """coordinator -> node. `roots`: every sealed Root since the first, in order. `peers`: sealed PeerRecords, as they
    came, of nodes worth dialling."""

    roots: Annotated[list[bytes], Meta(min_length=1, max_length=MOST_ROOTS)]
    runspec: bytes
    head: bytes | None
    peers: Annotated[list[SealedRecord], Meta(max_length=64)]
    now: Milliseconds


class DocumentsAsk(Wire, frozen=True):
    """anyone -> anyone, method "documents", unsealed. Sealed documents by hash."""

    hashes: Annotated[list[Hash], Meta(max_length=64)]


class Documents(Wire, frozen=True):
    """In the order asked; None where the peer has not got it."""

    documents: Annotated[list[bytes | None], Meta(max_length=64)]


class HeadAsk(Wire, frozen=True):
    """anyone -> anyone, method "head", unsealed. The newest sealed Head that the peer holds. `root_serial`: of the
    newest Root that the asker holds; None: it asks for no Roots."""

    root_serial: Count | None = None


class ReachableAsk(Wire, frozen=True):
    """anyone -> anyone, method "reachable", unsealed. Can these TCP ports be reached at the address I come from?"""

    ports: Annotated[list[Annotated[int, Meta(ge=1, le=65535)]], Meta(max_length=4)]


class Reachable(Wire, frozen=True):
    """`observed`: the IP address that the asker comes from; None: it came through a relay, and nothing was tried.
    `ports`: those of the asked ones that took a connection there."""

    observed: Annotated[str, Meta(max_length=64)] | None = None
    ports: Annotated[list[Annotated[int, Meta(ge=1, le=65535)]], Meta(max_length=4)] = []


class HeadAnswer(Wire, frozen=True):
    """`roots`: the sealed Roots behind `root_serial` of the question, in order."""

    head: bytes | None
    roots: Annotated[list[bytes], Meta(max_length=MOST_ROOTS)] = []


# --- leases and rollouts ----------------------------------------------------------------------------------------------


class LeaseAsk(Wire, frozen=True):
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


class SubmitAnswer(Wire, frozen=True):
    """coordinator -> node, to "submit": the sealed Received, and the sealed Receipt once there is one."""

    received: bytes | None
    receipt: bytes | None


# --- the broadcast ----------------------------------------------------------------------------------------------------


class Sender(Wire, frozen=True):
    """What one peer sent of a payload. `nbytes`: verified. `began`: the first chunk was asked of the peer; `ended`: the
    last one came; times as in Acknowledgement."""

    peer: PeerId
    nbytes: Count
    began: Milliseconds
    ended: Milliseconds


class Taken(Wire, frozen=True):
    """A payload that the node fetched. `took`: milliseconds from the start to complete. `senders`: those that sent
    most."""

    payload_hash: Hash
    took: Milliseconds
    senders: Annotated[list[Sender], Meta(max_length=32)]


class Acknowledgement(Wire, frozen=True):
    """node -> coordinator, method "acknowledge", answered with no bytes: the node holds this version, its root checked.

    Times are milliseconds before this message was made, on the node's own monotonic clock: `heard`: the version's first
    Head came; `complete`: the last payload was complete; `applied`: the engine held it. `taken`: the payloads fetched
    for it, the last ones; none where all were here already."""

    era: Count
    version: Count
    heard: Milliseconds
    complete: Milliseconds
    applied: Milliseconds
    taken: Annotated[list[Taken], Meta(max_length=8)] = []


# --- the plan of broadcasts -------------------------------------------------------------------------------------------


class PlanAsk(Wire, frozen=True):
    """node -> coordinator, method "plan", unsealed: who asks is who is connected, and it speaks of its own place only.

    `uplink`, `downlink`: the owner's limits, bytes per second; None: no limit. `latency`: milliseconds one way, None:
    not measured. `failed`: parents that it cannot reach."""

    uplink: Count | None = None
    downlink: Count | None = None
    latency: Milliseconds | None = None
    failed: Annotated[list[PeerId], Meta(max_length=16)] = []


class PlanAnswer(Wire, frozen=True):
    """coordinator -> node. `parents`: one a stripe; none: there is no plan. `records`: the sealed PeerRecords, as
    they came, of the others than the coordinator."""

    parents: Annotated[list[PeerId], Meta(max_length=16)] = []
    records: Annotated[list[SealedRecord], Meta(max_length=16)] = []


T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type, msgspec.msgpack.Decoder[object]] = {}


def encode(message: msgspec.Struct) -> bytes:
    """Canonical bytes: MessagePack, fields in order, defaults left out."""
    return _encode(message)


def decode(data: bytes, type_: type[T]) -> T:
    """Bytes as `type_`, typed and bounded. Raises `Malformed`."""
    decoder = _decoders.get(type_)
    if decoder is None:
        decoder = _decoders[type_] = msgspec.msgpack.Decoder(type_)
    try:
        return decoder.decode(data)  # type: ignore[return-value]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"not a {type_.__name__}: {error}") from error
