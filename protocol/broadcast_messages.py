"""Wire types of broadcasts: acknowledgements of versions, and the plan of who sends to whom."""

from typing import Annotated

from msgspec import Meta

from p2p.wire_types import Count, Hash, Milliseconds, PeerId, SealedRecord, Wire


class TransferSource(Wire, frozen=True):
    """What one peer sent of a payload. `nbytes`: verified. `began`: the first chunk was asked of the peer; `ended`: the
    last one came; times as in Acknowledgement."""

    peer: PeerId
    nbytes: Count
    began: Milliseconds
    ended: Milliseconds


class PayloadTransfer(Wire, frozen=True):
    """A payload that the node fetched. `took`: milliseconds from the start to complete. `senders`: those that sent
    most."""

    payload_hash: Hash
    took: Milliseconds
    senders: Annotated[list[TransferSource], Meta(max_length=32)]


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
    taken: Annotated[list[PayloadTransfer], Meta(max_length=8)] = []


class PlanRequest(Wire, frozen=True):
    """node -> coordinator, method "plan", unsealed: who asks is who is connected, and it speaks of its own place only.

    `uplink`, `downlink`: the owner's limits, bytes per second; None: no limit. `latency`: milliseconds one way, None:
    not measured. `failed`: parents that it cannot reach."""

    uplink: Count | None = None
    downlink: Count | None = None
    latency: Milliseconds | None = None
    failed: Annotated[list[PeerId], Meta(max_length=16)] = []


class PlanResponse(Wire, frozen=True):
    """coordinator -> node. `parents`: one a stripe; none: there is no plan. `records`: the sealed PeerRecords, as
    they came, of the others than the coordinator."""

    parents: Annotated[list[PeerId], Meta(max_length=16)] = []
    records: Annotated[list[SealedRecord], Meta(max_length=16)] = []
