"""Wire types of discovery: peer records and dial-back."""

from typing import Annotated

from msgspec import Meta

from p2p.wire_types import Address, Milliseconds, Wire


class PeerRecord(Wire, frozen=True):
    """node -> everyone, sealed by its own key, which is the peer: where it can be dialled
    (p2p/discovery/peer_records.py). `issued`: orders a peer's records."""

    addresses: Annotated[list[Address], Meta(max_length=8)]
    issued: Milliseconds


class ReachableRequest(Wire, frozen=True):
    """anyone -> anyone, method "reachable", unsealed. Can these TCP ports be reached at the address I come from?"""

    ports: Annotated[list[Annotated[int, Meta(ge=1, le=65535)]], Meta(max_length=4)]


class ReachableResponse(Wire, frozen=True):
    """`observed`: the IP address that the asker comes from; None: it came through a relay, and nothing was tried.
    `ports`: those of the asked ones that took a connection there."""

    observed: Annotated[str, Meta(max_length=64)] | None = None
    ports: Annotated[list[Annotated[int, Meta(ge=1, le=65535)]], Meta(max_length=4)] = []
