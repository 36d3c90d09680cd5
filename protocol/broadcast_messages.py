"""Wire types of broadcasts: acknowledgements of versions, and the plan of the broadcast trees."""

from typing import Annotated

from msgspec import Meta

from echo2.p2p.wire_types import Count, Hash, Milliseconds, PeerId, SealedRecord, Wire


class TransferSource(Wire, frozen=True):
    """One peer's share of a fetched payload. `nbytes`: verified bytes. `began`: the first chunk was requested from the
    peer; `ended`: the last one arrived; times as in Acknowledgement."""

    peer: PeerId
    nbytes: Count
    began: Milliseconds
    ended: Milliseconds


class PayloadTransfer(Wire, frozen=True):
    """A payload that the node fetched. `took`: milliseconds from the start to the complete payload. `senders`: those
    that sent most."""

    payload_hash: Hash
    took: Milliseconds
    senders: Annotated[list[TransferSource], Meta(max_length=32)]


class Acknowledgement(Wire, frozen=True):
    """node -> coordinator, method "acknowledge", answered with no bytes: the node holds this version, its root
    verified.

    Times are milliseconds before this message was written, on the node's own monotonic clock. `heard`: the version's
    first Head arrived; `complete`: the last payload was complete; `applied`: the engine held the version. `taken`: the
    last payloads fetched for it; empty where all were present already."""

    era: Count
    version: Count
    heard: Milliseconds
    complete: Milliseconds
    applied: Milliseconds
    taken: Annotated[list[PayloadTransfer], Meta(max_length=8)] = []


class PlanRequest(Wire, frozen=True):
    """node -> coordinator, method "plan". Unsealed: the connection authenticates the node, and the request concerns
    only the node's own place in the plan.

    `uplink`, `downlink`: the owner's limits, bytes per second; None: no limit. `latency`: milliseconds one way, None:
    not measured. `failed`: parents that the node cannot reach."""

    uplink: Count | None = None
    downlink: Count | None = None
    latency: Milliseconds | None = None
    failed: Annotated[list[PeerId], Meta(max_length=16)] = []


class PlanResponse(Wire, frozen=True):
    """coordinator -> node, to "plan", and as the request of "follow". `parents`: one per stripe; empty: there is no
    plan. `records`: the sealed PeerRecords, as received, of all of them but the coordinator."""

    parents: Annotated[list[PeerId], Meta(max_length=16)] = []
    records: Annotated[list[SealedRecord], Meta(max_length=16)] = []
