"""The wire types of broadcasts: bounds, and the meaning of absent fields."""

import pytest

from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import Wire, decode, encode
from echo2.protocol.broadcast_messages import (
    Acknowledgement,
    PayloadTransfer,
    PlanRequest,
    PlanResponse,
    TransferSource,
)

SOURCE = TransferSource(peer="12D3KooWpeer", nbytes=1, began=2, ended=1)
TRANSFER = PayloadTransfer(payload_hash=b"p" * 32, took=3, senders=[SOURCE])


def acknowledgement(transfers: int) -> Acknowledgement:
    return Acknowledgement(era=0, version=1, heard=3, complete=2, applied=1, taken=[TRANSFER] * transfers)


AT_THE_BOUND: dict[str, Wire] = {
    "8 transfers": acknowledgement(8),
    "32 senders": PayloadTransfer(payload_hash=b"p" * 32, took=3, senders=[SOURCE] * 32),
    "16 failed parents": PlanRequest(failed=["12D3KooWpeer"] * 16),
    "16 stripes": PlanResponse(parents=["12D3KooWpeer"] * 16, records=[b"record"] * 16),
}
BEYOND_IT: dict[str, Wire] = {
    "9 transfers": acknowledgement(9),
    "33 senders": PayloadTransfer(payload_hash=b"p" * 32, took=3, senders=[SOURCE] * 33),
    "17 failed parents": PlanRequest(failed=["12D3KooWpeer"] * 17),
    "17 stripes": PlanResponse(parents=["12D3KooWpeer"] * 17),
    "a negative limit": PlanRequest(uplink=-1),
}


@pytest.mark.parametrize("message", AT_THE_BOUND.values(), ids=AT_THE_BOUND)
def test_a_message_at_its_bound_is_decoded(message: Wire) -> None:
    assert decode(encode(message), type(message)) == message


@pytest.mark.parametrize("message", BEYOND_IT.values(), ids=BEYOND_IT)
def test_a_message_beyond_its_bound_is_malformed(message: Wire) -> None:
    with pytest.raises(Malformed):
        decode(encode(message), type(message))


def test_an_empty_plan_request_sets_no_limits_and_an_empty_plan_has_no_parents() -> None:
    empty = b"\x80"
    assert decode(empty, PlanRequest) == PlanRequest(uplink=None, downlink=None, latency=None, failed=[])
    assert decode(empty, PlanResponse) == PlanResponse(parents=[], records=[])
