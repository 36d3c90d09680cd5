"""The messages between the daemons, by generation from their types: each field missing, of another type, outside its
limits and at them. What absent fields mean."""

import msgspec
import pytest

from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import Wire, decode, encode
from echo2.protocol import appeals, broadcast_messages, leases, market, methods, requests, steps
from echo2.protocol.broadcast_messages import PlanRequest, PlanResponse
from echo2.protocol.leases import Lease, Receipt
from echo2.protocol.requests import Refusal, Request, Response
from tests.support.message_fields import at_limits, beyond_limits, doubled, of_wrong_type, sound, without

MODULES = {one.__name__ for one in (appeals, broadcast_messages, leases, market, methods, requests, steps)}
BODIES = {one.__name__: one for one in Wire.__subclasses__() if one.__module__ in MODULES}
HASH, ID = b"h" * 32, b"i" * 16


def read(kind: type[Wire], data: bytes) -> Wire:
    return decode(data, kind)


@pytest.mark.parametrize("name", BODIES)
def test_a_field_that_is_missing_or_of_another_type_or_outside_its_limits_is_named(name: str) -> None:
    kind = BODIES[name]
    bad = [*without(kind), *of_wrong_type(kind), *beyond_limits(kind)]
    assert len(bad) > 8 * len(kind.__struct_fields__) - 8
    for variant in bad:
        with pytest.raises(Malformed, match=f"^not a {name}: ") as refused:
            read(kind, variant.data)
        assert variant.what.split()[0].split(".")[-1] in str(refused.value), variant.what


@pytest.mark.parametrize("name", BODIES)
def test_a_message_at_the_limits_of_each_field_is_read(name: str) -> None:
    kind = BODIES[name]
    for variant in at_limits(kind):
        message = read(kind, variant.data)
        assert read(kind, encode(message)) == message, variant.what


@pytest.mark.parametrize("name", BODIES)
def test_of_a_field_that_stands_twice_the_last_one_counts_and_a_false_first_one_is_refused(name: str) -> None:
    kind = BODIES[name]
    message = read(kind, msgspec.msgpack.encode(sound(kind)))
    for field in sound(kind):
        with pytest.raises(Malformed):
            read(kind, doubled(kind, field, 1.5))
    for variant in at_limits(kind):
        for field, other in variant.fields.items():
            assert read(kind, doubled(kind, field, other)) == message, variant.what


def test_a_lease_without_a_calibration_is_exact_and_a_receipt_without_an_epoch_is_unpriced() -> None:
    lease = Lease(
        id=ID, node=HASH, nonce=ID, task="single_sum", task_version=1, index=0, prompt=[1], seeds=[ID], limit=4, era=0,
        version=1, root=HASH, sent=1, expires=2,
    )  # fmt: skip
    assert decode(encode(lease), Lease).calibration is None
    receipt = Receipt(
        run=HASH, node=HASH, lease=ID, era=0, version=1, submission_hash=HASH, verdict="accepted", code="ok", reason="",
        trainable=True, weight=1, entry=0, entry_hash=HASH, at=1,
    )  # fmt: skip
    decoded = decode(encode(receipt), Receipt)
    assert (decoded.epoch, decoded.price) == (None, None)


def test_a_request_and_a_response_without_verdicts_have_none() -> None:
    request = Request(recipient=HASH, id=ID, method="hello", expires=1, body=b"")
    assert decode(encode(request), Request).verdicts is None
    response = decode(encode(Response(body=b"answer")), Response)
    assert (response.body, response.refusal, response.verdicts) == (b"answer", None, None)


def test_a_refusal_without_retry_after_never_succeeds_and_brings_no_roots() -> None:
    refusal = decode(encode(Refusal(code="protocol", sentence="Update.")), Refusal)
    assert (refusal.retry_after, refusal.roots) == (None, [])


def test_an_empty_plan_request_sets_no_limits_and_an_empty_plan_has_no_parents() -> None:
    empty = b"\x80"
    assert decode(empty, PlanRequest) == PlanRequest(uplink=None, downlink=None, latency=None, failed=[])
    assert decode(empty, PlanResponse) == PlanResponse(parents=[], records=[])
