"""The wire types that frame requests, and those of `hello` and `documents`: bounds, and absent fields."""

import pytest

from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import Wire, decode, encode
from echo2.protocol.authority import MOST_ROOTS, TaskReference
from echo2.protocol.requests import DocumentsRequest, Hello, Refusal, Request, Response, Welcome

HASH, ID = b"h" * 32, b"i" * 16
TASK = TaskReference(name="single_sum", version=1)


def hello(name: str = "", tasks: int = 1) -> Hello:
    return Hello(
        protocols=(1, 1), software="echo2", name=name, engine="tiny/float32/cpu", device="cpu", tasks=[TASK] * tasks,
        record=b"record",
    )  # fmt: skip


def welcome(roots: int) -> Welcome:
    return Welcome(roots=[b"root"] * roots, runspec=b"runspec", head=None, peers=[], now=1)


AT_THE_BOUND: dict[str, Wire] = {
    "a name of 40 characters": hello(name="n" * 40),
    "64 tasks": hello(tasks=64),
    "as many Roots as a run may have": welcome(MOST_ROOTS),
    "64 hashes": DocumentsRequest(hashes=[HASH] * 64),
}
BEYOND_IT: dict[str, Wire] = {
    "a name of 41 characters": hello(name="n" * 41),
    "65 tasks": hello(tasks=65),
    "no Root": welcome(0),
    "more Roots than a run may have": welcome(MOST_ROOTS + 1),
    "65 hashes": DocumentsRequest(hashes=[HASH] * 65),
    "a hash of 31 bytes": DocumentsRequest(hashes=[HASH[1:]]),
}


@pytest.mark.parametrize("message", AT_THE_BOUND.values(), ids=AT_THE_BOUND)
def test_a_message_at_its_bound_is_decoded(message: Wire) -> None:
    assert decode(encode(message), type(message)) == message


@pytest.mark.parametrize("message", BEYOND_IT.values(), ids=BEYOND_IT)
def test_a_message_beyond_its_bound_is_malformed(message: Wire) -> None:
    with pytest.raises(Malformed):
        decode(encode(message), type(message))


def test_a_request_and_a_response_without_verdicts_have_none() -> None:
    request = Request(recipient=HASH, id=ID, method="hello", expires=1, body=b"")
    assert decode(encode(request), Request).verdicts is None
    response = decode(encode(Response(body=b"answer")), Response)
    assert (response.body, response.refusal, response.verdicts) == (b"answer", None, None)


def test_a_refusal_without_retry_after_never_succeeds_and_brings_no_roots() -> None:
    refusal = decode(encode(Refusal(code="protocol", sentence="Update.")), Refusal)
    assert (refusal.retry_after, refusal.roots) == (None, [])
