"""The wire types of leases and receipts: bounds, and the meaning of absent fields."""

import msgspec
import pytest

from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import Wire, decode, encode
from echo2.protocol.leases import Lease, LeaseRequest, Receipt, Rollout, Segment, VerdictsRequest

HASH, ID = b"h" * 32, b"i" * 16
LEASE = Lease(
    id=ID, node=HASH, nonce=ID, task="single_sum", task_version=1, index=0, prompt=[1], seeds=[ID], limit=4, era=0,
    version=1, root=HASH, sent=1, expires=2,
)  # fmt: skip
SEGMENT = Segment(version=1, root=HASH, first=0)
ROLLOUT = Rollout(tokens=[1], turns=[1], logprobs=bytes(4), segments=[SEGMENT])

AT_THE_BOUND: dict[str, Wire] = {
    "1024 seeds": msgspec.structs.replace(LEASE, seeds=[ID] * 1024),
    "256 leases in a request for verdicts": VerdictsRequest(leases=[ID] * 256),
    "16 segments": msgspec.structs.replace(ROLLOUT, segments=[SEGMENT] * 16),
}
BEYOND_IT: dict[str, Wire] = {
    "no seed": msgspec.structs.replace(LEASE, seeds=[]),
    "1025 seeds": msgspec.structs.replace(LEASE, seeds=[ID] * 1025),
    "257 leases in a request for verdicts": VerdictsRequest(leases=[ID] * 257),
    "no segment": msgspec.structs.replace(ROLLOUT, segments=[]),
    "17 segments": msgspec.structs.replace(ROLLOUT, segments=[SEGMENT] * 17),
    "a nonce of 15 bytes": LeaseRequest(nonce=ID[1:], era=0, version=1, root=HASH, engine="tiny/float32/cpu"),
    "a negative version": LeaseRequest(nonce=ID, era=0, version=-1, root=HASH, engine="tiny/float32/cpu"),
}


@pytest.mark.parametrize("message", AT_THE_BOUND.values(), ids=AT_THE_BOUND)
def test_a_message_at_its_bound_is_decoded(message: Wire) -> None:
    assert decode(encode(message), type(message)) == message


@pytest.mark.parametrize("message", BEYOND_IT.values(), ids=BEYOND_IT)
def test_a_message_beyond_its_bound_is_malformed(message: Wire) -> None:
    with pytest.raises(Malformed):
        decode(encode(message), type(message))


def test_a_lease_without_a_calibration_is_exact_and_a_receipt_without_an_epoch_is_unpriced() -> None:
    assert decode(encode(LEASE), Lease).calibration is None
    receipt = Receipt(
        run=HASH, node=HASH, lease=ID, era=0, version=1, submission_hash=HASH, verdict="accepted", code="ok", reason="",
        trainable=True, weight=1, entry=0, entry_hash=HASH, at=1,
    )  # fmt: skip
    decoded = decode(encode(receipt), Receipt)
    assert (decoded.epoch, decoded.price) == (None, None)
