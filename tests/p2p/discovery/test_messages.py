"""The wire types of peer records and dial-back: bounds, and the meaning of absent fields."""

import pytest

from echo2.p2p.discovery.messages import PeerRecord, ReachableRequest, ReachableResponse
from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import Wire, decode, encode

ADDRESS = "/ip4/8.8.8.8/tcp/4310/p2p/12D3KooWpeer"

AT_THE_BOUND: dict[str, Wire] = {
    "8 addresses": PeerRecord(addresses=[ADDRESS] * 8, issued=1),
    "4 ports, the least and the greatest among them": ReachableRequest(ports=[1, 443, 4310, 65535]),
}
BEYOND_IT: dict[str, Wire] = {
    "9 addresses": PeerRecord(addresses=[ADDRESS] * 9, issued=1),
    "a negative time of issue": PeerRecord(addresses=[], issued=-1),
    "5 ports": ReachableRequest(ports=[1, 2, 3, 4, 5]),
    "port 0": ReachableRequest(ports=[0]),
    "port 65536": ReachableRequest(ports=[65536]),
    "an observed address of 65 characters": ReachableResponse(observed="1" * 65),
}


@pytest.mark.parametrize("message", AT_THE_BOUND.values(), ids=AT_THE_BOUND)
def test_a_message_at_its_bound_is_decoded(message: Wire) -> None:
    assert decode(encode(message), type(message)) == message


@pytest.mark.parametrize("message", BEYOND_IT.values(), ids=BEYOND_IT)
def test_a_message_beyond_its_bound_is_malformed(message: Wire) -> None:
    with pytest.raises(Malformed):
        decode(encode(message), type(message))


def test_an_empty_response_means_that_no_port_was_tried() -> None:
    assert decode(b"\x80", ReachableResponse) == ReachableResponse(observed=None, ports=[])
