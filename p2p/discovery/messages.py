"""Wire types of discovery: peer records and dial-back."""

from typing import Annotated

from msgspec import Meta

from echo2.p2p.wire_types import Address, Milliseconds, Wire


class PeerRecord(Wire, frozen=True):
    """node -> everyone, sealed by the node's own key, from which its peer id follows: addresses at which it can be
    dialled (p2p/discovery/peer_records.py). `issued`: orders a peer's records."""

    addresses: Annotated[list[Address], Meta(max_length=8)]
    issued: Milliseconds


class ReachableRequest(Wire, frozen=True):
    """anyone -> anyone, method "reachable", unsealed. Asks whether these TCP ports accept connections, at the IP
    address that the request comes from."""

    ports: Annotated[list[Annotated[int, Meta(ge=1, le=65535)]], Meta(max_length=4)]


class ReachableResponse(Wire, frozen=True):
    """anyone -> anyone, to "reachable". `observed`: the IP address that the request came from; None: it came through a
    relay, and no port was tried. `ports`: the requested ones that accepted a connection there."""

    observed: Annotated[str, Meta(max_length=64)] | None = None
    ports: Annotated[list[Annotated[int, Meta(ge=1, le=65535)]], Meta(max_length=4)] = []
